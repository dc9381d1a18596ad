//! Looks at every activity once, by counts only, and finds what there is to do.

use std::collections::BTreeSet;

use shared::comparison::{self, Mode};
use shared::domain::{ActivityId, SignupStatus, Timestamp, UserId};
use shared::reservations::Standing;
use shared::store::StoredActivity;
use tokio::time::Instant;

use crate::aside::Aside;
use crate::report::{StepError, Surveyed};
use crate::{App, Run};

const STEP: &str = "survey";

/// How many activities are read at once.
const PAGE: u32 = 1_000;

/// How long counts that agree are believed: then people are compared all the same, since counts may agree by chance.
const COMPARE_EVERY_MS: u64 = 60 * 60 * 1_000;

/// Up to so many notes of one activity are read to explain a difference of the counts; beyond, it may be as large as
/// there are notes.
const MOST_NOTES_READ: u64 = 1_000;

/// What there is to do.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) summary: Surveyed,
    /// Lost by Redis.
    pub(crate) missing: Vec<StoredActivity>,
    /// To be compared person by person, the most urgent first.
    pub(crate) doubtful: Vec<ActivityId>,
    /// Not compared for long, with when they were.
    routine: Vec<(u64, ActivityId)>,
    /// More holders than places, or so it seems.
    pub(crate) crowded: Vec<StoredActivity>,
    /// Ended long enough ago to be archived.
    pub(crate) ended: Vec<ActivityId>,
}

/// Looks at the activities that are not archived, or at one of them.
pub(crate) async fn survey(app: &App, run: Run, aside: &mut Aside) -> Result<Survey, StepError> {
    let (mut survey, mut known, mut after) = (Survey::default(), Vec::new(), None);
    if run.mode == Mode::Mend {
        comparison::recall(&app.store, &app.reservations).await?;
    }
    loop {
        let page = match run.only {
            Some(id) => app.store.activity(id).await?.into_iter().collect(),
            None => app.store.activities(after, PAGE).await?,
        };
        after = page.last().map(|last| last.id);
        known.extend(page.iter().filter(|stored| stored.loaded).map(|stored| stored.id));
        look(app, run, page, &mut survey, aside).await?;
        if run.only.is_some() || after.is_none() || Instant::now() >= run.deadline {
            break;
        }
    }
    if run.only.is_none() && run.mode == Mode::Mend && !app.reservations.remembers(&known).await? {
        // All at once: with some of them known, the others would be taken for unknown.
        app.reservations.remember(&known).await?;
    }
    // Those that were compared longest ago come first.
    survey.routine.sort_unstable();
    survey.doubtful.extend(std::mem::take(&mut survey.routine).into_iter().map(|(_, id)| id));
    Ok(survey)
}

async fn look(
    app: &App,
    run: Run,
    page: Vec<StoredActivity>,
    survey: &mut Survey,
    aside: &mut Aside,
) -> Result<(), StepError> {
    let ids: Vec<_> = page.iter().map(|stored| stored.id).collect();
    let standings = app.reservations.standings(&ids).await?;
    for (stored, standing) in page.into_iter().zip(standings) {
        let id = stored.id;
        survey.summary.activities += 1;
        if let Some(standing) = aside.unless_damaged(STEP, id, standing)? {
            let looked = sort_in(app, run, stored, standing, survey).await;
            aside.unless_damaged(STEP, id, looked)?;
        }
    }
    Ok(())
}

