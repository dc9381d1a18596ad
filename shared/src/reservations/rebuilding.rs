//! Which activities Redis has lost, and whether the queue has run out since.

use super::replies::malformed;
use super::{Reservations, ReservationsError};
use crate::domain::ActivityId;
use crate::message::Barrier;

/// The hash that says since when activities are missing.
pub const REBUILD_KEY: &str = "rebuild";

/// The most activities that one call of [`Reservations::notice`] takes.
pub const NOTICE_CHUNK: usize = 1_000;

/// What is missing, beside the barriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noticed {
    /// To be sent now: when it comes out of the queue, so has all that was published before.
    pub barrier: Barrier,
    /// The activities, in the order in which they were named, with what each waits for.
    pub missing: Vec<(ActivityId, Barrier)>,
    /// The latest that came out of the queue.
    pub passed: Option<Barrier>,
}

impl Noticed {
    /// Whether all that was published before this activity was found missing has come out of the queue.
    pub fn has_drained(&self, waits_for: Barrier) -> bool {
        self.passed.is_some_and(|passed| passed >= waits_for)
    }
}

impl Reservations {
    /// Notes that these activities, at most [`NOTICE_CHUNK`], were found missing (`notice.lua`).
    pub async fn notice(&self, ids: &[ActivityId]) -> Result<Noticed, ReservationsError> {
        let Some(first) = ids.first().copied() else {
            return Err(malformed(ActivityId::new(0), "no activity is missing"));
        };
        let mut call = self.scripts.notice.on([REBUILD_KEY]);
        for id in ids {
            call.arg(id.get());
        }
        let reply = self.run(first, &call).await?;
        if reply.outcome() != "noticed" {
            return Err(reply.unknown(first));
        }
        let passed: u64 = reply.element(first, 1)?;
        let mut missing = Vec::with_capacity(ids.len());
        for (index, id) in ids.iter().enumerate() {
            missing.push((*id, Barrier::new(reply.element(*id, index + 2)?)));
        }
        let barrier = Barrier::new(reply.element(first, 0)?);
        Ok(Noticed { barrier, missing, passed: (passed > 0).then_some(Barrier::new(passed)) })
    }

    /// The activities that are noted as missing.
    pub async fn noted_missing(&self) -> Result<Vec<ActivityId>, ReservationsError> {
        let fields: Vec<String> = self.connection.query(redis::cmd("HKEYS").arg(REBUILD_KEY)).await?;
        // The other fields are no numbers.
        Ok(fields.iter().filter_map(|field| field.parse().ok()).collect())
    }

    /// The latest barrier that came out of the queue.
    pub async fn passed(&self) -> Result<Option<Barrier>, ReservationsError> {
        let passed: Option<u64> = self.connection.query(redis::cmd("HGET").arg(REBUILD_KEY).arg("passed")).await?;
        Ok(passed.map(Barrier::new))
    }

    /// Notes that a barrier came out of the queue, and so did all that was published before it.
    pub async fn pass(&self, barrier: Barrier) -> Result<(), ReservationsError> {
        self.connection.query(redis::cmd("HSET").arg(REBUILD_KEY).arg("passed").arg(barrier.get())).await
    }

    /// Forgets that an activity was missing: it is there again.
    pub async fn forget_missing(&self, id: ActivityId) -> Result<(), ReservationsError> {
        self.connection.query(redis::cmd("HDEL").arg(REBUILD_KEY).arg(id.get())).await
    }
}
