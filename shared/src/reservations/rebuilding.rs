//! Which activities Redis has lost, and whether the queues have run out since.

use super::replies::malformed;
use super::{Reservations, ReservationsError};
use crate::config::MAX_QUEUES;
use crate::domain::ActivityId;
use crate::message::Barrier;

/// The hash that says since when activities are missing.
pub const REBUILD_KEY: &str = "rebuild";

/// The most activities that one call of [`Reservations::notice`] takes.
pub const NOTICE_CHUNK: usize = 1_000;

/// What is missing, beside the barriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noticed {
    /// To be sent now: when it came out of every queue, so has all that was published before.
    pub barrier: Barrier,
    /// The activities, in the order in which they were named, with what each waits for.
    pub missing: Vec<(ActivityId, Barrier)>,
}

/// The latest barrier that came out of each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed([Option<Barrier>; MAX_QUEUES as usize]);

impl Passed {
    /// Whether this barrier, or a later one, has come out of the queue.
    pub fn through(&self, queue: u16, barrier: Barrier) -> bool {
        self.0.get(usize::from(queue)).is_some_and(|passed| *passed >= Some(barrier))
    }

    /// The same for all of these queues.
    pub fn through_all(&self, queues: &[u16], barrier: Barrier) -> bool {
        queues.iter().all(|queue| self.through(*queue, barrier))
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
        let mut missing = Vec::with_capacity(ids.len());
        for (index, id) in ids.iter().enumerate() {
            missing.push((*id, Barrier::new(reply.element(*id, index + 1)?)));
        }
        let barrier = Barrier::new(reply.element(first, 0)?);
        Ok(Noticed { barrier, missing })
    }

    /// The activities that are noted as missing.
    pub async fn noted_missing(&self) -> Result<Vec<ActivityId>, ReservationsError> {
        let fields: Vec<String> = self.connection.query(redis::cmd("HKEYS").arg(REBUILD_KEY)).await?;
        // The other fields are no numbers.
        Ok(fields.iter().filter_map(|field| field.parse().ok()).collect())
    }

    /// The latest barrier that came out of each queue.
    pub async fn passed(&self) -> Result<Passed, ReservationsError> {
        let mut get = redis::cmd("HMGET");
        get.arg(REBUILD_KEY);
        (0..MAX_QUEUES).for_each(|queue| {
            get.arg(passed_field(queue));
        });
        let passed: [Option<u64>; MAX_QUEUES as usize] = self.connection.query(&get).await?;
        Ok(Passed(passed.map(|number| number.map(Barrier::new))))
    }

    /// Notes that a barrier came out of this queue, and so did all that was published there before it.
    pub async fn pass(&self, queue: u16, barrier: Barrier) -> Result<(), ReservationsError> {
        let mut set = redis::cmd("HSET");
        set.arg(REBUILD_KEY).arg(passed_field(queue)).arg(barrier.get());
        self.connection.query(&set).await
    }

    /// Forgets that an activity was missing: it is there again.
    pub async fn forget_missing(&self, id: ActivityId) -> Result<(), ReservationsError> {
        self.connection.query(redis::cmd("HDEL").arg(REBUILD_KEY).arg(id.get())).await
    }
}

/// `passed` for queue 0, `passed.1`, …
fn passed_field(queue: u16) -> String {
    if queue == 0 { "passed".to_owned() } else { format!("passed.{queue}") }
}
