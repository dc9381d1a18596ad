//! Loads activities that Redis lost again from MySQL. Until one is back, sign-ups for it are answered with 503.

use std::collections::BTreeSet;

use shared::comparison::{self, Mode};
use shared::domain::ActivityId;
use shared::reservations::NOTICE_CHUNK;
use shared::store::StoredActivity;
use tokio::time::Instant;

use crate::aside::Aside;
use crate::report::{Rebuilt, StepError};
use crate::survey::Survey;
use crate::{App, Run, barrier};

const STEP: &str = "rebuild";

/// Brings back what is missing and may come back.
pub(crate) async fn rebuild(app: &App, run: Run, survey: &Survey, aside: &mut Aside) -> Result<Rebuilt, StepError> {
    let mut report = Rebuilt::default();
    let (archived, lost): (Vec<_>, Vec<_>) = survey.missing.iter().partition(|stored| stored.archived);
    if run.mode == Mode::Look {
        report.waiting = survey.missing.iter().map(|stored| stored.id).collect();
        return Ok(report);
    }
    forget_found(app).await?;
    for stored in archived {
        let buried = bury(app, stored).await;
        report.rebuilt.extend(aside.unless_damaged(STEP, stored.id, buried)?.map(|()| stored.id));
    }
    let ids: Vec<ActivityId> = lost.iter().map(|stored| stored.id).collect();
    for chunk in ids.chunks(NOTICE_CHUNK) {
        let Divided { drained, waiting, held_up_by } = divide(app, run, chunk).await?;
        report.waiting.extend(waiting);
        report.held_up_by.extend(held_up_by);
        for id in drained {
            let in_time = Instant::now() < run.deadline;
            let back = if in_time { bring_back(app, run, id).await } else { Ok(false) };
            match aside.unless_damaged(STEP, id, back)? {
                Some(true) => report.rebuilt.push(id),
                Some(false) | None => report.waiting.push(id),
            }
        }
    }
    Ok(report)
}

/// A run that another one overtook may have left a note of an activity that is back by now.
async fn forget_found(app: &App) -> Result<(), StepError> {
    let noted = app.reservations.noted_missing().await?;
    for ids in noted.chunks(NOTICE_CHUNK) {
        for (id, standing) in ids.iter().zip(app.reservations.standings(ids).await?) {
            if standing.is_ok_and(|standing| standing.capacity.is_some()) {
                app.reservations.forget_missing(*id).await?;
            }
        }
    }
    Ok(())
}

/// Missing activities.
#[derive(Default)]
struct Divided {
    /// All has come out of the queues that was published before the loss.
    drained: Vec<ActivityId>,
    /// Something may still be in them.
    waiting: Vec<ActivityId>,
    /// In these.
    held_up_by: BTreeSet<String>,
}

async fn divide(app: &App, run: Run, ids: &[ActivityId]) -> Result<Divided, StepError> {
    let noticed = app.reservations.notice(ids).await?;
    let mut passage = barrier::look(app, run).await?;
    if noticed.missing.iter().any(|(_, waits_for)| !passage.is_through(*waits_for)) {
        shared::fail_point!("rebuild.before-barrier");
        passage = barrier::send_and_await(app, run, noticed.barrier).await?;
    }
    let mut divided = Divided::default();
    for (id, waits_for) in noticed.missing {
        if passage.is_through(waits_for) {
            divided.drained.push(id);
        } else {
            divided.waiting.push(id);
            divided.held_up_by.extend(passage.held_up_by(app, waits_for));
        }
    }
    Ok(divided)
}

/// Puts the sign-ups back, then the activity. Tells whether it did: another run may be at it.
async fn bring_back(app: &App, run: Run, id: ActivityId) -> Result<bool, StepError> {
    let Some(comparing) = app.store.lock_comparison(id).await? else { return Ok(false) };
    let lost = app.reservations.standing(id).await?.capacity.is_none();
    let found = if lost {
        Some(comparison::compare_at_rest(&app.store, &app.reservations, id, run.deadline).await?)
    } else {
        None
    };
    shared::fail_point!("rebuild.before-forget");
    // Before it is there again: a note that stayed would stand for the next loss too, whose barrier it takes for passed.
    app.reservations.forget_missing(id).await?;
    if let Some(found) = found {
        shared::fail_point!("rebuild.before-launch");
        let mut lock = app.store.lock_activity(id).await?;
        let taken = comparison::launch(&app.reservations, &mut lock, &found).await?;
        shared::fail_point!("rebuild.after-launch");
        lock.release().await?;
        tracing::warn!(activity_id = %id, taken, "an activity that redis had lost is back");
    }
    comparing.release().await?;
    Ok(true)
}

/// An archived activity comes back without its sign-ups.
async fn bury(app: &App, stored: &StoredActivity) -> Result<(), StepError> {
    app.reservations.launch(stored.id, &stored.activity, stored.active.into(), 0).await?;
    shared::fail_point!("rebuild.before-archive");
    app.reservations.archive(stored.id, std::time::Duration::ZERO).await?;
    Ok(())
}
