//! RabbitMQ: publishing with confirms, and the topology that it needs.
//!
//! Publishing is the fast path only. A message that may not have arrived is sent again from the outbox, so this side
//! prefers giving up in time over trying hard: every wait has a deadline, and after a failure the [`breaker`] lets
//! requests pass by without touching the broker.

mod breaker;
mod bulk;
mod link;
mod outgoing;
mod replaying;
mod topology;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::config::{BrokerConfig, Topology};
use crate::domain::Signup;
use crate::endpoint::{Endpoint, SecretsManagerError};
use crate::message::TraceParent;
use breaker::{Breaker, Pass};
pub use bulk::{Depth, LeftOver, Sent};
pub use link::ConnectError;
use link::Link;
use outgoing::OutgoingMessage;
pub use outgoing::{PARKED_REASON_HEADER, ParkedCopy, REPLAYS_HEADER};
pub use replaying::Replayed;
pub use topology::{DELIVERY_LIMIT, DeclareError, declare};

/// The longest that opening a connection may take; it goes on behind the request that started it, while the process
/// runs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a start waits for the broker.
const WARM_UP_WAIT: Duration = Duration::from_secs(1);

/// The longest that parking one message may take: nobody waits for an answer, and it must not be lost.
const PARK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request waits for a connection that was down when it came, so that a broker that hangs costs little.
const PROBE_WAIT: Duration = Duration::from_millis(50);

/// The message may not be in the queue.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// An earlier request failed a moment ago, so the broker was not asked.
    #[error("the broker failed a moment ago and is left alone for now")]
    BreakerOpen,
    /// The broker has an alarm (memory, disk) and takes no messages.
    #[error("the broker takes no messages for now: it has a memory or disk alarm")]
    Blocked,
    /// No connection, or it broke.
    #[error("the connection to the broker failed: {0}")]
    Connection(#[source] lapin::Error),
    /// The login of the broker could not be had.
    #[error("the broker's login is not there: {0}")]
    Login(#[source] SecretsManagerError),
    /// A connection could not be opened in time.
    #[error("the broker did not accept a connection in time")]
    ConnectTimedOut,
    /// No confirm within `PUBLISH_TIMEOUT_MS`.
    #[error("the broker did not confirm within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// No queue is bound for the message: run `provision`.
    #[error("no queue takes the message (exchange {exchange:?}, routing key {routing_key:?}); run provision")]
    Returned {
        /// Where it was published.
        exchange: String,
        /// With this key.
        routing_key: String,
    },
    /// The queue does not exist: run `provision`.
    #[error("the broker has no queue {queue:?}; run provision")]
    NoQueue {
        /// Its name.
        queue: String,
    },
    /// The queue refused the message: it is full.
    #[error("the queue refused the message")]
    Nacked,
}

impl From<ConnectError> for PublishError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Broker(error) => Self::Connection(error),
            ConnectError::Login(error) => Self::Login(error),
        }
    }
}

impl PublishError {
    /// Whether the broker itself is in trouble, as opposed to this one message.
    fn is_broker_failure(&self) -> bool {
        matches!(self, Self::Connection(_) | Self::Login(_) | Self::ConnectTimedOut | Self::TimedOut(_))
    }
}

