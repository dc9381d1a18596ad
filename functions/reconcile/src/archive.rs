//! Lets activities that ended long ago leave Redis. MySQL keeps the record.

use std::collections::BTreeSet;

use shared::comparison::Mode;
use shared::domain::ActivityId;
use shared::reservations::Archive;
use tokio::time::Instant;

use crate::aside::Aside;
use crate::report::{Archived, StepError};
use crate::survey::Survey;
use crate::{App, Run};

const STEP: &str = "archive";

/// Archives what has ended, if both sides agree about everybody.
pub(crate) async fn archive(
    app: &App,
    run: Run,
    survey: &Survey,
    at_rest: &BTreeSet<ActivityId>,
    aside: &mut Aside,
) -> Result<Archived, StepError> {
    let mut report = Archived::default();
    for id in &survey.ended {
        let in_time = run.mode == Mode::Mend && Instant::now() < run.deadline;
        let done = if in_time { one(app, *id, at_rest.contains(id)).await } else { Ok(false) };
        if aside.unless_damaged(STEP, *id, done)? == Some(true) {
            report.archived.push(*id);
        } else {
            report.held_back.push(*id);
        }
    }
    Ok(report)
}

/// Whoever gives a place back after the comparison leaves a note, which `archive.lua` looks for, until MySQL knows it.
async fn one(app: &App, id: ActivityId, is_at_rest: bool) -> Result<bool, StepError> {
    if !is_at_rest && !app.reservations.standing(id).await?.archived {
        return Ok(false);
    }
    let mut lock = app.store.lock_activity(id).await?;
    let done = app.reservations.archive(id, app.archive_after).await? == Archive::Archived;
    shared::fail_point!("archive.before-mark");
    if done {
        lock.mark_archived().await?;
    }
    lock.release().await?;
    Ok(done)
}
