//! One activity whose data has another form waits for an operator, and keeps no other from its due.

use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{World, call, mq_event};

async fn redis(world: &World, command: &[&str]) {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    let _: redis::Value = asked.query_async(&mut world.redis.clone()).await.unwrap();
}

/// In each of these, `ann` is in MySQL and lost in Redis, and the note of `bob` is overdue.
async fn in_need(world: &World, count: usize) -> Vec<ActivityId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let id = world.open_activity(10).await;
        let bodies = world.grant(id, &["ann"]).await;
        world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
        world.grant(id, &["bob"]).await;
        world.make_due(id).await;
        redis(world, &["HDEL", &ActivityKeys::of(id).signups, "ann"]).await;
        redis(world, &["HSET", &ActivityKeys::of(id).activity, "taken", "1"]).await;
        ids.push(id);
    }
    ids
}

/// The steps that set the activity aside, each once.
fn set_aside(report: &Value, id: ActivityId) -> Vec<String> {
    let failed = report["failed"].as_array().cloned().unwrap_or_default();
    let of_it = failed.iter().filter(|failed| failed["activityId"] == id.to_string());
    let mut steps: Vec<_> = of_it.map(|failed| failed["step"].as_str().unwrap().to_owned()).collect();
    steps.dedup();
    steps
}

#[tokio::test]
async fn a_damaged_key_of_one_activity_keeps_no_other_from_being_relayed_and_mended() {
    let (world, apart) = World::apart(&[]).await;
    let ids = in_need(&world, 5).await;
    let keys: Vec<_> = ids.iter().map(|id| ActivityKeys::of(*id)).collect();
    for key in [&keys[0].outbox, &keys[1].signups, &keys[2].activity] {
        redis(&world, &["SET", key, "x"]).await;
    }
    let report = world.reconciled(json!({})).await;
    assert_eq!(
        report["relay"]["sent"], 3,
        "those of the last two, and the one whose counts alone are damaged: {report}"
    );
    for id in &ids[3..] {
        assert_eq!(call(&world.signup(), "GET", *id, "ann").await.body["status"], "confirmed", "{report}");
        assert_eq!((world.taken(*id).await, set_aside(&report, *id)), (2, vec![]));
    }
    assert_eq!(set_aside(&report, ids[0]), ["relay", "survey"]);
    assert_eq!(set_aside(&report, ids[1]), ["relay", "survey"]);
    assert_eq!(set_aside(&report, ids[2]), ["survey"]);
    apart.stop().await;
}

#[tokio::test]
async fn a_row_of_another_form_keeps_no_other_activity_from_being_compared() {
    let (world, apart) = World::apart(&[]).await;
    let ids = in_need(&world, 4).await;
    for id in &ids[..2] {
        world.sql(&format!("INSERT INTO user_activity VALUES ({id}, 'a b', 1, NOW(3), 1, 1)")).await;
    }
    let report = world.reconciled(json!({})).await;
    for id in &ids[2..] {
        assert_eq!(call(&world.signup(), "GET", *id, "ann").await.body["status"], "confirmed", "{report}");
    }
    for id in &ids[..2] {
        assert_eq!(set_aside(&report, *id), ["compare"], "{report}");
    }
    apart.stop().await;
}
