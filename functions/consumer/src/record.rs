//! Writes the facts of a batch into MySQL, chunk by chunk.

use std::collections::VecDeque;
use std::time::Duration;

use shared::domain::{Signup, Version};
use shared::message;
use shared::store::{Store, StoreError, UPSERT_CHUNK, Upserted};
use tokio::time::{Instant, sleep};

use crate::decision::{Batch, Parked};
use crate::event::Envelope;

/// What MySQL holds after the batch.
#[derive(Debug, Default)]
pub(crate) struct Recorded<'a> {
    pub(crate) written: usize,
    pub(crate) stale: usize,
    /// Each fact that MySQL holds, with the version that it has.
    pub(crate) known: Vec<(&'a Signup, Version)>,
    /// Sign-ups beyond the capacity.
    pub(crate) surplus: Vec<&'a Signup>,
    /// Facts that MySQL refuses for good, with what to put aside.
    pub(crate) refused: Vec<(&'a Signup, Parked)>,
    /// Why the rest of the batch was not tried.
    pub(crate) stopped_by: Option<StoreError>,
}

impl<'a> Recorded<'a> {
    fn add(&mut self, upserted: Upserted<'a>) {
        let Upserted { written, stale, surplus } = upserted;
        self.written += written.len();
        self.stale += stale.len();
        self.known.extend(written.into_iter().map(|fact| (fact, fact.version)));
        self.known.extend(stale);
        self.surplus.extend(surplus);
    }
}

/// How long sign-ups that found no room wait for cancellations that are on their way in another queue.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// How many of them are tried again, one by one. The others have their outbox notes.
const MOST_TRIED_AGAIN: usize = 100;

/// Writes the facts, the cancellations first. A chunk that holds a refused row is halved until the row stands alone.
/// With several `queues` the cancellation that makes room for a sign-up may come just after it.
pub(crate) async fn record<'a>(store: &Store, batch: &'a Batch, queues: u16, deadline: Instant) -> Recorded<'a> {
    let mut recorded = record_once(store, batch, deadline).await;
    let may_wait = recorded.stopped_by.is_none() && Instant::now() + ROOM_WAIT < deadline;
    if queues > 1 && may_wait && !recorded.surplus.is_empty() {
        sleep(ROOM_WAIT).await;
        let crowded = std::mem::take(&mut recorded.surplus);
        let (again, others) = crowded.split_at(MOST_TRIED_AGAIN.min(crowded.len()));
        for fact in again {
            match store.upsert(std::slice::from_ref(*fact), deadline).await {
                Ok(upserted) => recorded.add(upserted),
                Err(_) => recorded.surplus.push(fact),
            }
        }
        recorded.surplus.extend(others);
    }
    recorded
}

async fn record_once<'a>(store: &Store, batch: &'a Batch, deadline: Instant) -> Recorded<'a> {
    let mut recorded = Recorded::default();
    let chunks = batch.cancellations.chunks(UPSERT_CHUNK).chain(batch.signups.chunks(UPSERT_CHUNK));
    let mut chunks: VecDeque<&[Signup]> = chunks.collect();
    // Each pass takes a chunk away or halves it, so the loop ends.
    while let Some(chunk) = chunks.pop_front() {
        match store.upsert(chunk, deadline).await {
            Ok(upserted) => recorded.add(upserted),
            Err(StoreError::RowRefused(refusal)) => match chunk {
                [fact] => recorded.refused.push((fact, refused(batch, fact, &refusal.to_string()))),
                _ => {
                    let (first, second) = chunk.split_at(chunk.len() / 2);
                    chunks.push_front(second);
                    chunks.push_front(first);
                }
            },
            Err(error) => {
                recorded.stopped_by = Some(error);
                break;
            }
        }
    }
    recorded
}

fn refused(batch: &Batch, fact: &Signup, refusal: &str) -> Parked {
    let envelope = Envelope {
        message_type: Some(message::MESSAGE_TYPE.to_owned()),
        message_id: Some(message::message_id(fact)),
        traceparent: None,
        replays: batch.replays.get(&(fact.activity_id, fact.user_id.clone())).copied().unwrap_or(0),
    };
    Parked { body: message::to_json(fact), reason: format!("mysql refuses the row: {refusal}"), envelope }
}
