//! The Amazon MQ event for RabbitMQ, as far as the consumer needs it.
//!
//! Read leniently: whatever one message looks like, it must not fail the batch, which the service would send again
//! and again. See "Using Lambda with Amazon MQ" in the AWS Lambda developer guide.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use shared::broker::REPLAYS_HEADER;

/// One message of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// What it says.
    pub content: Content,
    /// What came with it.
    pub envelope: Envelope,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its body.
    Body(Vec<u8>),
    /// It has none that can be read: what stands in its place.
    Unreadable(Vec<u8>),
}

/// What came with a message, as far as it is kept when the message is put aside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The `type` property.
    pub message_type: Option<String>,
    /// The `message_id` property.
    pub message_id: Option<String>,
    /// The `traceparent` header.
    pub traceparent: Option<String>,
    /// How often an operator has replayed it.
    pub replays: u32,
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
    let content = match message.get("data") {
        Some(Value::String(data)) => match STANDARD.decode(data) {
            Ok(body) => Content::Body(body),
            Err(_) => Content::Unreadable(data.clone().into_bytes()),
        },
        _ => Content::Unreadable(message.to_string().into_bytes()),
    };
    Delivery { content, envelope: message.get("basicProperties").map(envelope).unwrap_or_default() }
}

fn envelope(properties: &Value) -> Envelope {
    let header = |name: &str| properties.get("headers").and_then(|headers| headers.get(name));
    Envelope {
        message_type: properties.get("type").and_then(text),
        message_id: properties.get("messageId").and_then(text),
        traceparent: header("traceparent").and_then(text),
        replays: header(REPLAYS_HEADER).and_then(whole_number).unwrap_or(0),
    }
}

/// Text as it is, or as the event writes it in headers: `{"bytes":[…]}`, signed, since a Java program wrote them.
fn text(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let bytes = value.get("bytes")?.as_array()?.iter().map(|byte| {
        let byte = byte.as_i64()?;
        u8::try_from(byte).ok().or_else(|| i8::try_from(byte).ok().map(i8::cast_unsigned))
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

fn whole_number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| number.try_into().ok()).or_else(|| text(value)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn envelope_of(properties: Value) -> Envelope {
        let event = json!({"rmqMessagesByQueue": {"q::/": [{"basicProperties": properties, "data": ""}]}});
        deliveries(&event).unwrap().remove(0).envelope
    }

    #[test]
    fn the_envelope_is_read_in_every_form_that_the_event_has_for_text_and_numbers() {
        let expected = Envelope {
            message_type: Some("signup.v1".into()),
            message_id: Some("42/alice/7".into()),
            traceparent: Some("00é".into()),
            replays: 3,
        };
        for replays in [json!(3), json!("3"), json!({"bytes": [51]})] {
            let properties = json!({"type": "signup.v1", "messageId": "42/alice/7",
                "headers": {"traceparent": {"bytes": [48, 48, -61, -87]}, "x-replays": replays}});
            assert_eq!(envelope_of(properties), expected);
        }
    }

    #[test]
    fn an_envelope_of_another_form_counts_as_empty_and_fails_nothing() {
        for properties in [
            json!(null),
            json!("text"),
            json!({"type": 5, "messageId": null, "headers": null}),
            json!({"headers": {"traceparent": {"bytes": [300]}, "x-replays": -1}}),
            json!({"headers": {"traceparent": {"bytes": "00"}, "x-replays": {"bytes": [255]}}}),
        ] {
            assert_eq!(envelope_of(properties), Envelope::default());
        }
    }
}
