//! Finds how long the oldest sign-up has been on its way to MySQL. MySQL is not asked: it may be what is down.
//!
//! The relay does not tell: it sees notes only while they are due, and puts off those that it sends. So this looks at the
//! receipts beside the notes, due or not.

use shared::domain::{ActivityId, Timestamp, UserId};
use tokio::time::Instant;

use crate::aside::is_about_data;
use crate::report::{StepError, Underway};
use crate::{App, Run};

/// How many activities with notes one run looks at.
const MOST_ACTIVITIES: u64 = 500;

/// How many pages of about 1,000 notes it looks at in each. Of more, these are a sample: Redis hands them out in no order.
const MOST_PAGES: usize = 2;

/// Looks at the notes of all activities, as far as the bounds and the time allow.
pub(crate) async fn underway(app: &App, run: Run) -> Result<Underway, StepError> {
    let (mut report, mut cursor) = (Underway::default(), 0);
    let now = app.reservations.time().await?.max(Timestamp::now());
    loop {
        let (next, ids) = app.reservations.known_ids(cursor).await?;
        let standings = app.reservations.standings(&ids).await?;
        for (id, standing) in ids.into_iter().zip(standings) {
            // Of damaged data the survey tells.
            if standing.map_or(0, |standing| standing.outbox) == 0 {
                continue;
            }
            if report.activities == MOST_ACTIVITIES || Instant::now() >= run.deadline {
                report.skipped += 1;
                continue;
            }
            report.activities += 1;
            let oldest_ms = match oldest_ms(app, id, now).await {
                Err(error) if is_about_data(&error) => continue,
                oldest_ms => oldest_ms?,
            };
            report.oldest_ms = report.oldest_ms.max(oldest_ms);
        }
        cursor = next;
        if cursor == 0 || Instant::now() >= run.deadline {
            return Ok(report);
        }
    }
}

async fn oldest_ms(app: &App, id: ActivityId, now: Timestamp) -> Result<u64, StepError> {
    let (mut oldest_ms, mut cursor) = (0, 0);
    for _ in 0..MOST_PAGES {
        let (next, users) = app.reservations.waiting(id, cursor).await?;
        let users: Vec<&UserId> = users.iter().collect();
        let seen = app.reservations.look(id, &users).await?;
        // A version is the time of its fact.
        let versions = seen.into_iter().filter(|seen| seen.noted).filter_map(|seen| Some(seen.receipt?.ok()?.version));
        let oldest = versions.map(|version| now.as_ms().saturating_sub(version.get())).max();
        oldest_ms = oldest_ms.max(oldest.unwrap_or(0));
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    Ok(oldest_ms)
}
