//! Many messages at once, for those who do not stand in a request: no breaker, pipelined confirms, one deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, ErrorKind};
use tokio::time::{Instant, timeout, timeout_at};

use super::{CONNECT_TIMEOUT, Link, OutgoingMessage, PublishError, Publisher};
use crate::config::MAX_QUEUES;
use crate::domain::Signup;
use crate::message::Barrier;

/// How many messages wait for their confirms at once.
const WINDOW: usize = 512;

/// The longest that one confirm, or one answer about a queue, may take.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// AMQP 0-9-1: no such queue.
const NOT_FOUND: u16 = 404;

/// Messages in a queue that wait to be delivered, where there is such a queue. Those that a consumer holds are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// In each queue of sign-ups.
    pub queued: Vec<Option<u32>>,
    /// In the parked queue.
    pub parked: Option<u32>,
    /// The names of queues that are not there: run `provision`.
    pub missing: Vec<String>,
}

/// A queue of sign-ups that is there, whatever `SIGNUP_QUEUES` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOver {
    /// Its number.
    pub queue: u16,
    /// Its name.
    pub name: String,
    /// Messages that wait to be delivered.
    pub messages: u32,
    /// Those who take its messages, and may hold some.
    pub consumers: u32,
}

impl LeftOver {
    /// Whether something may be in it, or in the hands of a consumer.
    pub fn is_in_use(&self) -> bool {
        self.messages > 0 || self.consumers > 0
    }
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

    /// Publishes a barrier in each of these queues, behind all that was published there before it.
    pub async fn publish_barrier(
        &self,
        barrier: Barrier,
        queues: &[u16],
        deadline: Instant,
    ) -> Result<(), PublishError> {
        let messages = queues.iter().map(|queue| OutgoingMessage::barrier(&self.inner.topology, barrier, *queue));
        self.send_all(messages.collect(), deadline).await.failure.map_or(Ok(()), Err)
    }

    /// How many messages wait in each queue.
    pub async fn depth(&self, deadline: Instant) -> Result<Depth, PublishError> {
        let topology = &self.inner.topology;
        let mut depth = Depth::default();
        for queue in topology.queue_names() {
            depth.queued.push(self.look_at(&queue, deadline).await?.map(|(messages, _)| messages));
        }
        depth.parked = self.look_at(&topology.parked_queue(), deadline).await?.map(|(messages, _)| messages);
        let all = topology.queue_names().into_iter().zip(depth.queued.iter().copied());
        let all = all.chain([(topology.parked_queue(), depth.parked)]);
        depth.missing = all.filter(|(_, messages)| messages.is_none()).map(|(name, _)| name).collect();
        Ok(depth)
    }

    /// Queues beyond `SIGNUP_QUEUES` that are there all the same, since the number was higher once, or is about to be.
    pub async fn left_over(&self, deadline: Instant) -> Result<Vec<LeftOver>, PublishError> {
        let topology = &self.inner.topology;
        let mut found = Vec::new();
        for queue in topology.queues..MAX_QUEUES {
            let name = topology.queue_name(queue);
            if let Some((messages, consumers)) = self.look_at(&name, deadline).await? {
                found.push(LeftOver { queue, name, messages, consumers });
            }
        }
        Ok(found)
    }

    /// Messages that wait in this queue, and its consumers, if there is such a queue.
    async fn look_at(&self, queue: &str, deadline: Instant) -> Result<Option<(u32, u32)>, PublishError> {
        // The answer that there is none ends the channel.
        let channel = self.open_channel(deadline).await?;
        match look_at(&channel, queue, deadline).await {
            Ok(looked) => {
                close(channel);
                Ok(Some(looked))
            }
            Err(PublishError::NoQueue { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn send_all(&self, messages: Vec<OutgoingMessage>, deadline: Instant) -> Sent {
        let link = match self.connect_by(deadline).await {
            Ok(link) => link,
            Err(error) => return Sent { confirmed: vec![false; messages.len()], failure: Some(error) },
        };
        let failure: Mutex<Option<PublishError>> = Mutex::default();
        let failure_slot = || failure.lock().unwrap_or_else(PoisonError::into_inner);
        let send = async |message: OutgoingMessage| {
            // A full or missing queue refuses its own messages, and the next may be for another; anything else meets them
            // all.
            if failure_slot().as_ref().is_some_and(|error| !is_of_one_queue(error)) {
                return false;
            }
            let by = deadline.min(Instant::now() + ANSWER_TIMEOUT);
            let sent = timeout_at(by, link.publish(&message)).await;
            match sent.unwrap_or(Err(PublishError::TimedOut(ANSWER_TIMEOUT))) {
                Ok(()) => true,
                Err(error) => {
                    let mut failure = failure_slot();
                    if failure.as_ref().is_none_or(is_of_one_queue) {
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

/// Whether messages for other queues may fare better.
fn is_of_one_queue(error: &PublishError) -> bool {
    matches!(error, PublishError::Nacked | PublishError::Returned { .. })
}

/// Messages in a queue that wait to be delivered.
pub(super) async fn ready(channel: &Channel, queue: &str, deadline: Instant) -> Result<u32, PublishError> {
    Ok(look_at(channel, queue, deadline).await?.0)
}

/// Messages in a queue that wait to be delivered, and consumers of it.
async fn look_at(channel: &Channel, queue: &str, deadline: Instant) -> Result<(u32, u32), PublishError> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let by = deadline.min(Instant::now() + ANSWER_TIMEOUT);
    let declared = timeout_at(by, declared).await.map_err(|_| PublishError::TimedOut(ANSWER_TIMEOUT))?;
    declared.map(|queue| (queue.message_count(), queue.consumer_count())).map_err(|error| match error.kind() {
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
