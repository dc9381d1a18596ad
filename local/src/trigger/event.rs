//! The event that the Amazon MQ event source hands to a function, built as AWS builds it: each property is there, null
//! when unset; strings in headers are byte arrays; a timestamp is English text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, ShortString};
use serde_json::{Map, Value, json};

const ARN: &str = "arn:aws:mq:eu-west-1:000000000000:broker:onrush:b-00000000-0000-0000-0000-000000000000";

/// The event for a batch of [`message`]s from one queue.
#[must_use]
pub fn event(queue: &str, vhost: &str, messages: Vec<Value>) -> Value {
    let mut by_queue = Map::new();
    by_queue.insert(format!("{queue}::{vhost}"), Value::Array(messages));
    json!({"eventSource": "aws:rmq", "eventSourceArn": ARN, "rmqMessagesByQueue": by_queue})
}

/// One message of an event.
#[must_use]
pub fn message(properties: &BasicProperties, redelivered: bool, body: &[u8]) -> Value {
    json!({
        "basicProperties": {
            "contentType": text(properties.content_type()),
            "contentEncoding": text(properties.content_encoding()),
            "headers": properties.headers().as_ref().map_or_else(
                || json!({}),
                |headers| headers.inner().iter().map(|(key, value)| (key.to_string(), header(value))).collect(),
            ),
            "deliveryMode": properties.delivery_mode(),
            "priority": properties.priority(),
            "correlationId": text(properties.correlation_id()),
            "replyTo": text(properties.reply_to()),
            "expiration": text(properties.expiration()),
            "messageId": text(properties.message_id()),
            "timestamp": properties.timestamp().map(timestamp),
            "type": text(properties.kind()),
            "userId": text(properties.user_id()),
            "appId": text(properties.app_id()),
            "clusterId": text(properties.cluster_id()),
            "bodySize": body.len(),
        },
        "redelivered": redelivered,
        "data": STANDARD.encode(body),
    })
}

fn text(property: &Option<ShortString>) -> Option<&str> {
    property.as_ref().map(ShortString::as_str)
}

fn header(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortShortUInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::ShortUInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongUInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Float(value) => json!(value),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::DecimalValue(value) => json!(f64::from(value.value) / 10_f64.powi(value.scale.into())),
        AMQPValue::ShortString(value) => json!({"bytes": java_bytes(value.as_str().as_bytes())}),
        AMQPValue::LongString(value) => json!({"bytes": java_bytes(value.as_bytes())}),
        AMQPValue::ByteArray(value) => json!(java_bytes(value.as_slice())),
        AMQPValue::Timestamp(value) => json!(timestamp(*value)),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(header).collect(),
        AMQPValue::FieldTable(table) => {
            table.inner().iter().map(|(key, value)| (key.to_string(), header(value))).collect()
        }
        AMQPValue::Void => Value::Null,
    }
}

/// The poller is a Java program, whose bytes are signed.
fn java_bytes(bytes: &[u8]) -> Vec<i8> {
    bytes.iter().map(|byte| byte.cast_signed()).collect()
}

/// `Jan 1, 1970, 12:33:41 AM`
fn timestamp(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    moment.unwrap_or_default().strftime("%b %-d, %Y, %-I:%M:%S %p").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::FieldTable;

    #[test]
    fn the_example_of_the_aws_documentation_is_built_again() {
        let mut headers = FieldTable::default();
        headers.insert("header1".into(), AMQPValue::LongString("value1".into()));
        headers.insert("header2".into(), AMQPValue::LongString("value2".into()));
        headers.insert("numberInHeader".into(), AMQPValue::LongInt(10));
        let properties = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_headers(headers)
            .with_delivery_mode(1)
            .with_priority(34)
            .with_expiration("60000".into())
            .with_timestamp(2_021)
            .with_user_id("AIDACKCEVSQ6C2EXAMPLE".into());
        let built = message(&properties, false, br#"{"timeout":0,"data":"CZrmf0Gw8Ov4bqLQxD4E"}"#);
        let documented = json!({
            "basicProperties": {
                "contentType": "text/plain", "contentEncoding": null,
                "headers": {
                    "header1": {"bytes": [118, 97, 108, 117, 101, 49]},
                    "header2": {"bytes": [118, 97, 108, 117, 101, 50]},
                    "numberInHeader": 10
                },
                "deliveryMode": 1, "priority": 34, "correlationId": null, "replyTo": null, "expiration": "60000",
                "messageId": null, "timestamp": "Jan 1, 1970, 12:33:41 AM", "type": null,
                "userId": "AIDACKCEVSQ6C2EXAMPLE", "appId": null, "clusterId": null,
                "bodySize": 43 // the documentation says 80, which is not the size of its data
            },
            "redelivered": false,
            "data": "eyJ0aW1lb3V0IjowLCJkYXRhIjoiQ1pybWYwR3c4T3Y0YnFMUXhENEUifQ=="
        });
        assert_eq!(built, documented);
        let whole = event("pizzaQueue", "/", vec![built.clone()]);
        assert_eq!(whole["eventSource"], "aws:rmq");
        assert_eq!(whole["rmqMessagesByQueue"], json!({"pizzaQueue::/": [built]}));
    }

    #[test]
    fn unset_properties_are_null_and_headers_empty() {
        let built = message(&BasicProperties::default(), true, b"");
        let properties = built["basicProperties"].as_object().unwrap();
        let set: Vec<_> =
            properties.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str()).collect();
        assert_eq!(set, ["bodySize", "headers"]);
        assert_eq!(properties.len(), 15);
        assert_eq!(built["redelivered"], true);
    }

    #[test]
    fn every_kind_of_header_has_a_form() {
        let mut table = FieldTable::default();
        table.insert("word".into(), AMQPValue::LongString("é".into()));
        table.insert("none".into(), AMQPValue::Void);
        table.insert("list".into(), AMQPValue::FieldArray(vec![AMQPValue::Boolean(true)].into()));
        table.insert("when".into(), AMQPValue::Timestamp(1_796_040_000));
        let form = json!({
            "word": {"bytes": [-61, -87]}, "none": null, "list": [true], "when": "Nov 30, 2026, 12:00:00 PM"
        });
        assert_eq!(header(&AMQPValue::FieldTable(table)), form);
    }
}
