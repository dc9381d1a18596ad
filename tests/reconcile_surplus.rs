//! More holders than places, after Redis lost writes: named, and released only when told to.

use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{World, call, mq_event};

/// Two places. MySQL knows `ann` and `bob`; Redis lost them, and gave the places to `cid` and `dan`, whose messages MySQL
/// refuses.
async fn overbooked(world: &World) -> ActivityId {
    let id = world.open_activity(2).await;
    let bodies = world.grant(id, &["ann", "bob"]).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let keys = ActivityKeys::of(id);
    let _: u64 = redis::cmd("DEL").arg(&keys.signups).query_async(&mut world.redis.clone()).await.unwrap();
    let _: u64 = redis::cmd("HSET")
        .arg(&keys.activity)
        .arg(&["taken", "0", "sequence", "0"])
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
    let bodies = world.grant(id, &["cid", "dan"]).await;
    let report = world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    assert_eq!(report.surplus, 2);
    id
}

async fn reconciled(world: &World, id: ActivityId, release: bool) -> Value {
    world.reconciled(json!({"activityId": id.to_string(), "releaseSurplus": release})).await["surplus"].clone()
}

async fn statuses(world: &World, id: ActivityId) -> Vec<String> {
    let mut statuses = Vec::new();
    for user in ["ann", "bob", "cid", "dan"] {
        statuses.push(call(&world.signup(), "GET", id, user).await.body["status"].as_str().unwrap().to_owned());
    }
    statuses
}

#[tokio::test]
async fn a_surplus_is_named_and_nobody_gets_a_place_that_somebody_has() {
    let world = World::new().await;
    let id = overbooked(&world).await;
    let surplus = reconciled(&world, id, false).await;
    let people = json!([{"userId": "dan", "sequence": 2}, {"userId": "cid", "sequence": 1}]);
    let expected = json!([{"activityId": id.to_string(), "capacity": 2, "taken": 4, "people": people, "released": 0}]);
    assert_eq!(surplus, expected);
    assert_eq!(statuses(&world, id).await, ["confirmed", "confirmed", "queued", "queued"]);
    assert_eq!((world.active(id).await, world.taken(id).await), (Some(2), 4));
    assert_eq!(call(&world.signup(), "POST", id, "eve").await.code(), "sold-out");
    assert_eq!(reconciled(&world, id, false).await, expected, "it stays until somebody decides");
}

#[tokio::test]
async fn a_surplus_that_is_released_is_cancelled_on_both_sides() {
    let world = World::new().await;
    let id = overbooked(&world).await;
    assert_eq!(reconciled(&world, id, true).await[0]["released"], 2);
    assert_eq!(statuses(&world, id).await, ["confirmed", "confirmed", "cancelled", "cancelled"]);
    assert_eq!(world.taken(id).await, 2);
    world.pump().await;
    let rows: Vec<_> = world.rows(id).await.into_iter().map(|(user, status, ..)| (user, status)).collect();
    assert_eq!(rows, [("ann".into(), 1), ("bob".into(), 1), ("cid".into(), 2), ("dan".into(), 2)]);
    assert_eq!((reconciled(&world, id, true).await, world.outbox(id).await.len()), (json!([]), 0));
}

#[tokio::test]
async fn with_some_room_only_those_who_came_last_are_released() {
    let world = World::new().await;
    let id = overbooked(&world).await;
    let cancelled = world.give_back(id, "cid").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    reconciled(&world, id, false).await;
    let cancelled = world.give_back(id, "ann").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    // bob and dan are left for two places.
    assert_eq!(reconciled(&world, id, true).await, json!([]));
    assert_eq!((world.taken(id).await, world.active(id).await), (2, Some(1)));
}

#[tokio::test]
async fn raising_the_capacity_lets_the_surplus_in() {
    let world = World::with(&[("OUTBOX_GRACE_SECS", "1")]).await;
    let id = overbooked(&world).await;
    reconciled(&world, id, false).await;
    let body = json!({"title": "t", "capacity": 4}).to_string();
    assert_eq!(world.activities_call("PUT", &format!("/activities/{id}"), Some("organiser"), &body).await.status, 200);
    tests::eventually("the relay sends them", std::time::Duration::from_secs(30), async || {
        reconciled(&world, id, false).await;
        world.pump().await;
        world.active(id).await == Some(4)
    })
    .await;
    assert_eq!(statuses(&world, id).await, ["confirmed"; 4]);
}
