//! Sends overdue outbox notes again.
//!
//! A note is overdue where its fact has not reached MySQL in time. With an empty queue it was never delivered, or is in
//! the hands of the consumer, where a second copy does no harm; with a backlog its message may well be waiting its turn,
//! and copies would only make the queue longer. Each queue stands for its own users: one that is stuck does not keep the
//! notes of the others. `claim` puts each note off in the step that hands it out, so two runs send it once; a run that
//! ends before it has sent them leaves them to a later one.

use std::collections::BTreeMap;

use shared::comparison::Mode;
use shared::domain::{ActivityId, Signup, Timestamp, UserId};
use shared::reservations::CLAIM_CHUNK;
use tokio::time::Instant;

use crate::aside::Aside;
use crate::report::{Relayed, StepError};
use crate::{App, Run};

const STEP: &str = "relay";

/// Finds the overdue notes and sends their facts, until there are no more or the time is over.
pub(crate) async fn relay(app: &App, run: Run, aside: &mut Aside) -> Result<Relayed, StepError> {
    let depth = app.publisher.depth(run.deadline).await?;
    // The later of two clocks, since either may be off: a note that is claimed early is a message more, one that is never
    // claimed is a place lost.
    let now = app.reservations.time().await?.max(Timestamp::now());
    let send = run.mode == Mode::Mend && depth.queued.contains(&Some(0));
    let report = Relayed {
        backlog: depth.queued.iter().flatten().copied().fold(0, u32::saturating_add),
        backlogs: depth.queued,
        parked: depth.parked,
        missing: depth.missing,
        ..Relayed::default()
    };
    let mut relay = Relay { app, run, aside, now, claimed: Vec::new(), report };
    match run.only {
        Some(id) => relay.activities(&[id], send).await?,
        None => {
            let mut cursor = 0;
            loop {
                let (next, ids) = app.reservations.known_ids(cursor).await?;
                relay.activities(&ids, send).await?;
                cursor = next;
                if cursor == 0 || Instant::now() >= run.deadline {
                    break;
                }
            }
        }
    }
    relay.send().await?;
    let mut report = relay.report;
    // The broker logs each question for a queue that is not there, so nobody asks while all is well: what waits in one beyond the
    // number has overdue notes.
    if report.overdue > 0 {
        match app.publisher.left_over(run.deadline).await {
            Ok(left_over) => {
                report.left_over = left_over.iter().map(|queue| queue.messages).fold(0, u32::saturating_add)
            }
            // The relay is done all the same, perhaps at its last moment.
            Err(error) => tracing::warn!(%error, "the queues beyond those in use were not looked at"),
        }
    }
    Ok(report)
}

struct Relay<'a> {
    app: &'a App,
    run: Run,
    aside: &'a mut Aside,
    now: Timestamp,
    /// Facts whose notes were put off, to be sent.
    claimed: Vec<Signup>,
    report: Relayed,
}

impl Relay<'_> {
    async fn activities(&mut self, ids: &[ActivityId], send: bool) -> Result<(), StepError> {
        let overdue = self.app.reservations.overdue(ids, self.now).await?;
        for (id, overdue) in ids.iter().zip(overdue) {
            let overdue = self.aside.unless_damaged(STEP, *id, overdue)?.unwrap_or(0);
            self.report.overdue += overdue;
            if send && overdue > 0 {
                self.activity(*id, overdue).await?;
            }
        }
        Ok(())
    }

    async fn activity(&mut self, id: ActivityId, overdue: u64) -> Result<(), StepError> {
        let mut left = overdue;
        while left > 0 && Instant::now() < self.run.deadline {
            let claimed = self.app.reservations.claim(id, self.now).await;
            let Some(claimed) = self.aside.unless_damaged(STEP, id, claimed)? else { return Ok(()) };
            shared::fail_point!("relay.after-claim");
            left = left.saturating_sub(CLAIM_CHUNK as u64);
            self.report.damaged += claimed.damaged;
            self.report.oldest_ms = self.report.oldest_ms.max(claimed.oldest_ms);
            let (due, waiting): (Vec<_>, Vec<_>) =
                claimed.signups.into_iter().partition(|fact| self.has_empty_queue(&fact.user_id));
            self.claimed.extend(due);
            // Behind the notes that are due now, so this run does not come upon them again.
            let waiting: Vec<&UserId> = waiting.iter().map(|fact| &fact.user_id).collect();
            self.app.reservations.unclaim(id, &waiting, self.now).await?;
            if self.claimed.len() >= CLAIM_CHUNK {
                self.send().await?;
            }
        }
        Ok(())
    }

    fn has_empty_queue(&self, user_id: &UserId) -> bool {
        let queue = self.app.publisher.topology().shard_of(user_id);
        self.report.backlogs.get(usize::from(queue)) == Some(&Some(0))
    }

    /// What cannot be sent becomes due again at once.
    async fn send(&mut self) -> Result<(), StepError> {
        let claimed = std::mem::take(&mut self.claimed);
        if claimed.is_empty() {
            return Ok(());
        }
        let sent = self.app.publisher.publish_all(&claimed, self.run.deadline).await;
        shared::fail_point!("relay.after-publish");
        let mut unsent = BTreeMap::<ActivityId, Vec<&UserId>>::new();
        for (fact, confirmed) in claimed.iter().zip(sent.confirmed) {
            if confirmed {
                self.report.sent += 1;
            } else {
                unsent.entry(fact.activity_id).or_default().push(&fact.user_id);
            }
        }
        for (id, users) in unsent {
            self.app.reservations.unclaim(id, &users, self.now).await?;
        }
        sent.failure.map_or(Ok(()), |error| Err(error.into()))
    }
}
