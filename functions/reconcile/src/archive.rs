//! Lets activities that ended long ago leave Redis. MySQL keeps the record.

use shared::comparison::Mode;
use shared::domain::ActivityId;
use shared::reservations::Archive;
use tokio::time::Instant;

use crate::report::{Archived, StepError};
use crate::survey::Survey;
use crate::{App, Run, compare};

/// Archives what has ended, if both sides agree about everybody.
pub(crate) async fn archive(app: &App, run: Run, survey: &Survey) -> Result<Archived, StepError> {
    let mut report = Archived::default();
    for id in &survey.ended {
        if Instant::now() < run.deadline && one(app, run, *id).await? {
            report.archived.push(*id);
        } else {
            report.held_back.push(*id);
        }
    }
    Ok(report)
}

async fn one(app: &App, run: Run, id: ActivityId) -> Result<bool, StepError> {
    let mut lock = app.store.lock_activity(id).await?;
    let is_archived = app.reservations.standing(id).await?.archived || agrees(app, run, id).await?;
    let mut done = false;
    if is_archived && run.mode == Mode::Mend {
        done = app.reservations.archive(id, app.archive_after).await? == Archive::Archived;
        shared::fail_point!("archive.before-mark");
        if done {
            lock.mark_archived().await?;
        }
    }
    lock.release().await?;
    Ok(done)
}

/// Whether nothing is on its way, and both sides tell the same of everybody.
async fn agrees(app: &App, run: Run, id: ActivityId) -> Result<bool, StepError> {
    let passes = compare::one(app, run, id).await?;
    let last = passes.as_ref().and_then(|passes| passes.last());
    Ok(last.is_some_and(|found| found.is_clean() && !found.busy))
}