/// Publishes over one long-lived connection. Clones share it.
#[derive(Clone)]
pub struct Publisher {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    topology: Topology,
    publish_timeout: Duration,
    breaker: Breaker,
    link: Mutex<Option<Arc<Link>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl Publisher {
    /// Prepares a publisher. It connects when first used, or by [`Publisher::warm_up`], so a function starts also
    /// while the broker is down.
    pub fn new(config: &BrokerConfig) -> Self {
        let inner = Inner {
            endpoint: config.endpoint.clone(),
            topology: config.topology.clone(),
            publish_timeout: config.publish_timeout,
            breaker: Breaker::default(),
            link: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The names on the broker.
    pub fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    /// Opens the connection ahead of the first request. A broker that does not accept it in a moment counts as failed.
    pub async fn warm_up(&self) -> Result<(), PublishError> {
        let pass = self.inner.breaker.pass().ok_or(PublishError::BreakerOpen)?;
        match self.connect(WARM_UP_WAIT).await {
            Ok(_) => {
                pass.succeeded();
                Ok(())
            }
            Err(error) => {
                pass.failed(&error);
                Err(error)
            }
        }
    }

    /// Publishes a fact to the sign-up exchange and waits for the confirm, no longer than `PUBLISH_TIMEOUT_MS`.
    pub async fn publish(&self, signup: &Signup, trace: Option<&TraceParent>) -> Result<(), PublishError> {
        self.send(&OutgoingMessage::signup(&self.inner.topology, signup, trace)).await
    }

    /// Publishes a message that can never succeed, as it came, to the parked queue, with the reason in a header, and
    /// waits for the confirm until `deadline`. No request waits behind it, so the breaker has no say.
    pub async fn park(&self, copy: &ParkedCopy<'_>, deadline: Instant) -> Result<(), PublishError> {
        let message = OutgoingMessage::parked(&self.inner.topology, copy);
        let limit = PARK_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
        let parked = timeout(limit, self.send_and_reconnect_once(&message, CONNECT_TIMEOUT)).await;
        let outcome = parked.unwrap_or(Err(PublishError::TimedOut(limit)));
        if outcome.as_ref().is_err_and(PublishError::is_broker_failure)
            && let Some(link) = self.inner.current_link()
        {
            self.discard(&link);
        }
        outcome
    }

    async fn send(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        let pass = self.inner.breaker.pass().ok_or(PublishError::BreakerOpen)?;
        let publish_timeout = self.inner.publish_timeout;
        let wait = if pass.is_probe() { PROBE_WAIT } else { publish_timeout };
        let sent = timeout(publish_timeout, self.send_and_reconnect_once(message, wait)).await;
        let outcome = sent.unwrap_or(Err(PublishError::TimedOut(publish_timeout)));
        match &outcome {
            Err(error) if error.is_broker_failure() => self.failed(pass, error),
            _ => pass.succeeded(),
        }
        outcome
    }

    /// A process that was frozen finds its connection dead, so a broken one is replaced once.
    async fn send_and_reconnect_once(&self, message: &OutgoingMessage, wait: Duration) -> Result<(), PublishError> {
        let link = self.connect(wait).await?;
        match link.publish(message).await {
            Err(PublishError::Connection(_)) => {
                self.discard(&link);
                self.connect(wait).await?.publish(message).await
            }
            outcome => outcome,
        }
    }

    /// A connection that the broker blocked is kept, since it tells when the alarm is over; any other that failed may
    /// be dead.
    fn failed(&self, pass: Pass<'_>, error: &PublishError) {
        let link = self.inner.current_link();
        match link {
            Some(link) if link.is_blocked() => pass.succeeded(),
            Some(link) => {
                self.discard(&link);
                pass.failed(error);
            }
            None => pass.failed(error),
        }
    }

    fn discard(&self, link: &Arc<Link>) {
        self.inner.link_slot().take_if(|current| Arc::ptr_eq(current, link));
    }

    /// The live connection, or a new one. The attempt outlives a request that stops waiting for it.
    async fn connect(&self, wait: Duration) -> Result<Arc<Link>, PublishError> {
        if let Some(link) = self.inner.current_link() {
            return Ok(link);
        }
        let inner = Arc::clone(&self.inner);
        let attempt = tokio::spawn(async move { inner.connect_once().await });
        match timeout(wait, attempt).await {
            Ok(Ok(connected)) => connected,
            _ => Err(PublishError::ConnectTimedOut),
        }
    }
}

impl Inner {
    async fn connect_once(&self) -> Result<Arc<Link>, PublishError> {
        let _one_at_a_time =
            timeout(CONNECT_TIMEOUT, self.connecting.lock()).await.map_err(|_| PublishError::ConnectTimedOut)?;
        if let Some(link) = self.current_link() {
            return Ok(link);
        }
        let link =
            timeout(CONNECT_TIMEOUT, Link::open(&self.endpoint)).await.map_err(|_| PublishError::ConnectTimedOut)??;
        let link = Arc::new(link);
        *self.link_slot() = Some(Arc::clone(&link));
        Ok(link)
    }

    fn current_link(&self) -> Option<Arc<Link>> {
        let mut slot = self.link_slot();
        slot.take_if(|link| !link.is_alive());
        slot.clone()
    }

    fn link_slot(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
