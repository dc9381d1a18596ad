//! Declares the exchange, the queues and the place for parked messages. A deployment step, not part of a request.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ErrorKind, ExchangeKind};
use tokio::time::timeout;

use super::link::{ConnectError, open_connection};
use crate::config::{BrokerConfig, QueueType, Topology};

/// How often the broker may deliver one message before it is parked: a distant safety net. The consumer parks poison
/// itself, and an hour without MySQL must not use it up.
pub const DELIVERY_LIMIT: i64 = 100_000;

const DECLARE_TIMEOUT: Duration = Duration::from_secs(20);

/// AMQP 0-9-1: the object exists with other arguments.
const PRECONDITION_FAILED: u16 = 406;

/// The topology could not be declared.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// It exists, but otherwise.
    #[error(
        "{object} exists on the broker with other arguments, and was left as it is ({detail}); delete it once it is \
         empty, or set QUEUE_TYPE and the SIGNUP_ names to match it"
    )]
    Different {
        /// What exists.
        object: String,
        /// What the broker said.
        detail: String,
    },
    /// The broker refused.
    #[error("the broker did not declare {object}: {source}")]
    Refused {
        /// What was to be declared.
        object: String,
        /// What the broker said.
        source: lapin::Error,
    },
    /// The broker cannot be reached.
    #[error("the connection to the broker failed: {0}")]
    Connection(#[from] ConnectError),
    /// The broker did not answer.
    #[error("the broker did not declare the topology within {} s", DECLARE_TIMEOUT.as_secs())]
    TimedOut,
}

/// Declares all of it; what exists already and is the same stays as it is.
pub async fn declare(config: &BrokerConfig) -> Result<(), DeclareError> {
    timeout(DECLARE_TIMEOUT, declare_all(config)).await.map_err(|_| DeclareError::TimedOut)?
}

async fn declare_all(config: &BrokerConfig) -> Result<(), DeclareError> {
    let Topology { exchange, routing_key, queue_type, queues, .. } = &config.topology;
    let (dead_letter_exchange, parked_queue) = (config.topology.dead_letter_exchange(), config.topology.parked_queue());
    let connection = open_connection(&config.endpoint).await?;
    let channel = connection.create_channel().await.map_err(ConnectError::from)?;

    declare_exchange(&channel, exchange, ExchangeKind::Direct).await?;
    declare_exchange(&channel, &dead_letter_exchange, ExchangeKind::Fanout).await?;
    declare_queue(&channel, &parked_queue, parked_queue_arguments(*queue_type)).await?;
    bind(&channel, &parked_queue, &dead_letter_exchange, routing_key).await?;
    for queue in 0..*queues {
        let (name, routing_key) = (config.topology.queue_name(queue), config.topology.routing_key_of(queue));
        declare_queue(&channel, &name, queue_arguments(*queue_type, &dead_letter_exchange)).await?;
        bind(&channel, &name, exchange, &routing_key).await?;
    }

    Ok(connection.close(200, "done".into()).await.map_err(ConnectError::from)?)
}

fn queue_arguments(queue_type: QueueType, dead_letter_exchange: &str) -> FieldTable {
    let mut arguments = FieldTable::default();
    let mut text = |name: &'static str, value: &str| {
        arguments.insert(name.into(), AMQPValue::LongString(value.into()));
    };
    text("x-dead-letter-exchange", dead_letter_exchange);
    // Publishers are told when the queue is full; the default drops the oldest message without a word.
    text("x-overflow", "reject-publish");
    match queue_type {
        QueueType::Quorum => {
            text("x-queue-type", "quorum");
            text("x-dead-letter-strategy", "at-least-once");
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
        }
        QueueType::Classic => text("x-queue-type", "classic"),
    }
    arguments
}

fn parked_queue_arguments(queue_type: QueueType) -> FieldTable {
    let mut arguments = FieldTable::default();
    let name = match queue_type {
        QueueType::Quorum => {
            // From 4.0 on the default is 20, and nothing is behind this queue to catch what passes it.
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
            "quorum"
        }
        QueueType::Classic => "classic",
    };
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(name.into()));
    arguments
}

async fn declare_exchange(channel: &Channel, name: &str, kind: ExchangeKind) -> Result<(), DeclareError> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(name.into(), kind, durable, FieldTable::default()).await;
    declared.map_err(|error| explain(format!("exchange {name}"), error))
}

async fn declare_queue(channel: &Channel, name: &str, arguments: FieldTable) -> Result<(), DeclareError> {
    let declared = channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments).await;
    declared.map(|_| ()).map_err(|error| explain(format!("queue {name}"), error))
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, routing_key: &str) -> Result<(), DeclareError> {
    let bound = channel
        .queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await;
    bound.map_err(|error| explain(format!("the binding of {queue} to {exchange}"), error))
}

fn explain(object: String, error: lapin::Error) -> DeclareError {
    match error.kind() {
        ErrorKind::ProtocolError(refusal) if refusal.get_id() == PRECONDITION_FAILED => {
            DeclareError::Different { object, detail: refusal.get_message().to_string() }
        }
        _ => DeclareError::Refused { object, source: error },
    }
}
