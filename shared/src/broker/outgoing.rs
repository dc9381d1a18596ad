//! A message with all that the broker and the Lambda event need.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use crate::config::Topology;
use crate::domain::{Signup, Timestamp};
use crate::message::{self, TraceParent};

/// The header of a parked message that says why it was parked.
pub const PARKED_REASON_HEADER: &str = "x-parked-reason";

/// The longest reason, in bytes.
const MAX_REASON_BYTES: usize = 500;

/// Survives a restart of the broker.
const PERSISTENT: u8 = 2;

pub(super) struct OutgoingMessage {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) body: Vec<u8>,
    pub(super) properties: BasicProperties,
}

impl OutgoingMessage {
    pub(super) fn signup(topology: &Topology, signup: &Signup, trace: Option<&TraceParent>) -> Self {
        let mut headers = FieldTable::default();
        if let Some(trace) = trace {
            headers.insert("traceparent".into(), AMQPValue::LongString(trace.as_str().into()));
        }
        Self {
            exchange: topology.exchange.clone(),
            routing_key: topology.routing_key.clone(),
            body: message::to_json(signup),
            properties: properties(headers)
                .with_content_type(message::CONTENT_TYPE.into())
                .with_type(message::MESSAGE_TYPE.into())
                .with_message_id(short(&message::message_id(signup)).into()),
        }
    }

    pub(super) fn parked(topology: &Topology, body: &[u8], reason: &str) -> Self {
        let mut headers = FieldTable::default();
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)];
        headers.insert(PARKED_REASON_HEADER.into(), AMQPValue::LongString(reason.into()));
        Self {
            exchange: topology.dead_letter_exchange(),
            routing_key: topology.routing_key.clone(),
            body: body.to_vec(),
            properties: properties(headers),
        }
    }
}

/// The Lambda event types refuse a message without a delivery mode or priority, so both are always set.
fn properties(headers: FieldTable) -> BasicProperties {
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_priority(0)
        .with_timestamp(Timestamp::now().as_ms() / 1_000)
        .with_headers(headers)
}

/// AMQP short strings hold 255 bytes.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(255)]
}
