//! A message with all that the broker and the Lambda event need.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};

use crate::config::Topology;
use crate::domain::{Signup, Timestamp};
use crate::message::{self, Barrier, TraceParent};

/// The header of a parked message that says why it was parked.
pub const PARKED_REASON_HEADER: &str = "x-parked-reason";

/// The header that says how often an operator has replayed a message.
pub const REPLAYS_HEADER: &str = "x-replays";

/// The header that carries the W3C trace context.
const TRACEPARENT_HEADER: &str = "traceparent";

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

/// A message to put aside: what it said, and what is worth keeping of how it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedCopy<'a> {
    /// The body, byte for byte.
    pub body: &'a [u8],
    /// Why it can never succeed.
    pub reason: &'a str,
    /// Its `type`, if it had one.
    pub message_type: Option<&'a str>,
    /// Its `message_id`, if it had one.
    pub message_id: Option<&'a str>,
    /// Its trace context, if it had one.
    pub traceparent: Option<&'a str>,
    /// How often an operator has replayed it.
    pub replays: u32,
}

impl OutgoingMessage {
    pub(super) fn signup(topology: &Topology, signup: &Signup, trace: Option<&TraceParent>) -> Self {
        let mut headers = FieldTable::default();
        if let Some(trace) = trace {
            headers.insert(TRACEPARENT_HEADER.into(), AMQPValue::LongString(trace.as_str().into()));
        }
        Self {
            exchange: topology.exchange.clone(),
            routing_key: topology.routing_key_of(topology.shard_of(&signup.user_id)),
            body: message::to_json(signup),
            properties: properties(headers)
                .with_content_type(message::CONTENT_TYPE.into())
                .with_type(message::MESSAGE_TYPE.into())
                .with_message_id(short(&message::message_id(signup)).into()),
        }
    }

    pub(super) fn parked(topology: &Topology, copy: &ParkedCopy<'_>) -> Self {
        let mut headers = FieldTable::default();
        let reason = &copy.reason[..copy.reason.floor_char_boundary(MAX_REASON_BYTES)];
        headers.insert(PARKED_REASON_HEADER.into(), AMQPValue::LongString(reason.into()));
        if let Some(trace) = copy.traceparent {
            headers.insert(TRACEPARENT_HEADER.into(), AMQPValue::LongString(trace.into()));
        }
        if copy.replays > 0 {
            headers.insert(REPLAYS_HEADER.into(), AMQPValue::LongUInt(copy.replays));
        }
        let mut properties = properties(headers);
        if let Some(message_type) = copy.message_type {
            properties = properties.with_type(short(message_type).into());
        }
        if let Some(id) = copy.message_id {
            properties = properties.with_message_id(short(id).into());
        }
        Self {
            exchange: topology.dead_letter_exchange(),
            routing_key: topology.routing_key.clone(),
            body: copy.body.to_vec(),
            properties,
        }
    }

    /// A parked message on its way back, as it was, with one more replay counted. It goes to the queue of its user; what
    /// names nobody goes to queue 0.
    pub(super) fn replayed(topology: &Topology, parked: &Delivery) -> Self {
        let old = &parked.properties;
        let mut headers = old.headers().clone().unwrap_or_default();
        let replays = headers.inner().get(REPLAYS_HEADER).and_then(unsigned).unwrap_or(0).saturating_add(1);
        headers.insert(REPLAYS_HEADER.into(), AMQPValue::LongUInt(replays));
        let mut properties = properties(headers);
        if let Some(content_type) = old.content_type() {
            properties = properties.with_content_type(content_type.clone());
        }
        if let Some(message_type) = old.kind() {
            properties = properties.with_type(message_type.clone());
        }
        if let Some(id) = old.message_id() {
            properties = properties.with_message_id(id.clone());
        }
        Self {
            exchange: topology.exchange.clone(),
            routing_key: topology
                .routing_key_of(message::parse(&parked.data).map_or(0, |signup| topology.shard_of(&signup.user_id))),
            body: parked.data.clone(),
            properties,
        }
    }

    /// How often it has been replayed.
    pub(super) fn replays(&self) -> u32 {
        let headers = self.properties.headers().as_ref();
        headers.and_then(|headers| headers.inner().get(REPLAYS_HEADER)).and_then(unsigned).unwrap_or(0)
    }

    /// A message that says only that it came out of this queue.
    pub(super) fn barrier(topology: &Topology, barrier: Barrier, queue: u16) -> Self {
        Self {
            exchange: topology.exchange.clone(),
            routing_key: topology.routing_key_of(queue),
            body: message::barrier_to_json(barrier, queue),
            properties: properties(FieldTable::default())
                .with_content_type(message::CONTENT_TYPE.into())
                .with_type(message::BARRIER_TYPE.into()),
        }
    }
}

/// A header that holds a whole number, of whatever width.
fn unsigned(value: &AMQPValue) -> Option<u32> {
    match *value {
        AMQPValue::ShortShortInt(number) => u32::try_from(number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(number.into()),
        AMQPValue::ShortInt(number) => u32::try_from(number).ok(),
        AMQPValue::ShortUInt(number) => Some(number.into()),
        AMQPValue::LongInt(number) => u32::try_from(number).ok(),
        AMQPValue::LongUInt(number) => Some(number),
        AMQPValue::LongLongInt(number) => u32::try_from(number).ok(),
        _ => None,
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