/// Finds what there is to do about one activity.
async fn sort_in(
    app: &App,
    run: Run,
    stored: StoredActivity,
    standing: Standing,
    survey: &mut Survey,
) -> Result<(), StepError> {
    survey.summary.outbox += standing.outbox;
    let Some(capacity) = standing.capacity else {
        if stored.loaded {
            survey.summary.missing += 1;
            survey.missing.push(stored);
        }
        return Ok(());
    };
    match (stored.archived, standing.archived) {
        (true, true) => return Ok(()),
        // A run ended before Redis was told, or Redis lost the word.
        (true, false) => {
            survey.missing.push(stored);
            return Ok(());
        }
        // A run ended before it told MySQL. Receipts that have expired are not lost.
        (false, true) => {
            survey.ended.push(stored.id);
            return Ok(());
        }
        (false, false) => {}
    }
    if !stored.loaded && run.mode == Mode::Mend {
        mark_loaded(app, stored.id).await;
    }
    let now_ms = Timestamp::now().as_ms();
    let compared_ms = stored.compared_at.map_or(0, Timestamp::as_ms);
    let over_ms = over_ms(app, &stored).filter(|over_ms| *over_ms < now_ms);
    if over_ms.is_some() {
        survey.ended.push(stored.id);
    }
    if disagrees(app, &stored, standing).await? {
        survey.summary.disagreeing += 1;
        survey.doubtful.push(stored.id);
    } else if run.only.is_some() || over_ms.is_some_and(|over_ms| compared_ms < over_ms) {
        survey.doubtful.push(stored.id);
    } else if compared_ms.saturating_add(COMPARE_EVERY_MS) < now_ms {
        survey.routine.push((compared_ms, stored.id));
    }
    if standing.taken > u64::from(capacity) || run.only.is_some() {
        survey.crowded.push(stored);
    }
    Ok(())
}

/// From when on an activity may be archived.
fn over_ms(app: &App, stored: &StoredActivity) -> Option<u64> {
    let retention_ms = u64::try_from(app.archive_after.as_millis()).unwrap_or(u64::MAX);
    stored.activity.closes_at.map(|at| at.as_ms().saturating_add(retention_ms))
}

/// Whether the counts cannot both be right: whoever is in one of them only must have a note. Counts that were read one
/// after the other prove nothing while people come and go, so they are read again, MySQL's between two readings of Redis
/// that are the same.
async fn disagrees(app: &App, stored: &StoredActivity, standing: Standing) -> Result<bool, StepError> {
    if standing.outbox == 0 && standing.taken == u64::from(stored.active) {
        return Ok(false);
    }
    let before = app.reservations.standing(stored.id).await?;
    let Some(recorded) = app.store.activity(stored.id).await? else { return Ok(false) };
    let difference = i64::try_from(before.taken).unwrap_or(i64::MAX) - i64::from(recorded.active);
    let explained = if before.outbox <= MOST_NOTES_READ {
        difference == underway(app, stored.id).await?
    } else {
        difference.unsigned_abs() <= before.outbox
    };
    let after = app.reservations.standing(stored.id).await?;
    Ok(before == after && !explained)
}

/// How many places Redis is ahead of MySQL, by those whose notes wait.
async fn underway(app: &App, id: ActivityId) -> Result<i64, StepError> {
    let (mut cursor, mut waiting) = (0, BTreeSet::new());
    loop {
        let (next, users) = app.reservations.waiting(id, cursor).await?;
        waiting.extend(users);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let users: Vec<&UserId> = waiting.iter().collect();
    let seen = app.reservations.look(id, &users).await?;
    let rows = app.store.signups_of(id, &users).await?;
    let hold = seen.iter().filter(|seen| matches!(&seen.receipt, Some(Ok(receipt)) if receipt.is_active())).count();
    let recorded = rows.iter().filter(|row| row.status == SignupStatus::SignedUp).count();
    Ok(i64::try_from(hold).unwrap_or(i64::MAX) - i64::try_from(recorded).unwrap_or(i64::MAX))
}

/// A change of the activity ended after Redis had it, and before MySQL was told so. Somebody who changes it now says so
/// too.
async fn mark_loaded(app: &App, id: ActivityId) {
    let mark = async {
        let mut lock = app.store.lock_activity(id).await?;
        lock.mark_loaded().await?;
        lock.release().await
    };
    if let Err(error) = mark.await {
        tracing::warn!(%error, activity_id = %id, "mysql is told later that redis has the activity");
    }
}
