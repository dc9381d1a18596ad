//! Waits until everything granted has reached MySQL.

use std::fmt;
use std::time::{Duration, Instant};

use shared::domain::ActivityId;

use super::Settings;
use super::stores::Stores;

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What was still on its way when the wait ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Underway {
    /// Outbox notes.
    pub outbox: u64,
    /// Messages in the queues.
    pub queued: u64,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// How long it took.
    pub took: Duration,
    /// What is left; nothing, unless the time was over.
    pub left: Underway,
}

impl Underway {
    /// Nothing is on its way.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Underway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outbox notes, {} messages in the queues", self.outbox, self.queued)
    }
}

/// Waits until no sign-up of the activity, or of any, is on its way: no outbox note, no message in a queue. Ends at
/// the limit with what is left then.
///
/// A note is dropped only after its commit, so that an empty outbox means that all rows are there.
pub async fn drain(settings: &Settings, activity: Option<ActivityId>, limit: Duration) -> anyhow::Result<Drained> {
    let begun = Instant::now();
    let mut stores = Stores::connect(settings).await?;
    let ids = match activity {
        Some(id) => [id].into(),
        None => stores.activity_ids().await?,
    };
    loop {
        let mut left = Underway::default();
        for id in &ids {
            left.outbox += stores.reserved(*id).await?.outbox;
        }
        (left.queued, _) = stores.backlog().await?;
        let took = begun.elapsed();
        if left.is_empty() || took >= limit {
            stores.close().await?;
            return Ok(Drained { took, left });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
