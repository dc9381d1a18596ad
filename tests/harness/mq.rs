//! Amazon MQ events, and looks into queues.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection};
use serde_json::{Value, json};
use shared::domain::ActivityId;

use crate::World;

/// A message found in a queue.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its body.
    pub body: Vec<u8>,
    /// Its properties.
    pub properties: BasicProperties,
}

impl Message {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl World {
    /// A connection to the broker.
    pub async fn amqp(&self) -> Connection {
        let endpoint = self.broker_config().endpoint;
        endpoint.amqp_connection(&endpoint.url().await.unwrap(), "onrush-test").await.unwrap()
    }

    /// Takes everything out of a queue.
    pub async fn drain(&self, queue: &str) -> Vec<Message> {
        let connection = self.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        let mut messages = Vec::new();
        while let Some(got) = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap() {
            got.delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
            messages.push(Message { body: got.delivery.data, properties: got.delivery.properties });
        }
        connection.close(200, "done".into()).await.unwrap();
        messages
    }

    /// Messages that wait in all sign-up queues.
    pub async fn queued(&self) -> u32 {
        self.queued_in_each().await.into_iter().sum()
    }

    /// Messages that wait in each sign-up queue.
    pub async fn queued_in_each(&self) -> Vec<u32> {
        let mut counts = Vec::new();
        for queue in self.topology().queue_names() {
            counts.push(self.queued_in(&queue).await);
        }
        counts
    }

    /// Messages that wait in this queue.
    pub async fn queued_in(&self, queue: &str) -> u32 {
        let connection = self.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap();
        connection.close(200, "done".into()).await.unwrap();
        declared.message_count()
    }

    /// Throws away everything in the sign-up queue.
    pub async fn purge_signups(&self) {
        let connection = self.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        channel.queue_purge(self.topology().queue.as_str().into(), QueuePurgeOptions::default()).await.unwrap();
        connection.close(200, "done".into()).await.unwrap();
    }

    /// Puts a message into the parked queue, as if somebody had given it up.
    pub async fn park_by_hand(&self, body: &[u8]) {
        let connection = self.amqp().await;
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let queue = self.topology().parked_queue();
        let published = channel.basic_publish(
            "".into(),
            queue.as_str().into(),
            BasicPublishOptions::default(),
            body,
            BasicProperties::default(),
        );
        assert!(published.await.unwrap().await.unwrap().is_ack());
        connection.close(200, "done".into()).await.unwrap();
    }

    /// Takes everything out of the sign-up queues, one after the other.
    pub async fn drain_signups(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        for queue in self.topology().queue_names() {
            messages.extend(self.drain(&queue).await);
        }
        messages
    }

    /// Takes everything out of the parked queue.
    pub async fn drain_parked(&self) -> Vec<Message> {
        self.drain(&self.topology().parked_queue()).await
    }
}

/// The body of a fact.
pub fn message_body(id: ActivityId, user: &str, version: u64, sequence: u64, status: &str) -> Vec<u8> {
    let fact = json!({
        "activityId": id.to_string(), "userId": user, "version": version, "sequence": sequence, "status": status,
        "signedUpAt": "2026-11-30T12:00:00.123Z"
    });
    fact.to_string().into_bytes()
}

/// The event as Amazon MQ sends it, with the properties that nobody set as nulls.
pub fn mq_event<B: AsRef<[u8]>>(bodies: impl IntoIterator<Item = B>) -> Value {
    let messages = bodies.into_iter().map(|body| {
        let body = body.as_ref();
        json!({
            "basicProperties": {
                "contentType": null, "contentEncoding": null, "headers": {"traceparent": {"bytes": [48, 48]}},
                "deliveryMode": null, "priority": null, "correlationId": null, "replyTo": null, "expiration": null,
                "messageId": null, "timestamp": "Jan 1, 1970, 12:33:41 AM", "type": null, "userId": null,
                "appId": null, "clusterId": null, "bodySize": body.len()
            },
            "redelivered": false,
            "data": STANDARD.encode(body)
        })
    });
    json!({
        "eventSource": "aws:rmq",
        "eventSourceArn": "arn:aws:mq:eu-west-1:123456789012:broker:onrush:b-1",
        "rmqMessagesByQueue": {"activity.signup.queue::/": messages.collect::<Vec<_>>()}
    })
}
