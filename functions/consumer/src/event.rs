//! The Amazon MQ event for RabbitMQ, as far as the consumer needs it.
//!
//! Read leniently: whatever one message looks like, it must not fail the batch, which the service would send again
//! and again. See "Using Lambda with Amazon MQ" in the AWS Lambda developer guide.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// One message of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Its body.
    Body(Vec<u8>),
    /// It has none that can be read: what stands in its place.
    Unreadable(Vec<u8>),
}

/// The event is none of Amazon MQ for RabbitMQ.
#[derive(Debug, thiserror::Error)]
#[error("the event has no rmqMessagesByQueue; the consumer is to be invoked by an Amazon MQ event source for RabbitMQ")]
pub struct NotAnMqEvent;

/// The messages of all queues in the event, in their order.
pub fn deliveries(event: &Value) -> Result<Vec<Delivery>, NotAnMqEvent> {
    let queues = event.get("rmqMessagesByQueue").and_then(Value::as_object).ok_or(NotAnMqEvent)?;
    let messages = queues.values().flat_map(|messages| messages.as_array().map_or(&[][..], Vec::as_slice));
    Ok(messages.map(delivery).collect())
}

fn delivery(message: &Value) -> Delivery {
    match message.get("data") {
        Some(Value::String(data)) => match STANDARD.decode(data) {
            Ok(body) => Delivery::Body(body),
            Err(_) => Delivery::Unreadable(data.clone().into_bytes()),
        },
        _ => Delivery::Unreadable(message.to_string().into_bytes()),
    }
}
