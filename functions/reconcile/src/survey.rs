//! Looks at every activity once, by counts only, and finds what there is to do.

use std::collections::BTreeSet;

use shared::comparison::{self, Mode};
use shared::domain::{ActivityId, SignupStatus, Timestamp, UserId};
use shared::reservations::Standing;
use shared::store::StoredActivity;
use tokio::time::Instant;

use crate::report::{StepError, Surveyed};
use crate::{App, Run};

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
    /// More holders than places, or so it seems.
    pub(crate) crowded: Vec<StoredActivity>,
    /// Ended long enough ago to be archived.
    pub(crate) ended: Vec<ActivityId>,
}

/// Looks at the activities that are not archived, or at one of them.
pub(crate) async fn survey(app: &App, run: Run) -> Result<Survey, StepError> {
    let (mut survey, mut known, mut after) = (Survey::default(), Vec::new(), None);
    let mut routine = Vec::new();
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
        look(app, run, page, &mut survey, &mut routine).await?;
        if run.only.is_some() || after.is_none() || Instant::now() >= run.deadline {
            break;
        }
    }
    if run.only.is_none() && run.mode == Mode::Mend && !app.reservations.remembers(&known).await? {
        // All at once: with some of them known, the others would be taken for unknown.
        app.reservations.remember(&known).await?;
    }
    // Those that were compared longest ago come first.
    routine.sort_unstable();
    survey.doubtful.extend(routine.into_iter().map(|(_, id)| id));
    Ok(survey)
}

async fn look(
    app: &App,
    run: Run,
    page: Vec<StoredActivity>,
    survey: &mut Survey,
    routine: &mut Vec<(u64, ActivityId)>,
) -> Result<(), StepError> {
    // MySQL's count was read before, Redis's comes now: whoever is in it and not in MySQL's has a note.
    let ids: Vec<_> = page.iter().map(|stored| stored.id).collect();
    let standings = app.reservations.standings(&ids).await?;
    let now = Timestamp::now().as_ms();
    let retention_ms = u64::try_from(app.archive_after.as_millis()).unwrap_or(u64::MAX);
    for (stored, standing) in page.into_iter().zip(standings) {
        survey.summary.activities += 1;
        survey.summary.outbox += standing.outbox;
        let Some(capacity) = standing.capacity else {
            if stored.loaded {
                survey.summary.missing += 1;
                survey.missing.push(stored);
            }
            continue;
        };
        if stored.archived {
            if !standing.archived {
                // A run ended before Redis was told, or Redis lost the word.
                survey.missing.push(stored);
            }
            continue;
        }
        if standing.archived {
            // A run ended before it told MySQL. Receipts that have expired are not lost.
            survey.ended.push(stored.id);
            continue;
        }
        if !stored.loaded && run.mode == Mode::Mend {
            mark_loaded(app, stored.id).await?;
        }
        if stored.activity.closes_at.is_some_and(|at| at.as_ms().saturating_add(retention_ms) < now) {
            survey.ended.push(stored.id);
        }
        let compared_ms = stored.compared_at.map_or(0, Timestamp::as_ms);
        if run.only.is_some() {
            survey.doubtful.push(stored.id);
        } else if disagrees(app, &stored, standing).await? {
            survey.summary.disagreeing += 1;
            survey.doubtful.push(stored.id);
        } else if compared_ms.saturating_add(COMPARE_EVERY_MS) < now {
            routine.push((compared_ms, stored.id));
        }
        if standing.taken > u64::from(capacity) || run.only.is_some() {
            survey.crowded.push(stored);
        }
    }
    Ok(())
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

/// A change of the activity ended after Redis had it, and before MySQL was told so.
async fn mark_loaded(app: &App, id: ActivityId) -> Result<(), StepError> {
    let mut lock = app.store.lock_activity(id).await?;
    lock.mark_loaded().await?;
    lock.release().await?;
    Ok(())
}
