//! What `signup` sends to the broker, and what it makes of the broker's word.

use lambda_http::RequestExt;
use lapin::options::{QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use shared::broker::{PublishError, Publisher};
use shared::domain::{ActivityId, Timestamp};
use tests::{Message, World, call, event_for, eventually, message_body, request_of};

const X_RAY: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";

#[tokio::test]
async fn a_sign_up_is_sent_with_every_property_that_the_event_needs() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    let before_secs = Timestamp::now().as_ms() / 1_000;
    let granted = call(&signup, "POST", id, "alice").await;
    let message = the_message(&world).await;

    let body = message.json();
    let version = body["version"].as_u64().unwrap();
    let expected = json!({"activityId": id.to_string(), "userId": "alice", "version": version, "sequence": 1,
        "status": "signed-up", "signedUpAt": granted.body["signedUpAt"]});
    assert_eq!(body, expected);
    let signed_up_at: Timestamp = granted.body["signedUpAt"].as_str().unwrap().parse().unwrap();
    assert_eq!(version, signed_up_at.as_ms(), "the first version is the time of the grant");

    let properties = &message.properties;
    assert_eq!((properties.delivery_mode(), properties.priority()), (&Some(2), &Some(0)));
    assert_eq!(text(properties.content_type()), "application/json");
    assert_eq!(text(properties.kind()), "signup.v1");
    assert_eq!(text(properties.message_id()), format!("{id}/alice/{version}"));
    let timestamp_secs = properties.timestamp().unwrap();
    assert!((before_secs..=Timestamp::now().as_ms() / 1_000).contains(&timestamp_secs), "{timestamp_secs}");
    assert_eq!(header(&message, "traceparent"), None, "nobody traced this request");
    assert_eq!((properties.expiration(), properties.user_id()), (&None, &None));
}

#[tokio::test]
async fn a_cancellation_is_sent_as_a_newer_fact_about_the_same_place() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    let granted = call(&signup, "POST", id, "alice").await;
    let signed_up = the_message(&world).await;
    assert_eq!(call(&signup, "DELETE", id, "alice").await.status, 202);
    let cancelled = the_message(&world).await;

    let version = cancelled.json()["version"].as_u64().unwrap();
    assert!(version > signed_up.json()["version"].as_u64().unwrap());
    let expected = json!({"activityId": id.to_string(), "userId": "alice", "version": version, "sequence": 1,
        "status": "cancelled", "signedUpAt": granted.body["signedUpAt"]});
    assert_eq!(cancelled.json(), expected);
    assert_ne!(cancelled.properties.message_id(), signed_up.properties.message_id());
}

#[tokio::test]
async fn a_traced_request_carries_its_trace_to_the_consumer() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    for (x_ray, expected) in [
        (Some(X_RAY), Some("00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-01")),
        (Some("Root=not-a-trace"), None),
        (None, None),
    ] {
        let mut context = lambda_runtime::Context::default();
        context.xray_trace_id = x_ray.map(str::to_owned);
        let user = format!("user-{}", rand::random::<u32>());
        let event = event_for("POST", &format!("/activities/{id}/signups"), Some(&user), "");
        let reply = signup::handle(&signup, request_of(&event).with_lambda_context(context)).await;
        assert_eq!(reply.status(), 202);
        assert_eq!(header(&the_message(&world).await, "traceparent").as_deref(), expected);
    }
}

#[tokio::test]
async fn a_user_id_of_every_length_fits_the_message_id() {
    let world = World::new().await;
    let id = ActivityId::new(u64::MAX - u64::from(rand::random::<u32>()));
    let body = json!({"title": "t", "capacity": 10}).to_string();
    let put = world.activities_call("PUT", &format!("/activities/{id}"), Some("organiser"), &body).await;
    assert_eq!(put.status, 201);
    let longest = "u".repeat(128);
    assert_eq!(call(&world.signup(), "POST", id, &longest).await.status, 202);
    let message = the_message(&world).await;
    assert_eq!(text(message.properties.message_id()), format!("{id}/{longest}/{}", message.json()["version"]));
}

