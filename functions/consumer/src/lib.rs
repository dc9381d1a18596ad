//! The `consumer` function: moves sign-ups from RabbitMQ into MySQL.
//!
//! The event source delivers at least once, sends a whole batch again after an error, and runs one batch at a time for
//! each queue; with several queues, batches of the same activity meet in MySQL. So a batch fails only where trying again helps; a message that can never succeed is parked; and writing a fact
//! again changes nothing.

pub mod decision;
pub mod event;
mod record;

use std::collections::BTreeMap;

use futures::future::try_join_all;
use lambda_runtime::LambdaEvent;
use serde::Serialize;
use shared::broker::{PublishError, Publisher};
use shared::config::{BrokerConfig, Env, MysqlConfig, RedisConfig};
use shared::domain::{ActivityId, Signup, Timestamp, UserId, Version};
use shared::invocation::working_deadline;
use shared::reservations::{Reservations, ReservationsError};
use shared::store::{Store, StoreError};
use tokio::time::Instant;

use decision::{Batch, Parked};
use record::{Recorded, record};

/// How many parked messages are under way at once.
const PARKING_WINDOW: usize = 64;

/// What one execution environment keeps between batches.
#[derive(Clone)]
pub struct App {
    store: Store,
    reservations: Reservations,
    publisher: Publisher,
}

impl App {
    /// Reads the settings and prepares the clients. Needs a Tokio runtime.
    pub fn from_env(env: &Env<'_>) -> Result<Self, lambda_runtime::Error> {
        Ok(Self {
            store: Store::new(&MysqlConfig::from_env(env)?),
            reservations: Reservations::new(&RedisConfig::from_env(env)?),
            publisher: Publisher::new(&BrokerConfig::from_env(env)?),
        })
    }

    /// Opens the connections, all at once. A part that is down does not keep the function from starting. The broker
    /// is left alone until a message has to be parked.
    pub async fn warm_up(&self) {
        let (mysql, redis) = tokio::join!(self.store.warm_up(), self.reservations.warm_up());
        if let Err(error) = mysql {
            tracing::warn!(%error, "starting without mysql");
        }
        if let Err(error) = redis {
            tracing::warn!(%error, "starting without redis");
        }
    }
}

/// What became of a batch.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Messages in the event.
    pub received: usize,
    /// Rows inserted or replaced.
    pub written: usize,
    /// Facts that MySQL had already, or newer ones.
    pub stale: usize,
    /// Sign-ups beyond the capacity: not in MySQL, and still in the outbox.
    pub surplus: usize,
    /// Messages put aside for an operator.
    pub parked: usize,
    /// Outbox notes dropped.
    pub settled: u64,
}

/// The batch has to come again. What it has done so far stays, and does no harm when it is done again.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The event is of another source.
    #[error(transparent)]
    Event(#[from] event::NotAnMqEvent),
    /// MySQL did not take all of it.
    #[error("the batch was not written in full and will come again: {0}")]
    Store(#[from] StoreError),
    /// A message that can never succeed could not be put aside.
    #[error("a message could not be parked, so the batch will come again: {0}")]
    Park(#[from] PublishError),
}

/// Takes one batch.
pub async fn handle(app: &App, event: LambdaEvent<serde_json::Value>) -> Result<Report, ConsumerError> {
    let deadline = working_deadline(event.context.deadline);
    let deliveries = event::deliveries(&event.payload)?;
    let received = deliveries.len();
    let batch = Batch::of(deliveries, Timestamp::now());

    shared::fail_point!("consumer.before-upsert");
    let recorded = record(&app.store, &batch, app.publisher.topology().queues, deadline).await;
    shared::fail_point!("consumer.before-settle");
    let settled = settle(app, &recorded.known, deadline).await;
    for fact in &recorded.surplus {
        tracing::error!(activity_id = %fact.activity_id, user_id = %fact.user_id, "no room left for a granted place");
    }
    // A batch that comes again brings its poison along, so that is parked last: once, however often MySQL fails.
    if let Some(error) = recorded.stopped_by {
        return Err(error.into());
    }
    let parked: Vec<_> = batch.parked.iter().chain(recorded.refused.iter().map(|(_, parked)| parked)).collect();
    shared::fail_point!("consumer.before-park");
    park(app, &parked, deadline).await?;
    shared::fail_point!("consumer.before-postpone");
    postpone(app, &recorded.refused).await;
    for (queue, barrier) in &batch.barriers {
        if let Err(error) = app.reservations.pass(*queue, *barrier).await {
            tracing::warn!(%error, queue, "a barrier came out of the queue unseen; it will be sent again");
        }
    }
    shared::fail_point!("consumer.before-reply");
    let Recorded { written, stale, surplus, .. } = recorded;
    Ok(Report { received, written, stale, surplus: surplus.len(), parked: parked.len(), settled })
}

/// Drops the outbox notes of what MySQL now holds. Without Redis they stay, and the relay sends the facts again, which
/// does no harm.
async fn settle(app: &App, known: &[(&Signup, Version)], deadline: Instant) -> u64 {
    let mut settled = 0;
    for (activity_id, facts) in by_activity(known.iter().copied()) {
        if Instant::now() >= deadline {
            tracing::warn!("outbox notes stay until the relay finds them in mysql: no time is left");
            break;
        }
        match app.reservations.settle(activity_id, &facts).await {
            Ok(count) => settled += count,
            Err(error @ ReservationsError::Malformed { .. }) => {
                tracing::error!(%error, %activity_id, "outbox notes stay: redis needs an operator");
            }
            Err(error) => {
                tracing::warn!(%error, %activity_id, "outbox notes stay until the relay finds them in mysql");
                break;
            }
        }
    }
    settled
}

/// Lets the relay leave refused facts alone: they are parked, and an operator replays them.
async fn postpone(app: &App, refused: &[(&Signup, Parked)]) {
    for (activity_id, facts) in by_activity(refused.iter().map(|(fact, _)| (*fact, fact.version))) {
        if let Err(error) = app.reservations.postpone(activity_id, &facts).await {
            tracing::warn!(%error, %activity_id, "the relay will send parked facts again");
        }
    }
}

fn by_activity<'a>(
    facts: impl Iterator<Item = (&'a Signup, Version)>,
) -> BTreeMap<ActivityId, Vec<(&'a UserId, Version)>> {
    let mut by_activity: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (fact, version) in facts {
        by_activity.entry(fact.activity_id).or_default().push((&fact.user_id, version));
    }
    by_activity
}

async fn park(app: &App, parked: &[&Parked], deadline: Instant) -> Result<(), PublishError> {
    for window in parked.chunks(PARKING_WINDOW) {
        let copies: Vec<_> = window.iter().map(|parked| parked.copy()).collect();
        try_join_all(copies.iter().map(|copy| app.publisher.park(copy, deadline))).await?;
        for Parked { reason, .. } in window {
            tracing::error!(%reason, "a message is parked");
        }
    }
    Ok(())
}
