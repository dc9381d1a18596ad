//! One change of an activity, in MySQL and in Redis.

use shared::domain::{Activity, ActivityId};
use shared::http::Problem;
use shared::reservations::Load;
use shared::store::{ActivityLock, Put};

use crate::App;

/// How many activities are read at once.
const RECALL_PAGE: u32 = 1_000;

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
    let created = before.is_none();
    let new_to_redis = before.as_ref().is_none_or(|before| !before.loaded);
    let taken = match before {
        Some(before) if activity.capacity < before.activity.capacity => {
            lower(app, lock, id, activity, new_to_redis).await?
        }
        _ => raise(app, lock, id, activity, new_to_redis).await?,
    };
    if new_to_redis {
        lock.mark_loaded().await?;
    }
    Ok(Changed { created, taken })
}

/// A Redis that lost its memory is told which activities it had, before it learns of a new one: otherwise it would take
/// the lost ones for unknown.
async fn recall(app: &App) -> Result<(), Problem> {
    if !app.reservations.remembers_nothing().await? {
        return Ok(());
    }
    let mut lost = Vec::new();
    let mut after = None;
    loop {
        let page = app.store.activities(after, RECALL_PAGE).await?;
        lost.extend(page.iter().filter(|stored| stored.loaded).map(|stored| stored.id));
        let Some(last) = page.last() else { break };
        after = Some(last.id);
    }
    // All at once: with some of them remembered, the others would be taken for unknown.
    if !lost.is_empty() {
        app.reservations.remember(&lost).await?;
    }
    Ok(())
}

/// Redis first: from now on it grants fewer places. MySQL may hold active rows whose cancellation is still on its way.
async fn lower(
    app: &App,
    lock: &mut ActivityLock,
    id: ActivityId,
    activity: &Activity,
    new: bool,
) -> Result<u64, Problem> {
    let taken = load(app, id, activity, new).await?;
    match lock.put(activity).await? {
        Put::Written => Ok(taken),
        Put::CapacityBelowActive { .. } => Err(Problem::behind()),
    }
}

/// MySQL first: it has room for whatever Redis grants from now on.
async fn raise(
    app: &App,
    lock: &mut ActivityLock,
    id: ActivityId,
    activity: &Activity,
    new: bool,
) -> Result<u64, Problem> {
    match lock.put(activity).await? {
        Put::Written => load(app, id, activity, new).await,
        Put::CapacityBelowActive { active } => Err(Problem::capacity_below_taken(id, active.into())),
    }
}

async fn load(app: &App, id: ActivityId, activity: &Activity, new: bool) -> Result<u64, Problem> {
    recall(app).await?;
    match app.reservations.load(id, activity, new).await? {
        Load::Loaded { taken } => Ok(taken),
        Load::CapacityBelowTaken { taken } => Err(Problem::capacity_below_taken(id, taken)),
    }
}