#[tokio::test]
async fn a_message_that_no_queue_takes_leaves_the_note_and_the_next_one_is_tried_at_once() {
    let mut world = World::new().await;
    let id = world.open_activity(10).await;
    world.settings.insert("SIGNUP_ROUTING_KEY".into(), "nobody.listens".into());
    let signup = world.signup();
    for user in ["alice", "bob"] {
        assert_eq!(call(&signup, "POST", id, user).await.status, 202);
    }
    assert_eq!(call(&signup, "DELETE", id, "bob").await.status, 202);
    assert!(world.drain_signups().await.is_empty());
    assert_eq!(world.outbox(id).await, ["alice", "bob"]);
    assert_eq!(call(&signup, "GET", id, "alice").await.body["status"], "queued");
    let outcome = publish_a_fact(&world, id).await.unwrap_err();
    assert!(matches!(outcome, PublishError::Returned { .. }), "{outcome}");

    // An operator binds the queue; nothing needs to be waited for or started again.
    let channel = world.amqp().await.create_channel().await.unwrap();
    let topology = world.topology();
    let bound = channel.queue_bind(
        topology.queue.as_str().into(),
        topology.exchange.as_str().into(),
        topology.routing_key.as_str().into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.unwrap();
    assert_eq!(call(&signup, "POST", id, "carol").await.status, 202);
    assert_eq!(the_message(&world).await.json()["userId"], "carol");
}

#[tokio::test]
async fn an_exchange_that_is_missing_costs_no_place() {
    let world = World::unprovisioned(&[]).await;
    let id = World::new().await.open_activity(10_000).await;
    let signup = world.signup();
    for user in ["alice", "bob"] {
        assert_eq!(call(&signup, "POST", id, user).await.status, 202);
    }
    assert_eq!(world.outbox(id).await, ["alice", "bob"]);
    provision::provision(&world.provision()).await.unwrap();
    published_again(&world, &signup, id).await;
}

#[tokio::test]
async fn a_full_queue_refuses_the_message_and_the_outbox_keeps_the_note() {
    let world = World::unprovisioned(&[]).await;
    declare_queue_for_two(&world).await;
    let (id, signup) = (World::new().await.open_activity(10).await, world.signup());
    let users = ["alice", "bob", "carol", "dave", "erin"];
    for user in users {
        assert_eq!(call(&signup, "POST", id, user).await.status, 202);
    }
    assert_eq!(world.outbox(id).await, users);
    assert_eq!(world.taken(id).await, 5);
    let outcome = publish_a_fact(&world, id).await.unwrap_err();
    assert!(matches!(outcome, PublishError::Nacked), "{outcome}");
    let queued: Vec<_> = world.drain_signups().await.iter().map(|message| message.json()["userId"].clone()).collect();
    assert_eq!(queued, ["alice", "bob"], "the first ones stay; the queue does not drop its head");

    assert_eq!(call(&signup, "POST", id, "frank").await.status, 202);
    assert_eq!(the_message(&world).await.json()["userId"], "frank", "a refusal is no reason to stop trying");
}

/// What the publisher itself says about a message to these names.
async fn publish_a_fact(world: &World, id: ActivityId) -> Result<(), PublishError> {
    let fact = message_body(id, "zoe", 1_796_040_000_123, 1, "signed-up");
    Publisher::new(&world.broker_config()).publish(&shared::message::parse(&fact).unwrap(), None).await
}

/// The one message in the queue.
async fn the_message(world: &World) -> Message {
    let mut messages = world.drain_signups().await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    messages.remove(0)
}

/// Somebody signs up until somebody's message arrives.
async fn published_again(world: &World, app: &signup::App, id: ActivityId) {
    let arrived = async || {
        let user = format!("later-{}", rand::random::<u32>());
        assert_eq!(call(app, "POST", id, &user).await.status, 202);
        !world.drain_signups().await.is_empty()
    };
    eventually("a message", std::time::Duration::from_secs(5), arrived).await;
}

/// The exchange, and a queue that holds two messages and refuses more.
async fn declare_queue_for_two(world: &World) {
    let channel = world.amqp().await.create_channel().await.unwrap();
    let topology = world.topology();
    let (queue, exchange, key) = (topology.queue, topology.exchange, topology.routing_key);
    let kind = lapin::ExchangeKind::Direct;
    channel.exchange_declare(exchange.as_str().into(), kind, Default::default(), Default::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(queue.as_str().into(), durable, arguments).await.unwrap();
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(queue.as_str().into(), exchange.as_str().into(), key.as_str().into(), bind, Default::default())
        .await
        .unwrap();
}

fn header(message: &Message, name: &str) -> Option<String> {
    let value = message.properties.headers().as_ref()?.inner().get(name)?;
    Some(value.as_long_string().unwrap().to_string())
}

fn text(property: &Option<lapin::types::ShortString>) -> &str {
    property.as_ref().map(lapin::types::ShortString::as_str).unwrap_or_default()
}
