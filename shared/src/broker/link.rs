//! One connection with one channel in confirm mode.
//!
//! No heartbeats and no automatic recovery: a process that is frozen and thawed, as Lambda does, must find its
//! connection plainly dead, and open a new one.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, Connection, ErrorKind};

use super::{OutgoingMessage, PublishError};
use crate::endpoint::{Endpoint, SecretsManagerError};

/// How long a connection that the broker blocked is trusted to tell when the alarm is over. Nothing is written to it
/// meanwhile, so a dead one would never show.
const LONGEST_BLOCKED: Duration = Duration::from_secs(30);

pub(super) struct Link {
    connection: Connection,
    channel: Channel,
    blocked_since: Mutex<Option<Instant>>,
}

/// AMQP 0-9-1: the login is refused.
const ACCESS_REFUSED: u16 = 403;

/// No connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The broker is not there, or refuses.
    #[error(transparent)]
    Broker(#[from] lapin::Error),
    /// Its login could not be had.
    #[error(transparent)]
    Login(#[from] SecretsManagerError),
}

impl ConnectError {
    fn is_login_refused(&self) -> bool {
        let Self::Broker(error) = self else { return false };
        matches!(error.kind(), ErrorKind::ProtocolError(refusal) if refusal.get_id() == ACCESS_REFUSED)
    }
}

/// Opens a connection without heartbeats.
pub(super) async fn open_connection(endpoint: &Endpoint) -> Result<Connection, ConnectError> {
    let open = |url| async move { Ok(endpoint.amqp_connection(&url, "onrush").await?) };
    endpoint.open(open, ConnectError::is_login_refused).await
}

impl Link {
    pub(super) async fn open(endpoint: &Endpoint) -> Result<Self, PublishError> {
        let connection = open_connection(endpoint).await?;
        let open = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        let channel = open.await.map_err(PublishError::Connection)?;
        Ok(Self { connection, channel, blocked_since: Mutex::default() })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.connection.status().connected() && self.channel.status().connected() && !self.is_blocked_for_long()
    }

    fn is_blocked_for_long(&self) -> bool {
        let mut since = self.blocked_since.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_blocked() {
            since.get_or_insert_with(Instant::now).elapsed() > LONGEST_BLOCKED
        } else {
            *since = None;
            false
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Another channel on the same connection.
    pub(super) async fn create_channel(&self) -> Result<Channel, PublishError> {
        self.connection.create_channel().await.map_err(PublishError::Connection)
    }

    /// Publishes and waits for the broker's word. Only a positive confirm without a returned message says that a queue
    /// has it: a message that no queue takes is returned first, and confirmed all the same.
    pub(super) async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        if self.is_blocked() {
            return Err(PublishError::Blocked);
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let OutgoingMessage { exchange, routing_key, body, properties } = message;
        let confirm = self
            .channel
            .basic_publish(exchange.as_str().into(), routing_key.as_str().into(), options, body, properties.clone())
            .await
            .map_err(PublishError::Connection)?;
        crate::fail_point!("publish.before-confirm");
        match confirm.await.map_err(PublishError::Connection)? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
                Err(PublishError::Returned { exchange: exchange.clone(), routing_key: routing_key.clone() })
            }
            Confirmation::Nack(None) | Confirmation::NotRequested => Err(PublishError::Nacked),
        }
    }
}
