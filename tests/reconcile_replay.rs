//! Replaying parked messages: back into the queue, each acknowledged only when it is there, with a count.

use lapin::types::AMQPValue;
use serde_json::json;
use tests::{World, message_body, mq_event};

async fn parked(world: &World, count: usize) {
    let poison: Vec<_> = (0..count).map(|n| format!("poison {n}")).collect();
    world.consume(&world.consumer(), mq_event(poison)).await.unwrap();
}

async fn replayed(world: &World, count: u32) -> serde_json::Value {
    world.reconciled(json!({"replayParked": count})).await["replay"].clone()
}

#[tokio::test]
async fn parked_messages_go_back_as_they_came_the_oldest_first() {
    let world = World::new().await;
    parked(&world, 5).await;
    assert_eq!(replayed(&world, 3).await, json!({"replayed": 3, "mostReplays": 1, "parkedBefore": 5}));
    let messages = world.drain_signups().await;
    let bodies: Vec<_> = messages.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect();
    assert_eq!(bodies, ["poison 0", "poison 1", "poison 2"]);
    for message in &messages {
        let headers = message.properties.headers().as_ref().unwrap();
        assert_eq!(headers.inner().get("x-replays"), Some(&AMQPValue::LongUInt(1)));
        assert_eq!((*message.properties.delivery_mode(), *message.properties.priority()), (Some(2), Some(0)));
    }
    assert_eq!(world.drain_parked().await.len(), 2);
}

#[tokio::test]
async fn a_message_that_is_parked_again_counts_its_replays_and_is_not_replayed_twice_in_one_run() {
    let world = World::new().await;
    parked(&world, 1).await;
    for replays in 1..=3 {
        let report = replayed(&world, 100).await;
        assert_eq!(report, json!({"replayed": 1, "mostReplays": replays, "parkedBefore": 1}));
        // As the event source hands it on: with its headers.
        let messages = world.drain_signups().await;
        let events = messages.iter().map(|message| local::trigger::message(&message.properties, false, &message.body));
        let event = local::trigger::event("q", "/", events.collect());
        world.consume(&world.consumer(), event).await.unwrap();
    }
}

#[tokio::test]
async fn with_nothing_parked_nothing_is_done() {
    let world = World::new().await;
    assert_eq!(replayed(&world, 100).await, json!({"replayed": 0, "mostReplays": 0, "parkedBefore": 0}));
}

#[tokio::test]
async fn while_the_queue_takes_nothing_they_stay_parked() {
    let world = World::new().await;
    parked(&world, 150).await;
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    channel
        .queue_delete(world.topology().queue.as_str().into(), lapin::options::QueueDeleteOptions::default())
        .await
        .unwrap();
    let report = replayed(&world, 150).await;
    assert!(report["error"].as_str().unwrap().contains("run provision"), "{report}");
    assert_eq!(world.drain_parked().await.len(), 150);
}

#[tokio::test]
async fn a_replay_of_what_has_long_arrived_changes_nothing() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    let body = message_body(id, "ann", 1_796_040_000_123, 1, "signed-up");
    world.consume(&world.consumer(), mq_event([&body])).await.unwrap();
    let before = world.rows(id).await;
    for _ in 0..2 {
        world.park_by_hand(&body).await;
    }
    assert_eq!(replayed(&world, 10).await["replayed"], 2);
    world.pump().await;
    assert_eq!((world.rows(id).await, world.active(id).await), (before, Some(1)));
}
