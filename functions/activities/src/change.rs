//! One change of an activity, in MySQL and in Redis.

use std::time::Duration;

use shared::comparison;
use shared::domain::{Activity, ActivityId};
use shared::http::Problem;
use shared::reservations::Load;
use shared::store::{ActivityLock, Put};
use tokio::time::Instant;

use crate::App;

/// The longest that putting an activity's rows into Redis may take; the gateway waits for 30 s. What takes longer goes
/// on when the same change is sent again.
const LAUNCH_LIMIT: Duration = Duration::from_secs(20);

/// What came of a change.
pub(crate) struct Changed {
    /// The activity is new.
    pub(crate) created: bool,
    /// Places taken in it.
    pub(crate) taken: u64,
}

/// Creates or changes the activity. A lock keeps other changes of it out, so that the two steps of one cannot mix with
/// those of another. Stopped half-way, the same change sent again completes it.
pub(crate) async fn change(app: &App, id: ActivityId, activity: &Activity) -> Result<Changed, Problem> {
    let mut lock = app.store.lock_activity(id).await?;
    let changed = change_alone(app, &mut lock, id, activity).await;
    if let Err(error) = lock.release().await {
        tracing::warn!(%error, "the lock ends with its connection");
    }
    changed
}

async fn change_alone(
    app: &App,
    lock: &mut ActivityLock,
    id: ActivityId,
    activity: &Activity,
) -> Result<Changed, Problem> {
    let before = lock.current().await?;
    if before.as_ref().is_some_and(|before| before.archived) {
        return Err(Problem::archived(id));
    }
    let created = before.is_none();
    let is_loaded = before.as_ref().is_some_and(|before| before.loaded);
    // A change that ended half-way may have left it in Redis without a word in MySQL.
    let is_in_redis = is_loaded || (!created && app.reservations.standing(id).await?.capacity.is_some());
    let taken = match before {
        _ if !is_in_redis => launch(app, lock, id, activity).await?,
        Some(before) if activity.capacity < before.activity.capacity => lower(app, lock, id, activity).await?,
        _ => raise(app, lock, id, activity).await?,
    };
    if !is_loaded {
        lock.mark_loaded().await?;
    }
    Ok(Changed { created, taken })
}

/// The first time in Redis. Rows may have come before their activity, from producers that know it already; they are
/// put into Redis before anybody can sign up.
async fn launch(app: &App, lock: &mut ActivityLock, id: ActivityId, activity: &Activity) -> Result<u64, Problem> {
    if let Put::CapacityBelowActive { active } = lock.put(activity).await? {
        return Err(Problem::capacity_below_taken(id, active.into()));
    }
    comparison::recall(&app.store, &app.reservations).await?;
    app.reservations.remember(&[id]).await?;
    let deadline = Instant::now() + LAUNCH_LIMIT;
    let found = comparison::compare_at_rest(&app.store, &app.reservations, id, deadline).await?;
    Ok(comparison::launch(&app.reservations, lock, &found).await?)
}

/// Redis first: from now on it grants fewer places. MySQL may hold active rows whose cancellation is still on its way.
async fn lower(app: &App, lock: &mut ActivityLock, id: ActivityId, activity: &Activity) -> Result<u64, Problem> {
    let taken = load(app, id, activity).await?;
    match lock.put(activity).await? {
        Put::Written => Ok(taken),
        Put::CapacityBelowActive { .. } => Err(Problem::behind()),
    }
}

/// MySQL first: it has room for whatever Redis grants from now on.
async fn raise(app: &App, lock: &mut ActivityLock, id: ActivityId, activity: &Activity) -> Result<u64, Problem> {
    match lock.put(activity).await? {
        Put::Written => load(app, id, activity).await,
        Put::CapacityBelowActive { active } => Err(Problem::capacity_below_taken(id, active.into())),
    }
}

async fn load(app: &App, id: ActivityId, activity: &Activity) -> Result<u64, Problem> {
    comparison::recall(&app.store, &app.reservations).await?;
    match app.reservations.load(id, activity).await? {
        Load::Loaded { taken } => {
            app.reservations.remember(&[id]).await?;
            Ok(taken)
        }
        Load::Archived => Err(Problem::archived(id)),
        Load::CapacityBelowTaken { taken } => Err(Problem::capacity_below_taken(id, taken)),
    }
}
