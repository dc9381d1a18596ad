//! Many messages at once, for those who do not stand in a request: no breaker, pipelined confirms, one deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, ErrorKind};
use tokio::time::{Instant, timeout, timeout_at};

use super::{CONNECT_TIMEOUT, Link, OutgoingMessage, PublishError, Publisher};
use crate::domain::Signup;
use crate::message::Barrier;

/// How many messages wait for their confirms at once.
const WINDOW: usize = 512;

/// The longest that one confirm, or one answer about a queue, may take.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// AMQP 0-9-1: no such queue.
const NOT_FOUND: u16 = 404;

/// Messages in a queue that wait to be delivered. Those that a consumer holds are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// In the queue of sign-ups.
    pub queued: u32,
    /// In the parked queue.
    pub parked: u32,
}

/// What became of many messages.
#[derive(Debug)]
pub struct Sent {
    /// Whether the broker has each, in their order.
    pub confirmed: Vec<bool>,
    /// Why those did not arrive that did not; none if all did.
    pub failure: Option<PublishError>,
}

impl Publisher {
    /// Publishes facts and waits for every confirm, until `deadline`. After a failure that will meet the next message
    /// too, the rest is not tried.
    pub async fn publish_all(&self, signups: &[Signup], deadline: Instant) -> Sent {
        let messages = signups.iter().map(|signup| OutgoingMessage::signup(&self.inner.topology, signup, None));
        self.send_all(messages.collect(), deadline).await
    }

    /// Publishes a barrier behind all that was published before it.
    pub async fn publish_barrier(&self, barrier: Barrier, deadline: Instant) -> Result<(), PublishError> {
        let message = OutgoingMessage::barrier(&self.inner.topology, barrier);
        self.send_all(vec![message], deadline).await.failure.map_or(Ok(()), Err)
    }

    /// How many messages wait in both queues.
    pub async fn depth(&self, deadline: Instant) -> Result<Depth, PublishError> {
        let channel = self.open_channel(deadline).await?;
        let topology = &self.inner.topology;
        let depth = Depth {
            queued: ready(&channel, &topology.queue, deadline).await?,
            parked: ready(&channel, &topology.parked_queue(), deadline).await?,
        };
        close(channel);
        Ok(depth)
    }

    pub(super) async fn send_all(&self, messages: Vec<OutgoingMessage>, deadline: Instant) -> Sent {
        let link = match self.connect_by(deadline).await {
            Ok(link) => link,
            Err(error) => return Sent { confirmed: vec![false; messages.len()], failure: Some(error) },
        };
        let failure: Mutex<Option<PublishError>> = Mutex::default();
        let failure_slot = || failure.lock().unwrap_or_else(PoisonError::into_inner);
        let send = async |message: OutgoingMessage| {
            // A full queue refuses one message and may take the next; anything else meets them all.
            if failure_slot().as_ref().is_some_and(|error| !matches!(error, PublishError::Nacked)) {
                return false;
            }
            let by = deadline.min(Instant::now() + ANSWER_TIMEOUT);
            let sent = timeout_at(by, link.publish(&message)).await;
            match sent.unwrap_or(Err(PublishError::TimedOut(ANSWER_TIMEOUT))) {
                Ok(()) => true,
                Err(error) => {
                    let mut failure = failure_slot();
                    if failure.as_ref().is_none_or(|error| matches!(error, PublishError::Nacked)) {
                        *failure = Some(error);
                    }
                    false
                }
            }
        };
        let confirmed = stream::iter(messages).map(send).buffered(WINDOW).collect().await;
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        if failure.as_ref().is_some_and(PublishError::is_broker_failure) {
            self.discard(&link);
        }
        Sent { confirmed, failure }
    }

    pub(super) async fn connect_by(&self, deadline: Instant) -> Result<Arc<Link>, PublishError> {
        self.connect(CONNECT_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()))).await
    }

    /// A channel of its own on the connection, since a refusal ends a channel.
    pub(super) async fn open_channel(&self, deadline: Instant) -> Result<Channel, PublishError> {
        let link = self.connect_by(deadline).await?;
        let opened = timeout(ANSWER_TIMEOUT, link.create_channel()).await;
        let channel = opened.unwrap_or(Err(PublishError::TimedOut(ANSWER_TIMEOUT)));
        if channel.is_err() {
            self.discard(&link);
        }
        channel
    }
}

/// Messages in a queue that wait to be delivered.
pub(super) async fn ready(channel: &Channel, queue: &str, deadline: Instant) -> Result<u32, PublishError> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let by = deadline.min(Instant::now() + ANSWER_TIMEOUT);
    let declared = timeout_at(by, declared).await.map_err(|_| PublishError::TimedOut(ANSWER_TIMEOUT))?;
    declared.map(|queue| queue.message_count()).map_err(|error| match error.kind() {
        ErrorKind::ProtocolError(refusal) if refusal.get_id() == NOT_FOUND => {
            PublishError::NoQueue { queue: queue.to_owned() }
        }
        _ => PublishError::Connection(error),
    })
}

/// Leaves a channel without waiting for the broker's word.
pub(super) fn close(channel: Channel) {
    tokio::spawn(timeout(ANSWER_TIMEOUT, async move { channel.close(200, "done".into()).await }));
}
