//! The relay: overdue notes are sent again, once, and only while nothing waits in the queue.

use serde_json::{Value, json};
use shared::reservations::ActivityKeys;
use tests::{World, users};

/// A corner where notes are overdue after a second.
async fn hasty_world() -> World {
    World::with(&[("OUTBOX_GRACE_SECS", "1")]).await
}

/// So many sign-ups whose notes are due.
async fn fill(world: &World, id: shared::domain::ActivityId, count: usize) {
    let (keys, now_ms) = (ActivityKeys::of(id), shared::domain::Timestamp::now().as_ms());
    for chunk in users(count).chunks(5_000) {
        let mut pipeline = redis::pipe();
        for (n, user) in chunk.iter().enumerate() {
            pipeline.hset(&keys.signups, user, format!("1 {} {}", now_ms - 5_000, n + 1)).ignore();
            pipeline.zadd(&keys.outbox, user, 1).ignore();
        }
        let _: () = pipeline.query_async(&mut world.redis.clone()).await.unwrap();
    }
}

async fn relayed(world: &World, id: shared::domain::ActivityId) -> Value {
    world.reconciled(json!({"activityId": id.to_string()})).await["relay"].clone()
}

#[tokio::test]
async fn an_overdue_note_is_sent_again_as_its_fact_and_ends_as_a_row() {
    let world = hasty_world().await;
    let id = world.open_activity(10).await;
    let bodies = world.grant(id, &["ann", "bob"]).await;
    assert_eq!(relayed(&world, id).await["overdue"], 0, "their grace is not over");
    world.make_due(id).await;
    let report = relayed(&world, id).await;
    assert_eq!((&report["overdue"], &report["sent"], &report["damaged"]), (&json!(2), &json!(2), &json!(0)));
    let mut sent: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
    sent.sort();
    assert_eq!(sent, bodies);
    world.consume(&world.consumer(), tests::mq_event(sent)).await.unwrap();
    assert_eq!((world.active(id).await, world.outbox(id).await.len()), (Some(2), 0));
}

#[tokio::test]
async fn with_a_backlog_in_the_queue_notes_wait_their_turn() {
    let world = hasty_world().await;
    let id = world.open_activity(10).await;
    world.grant(id, &["ann"]).await;
    world.make_due(id).await;
    assert_eq!(relayed(&world, id).await["sent"], 1);
    world.make_due(id).await;
    let report = relayed(&world, id).await;
    assert_eq!((&report["overdue"], &report["sent"], &report["backlog"]), (&json!(1), &json!(0), &json!(1)));
    assert_eq!(world.drain_signups().await.len(), 1);
}

#[tokio::test]
async fn two_runs_at_once_send_each_note_once() {
    let world = hasty_world().await;
    let id = world.open_activity(5_000).await;
    fill(&world, id, 3_000).await;
    let (one, other) = tokio::join!(relayed(&world, id), relayed(&world, id));
    assert_eq!(one["sent"].as_u64().unwrap() + other["sent"].as_u64().unwrap(), 3_000, "{one} {other}");
    assert_eq!(world.queued().await, 3_000);
}

#[tokio::test]
async fn a_hundred_thousand_notes_go_out_within_a_minute() {
    let world = hasty_world().await;
    let id = world.open_activity(100_000).await;
    fill(&world, id, 100_000).await;
    let begun = std::time::Instant::now();
    let report = relayed(&world, id).await;
    println!("100,000 notes in {:.1} s", begun.elapsed().as_secs_f32());
    assert_eq!(report["sent"], 100_000);
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}
