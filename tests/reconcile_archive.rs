//! Archiving: what ended long ago leaves Redis, MySQL keeps it, and whoever asks late is told the truth.

use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{World, call, mq_event};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// An activity with two people in it, one of whom cancelled, that closed so many days ago.
async fn ended(world: &World, days: i64) -> ActivityId {
    let id = world.open_activity(10).await;
    let bodies = world.grant(id, &["ann", "bob"]).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let cancelled = world.give_back(id, "bob").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    let closed = jiff::Timestamp::now() - jiff::SignedDuration::from_millis(days * DAY_MS + 60_000);
    let body = json!({"title": "Spring hike", "capacity": 10, "closesAt": closed.to_string()});
    let path = format!("/activities/{id}");
    let reply = world.activities_call("PUT", &path, Some("organiser"), &body.to_string()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    id
}

async fn reconciled(world: &World, id: ActivityId) -> Value {
    world.reconciled(json!({"activityId": id.to_string()})).await["archive"].clone()
}

async fn told(world: &World, method: &str, id: ActivityId, user: &str) -> (u16, Value) {
    let reply = call(&world.signup(), method, id, user).await;
    let word = if reply.status < 300 { &reply.body["status"] } else { &reply.body["code"] };
    (reply.status, word.clone())
}

#[tokio::test]
async fn a_week_after_its_close_an_activity_is_archived_and_late_callers_are_told_the_truth() {
    let world = World::new().await;
    let id = ended(&world, 7).await;
    let rows = world.rows(id).await;
    assert_eq!(reconciled(&world, id).await, json!({"archived": [id.to_string()], "heldBack": []}));

    // Receipts are shown for one more day.
    assert_eq!(told(&world, "GET", id, "ann").await, (200, json!("confirmed")));
    assert_eq!(told(&world, "POST", id, "ann").await, (200, json!("confirmed")));
    assert_eq!(told(&world, "DELETE", id, "ann").await, (410, json!("archived")));
    let signups = ActivityKeys::of(id).signups;
    let left_ms: i64 = redis::cmd("PTTL").arg(&signups).query_async(&mut world.redis.clone()).await.unwrap();
    assert!((DAY_MS - 60_000..=DAY_MS).contains(&left_ms), "{left_ms}");

    let gone: u64 = redis::cmd("DEL").arg(&signups).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(gone, 1);
    assert_eq!(told(&world, "GET", id, "ann").await, (410, json!("archived")), "not: never signed up");
    assert_eq!(told(&world, "DELETE", id, "ann").await, (410, json!("archived")));
    assert_eq!(told(&world, "POST", id, "ann").await, (410, json!("closed")));
    let shown = world.activities_call("GET", &format!("/activities/{id}"), None, "").await;
    assert_eq!((shown.status, &shown.body["taken"]), (200, &json!(1)));
    let body = r#"{"title":"Again","capacity":10}"#;
    let changed = world.activities_call("PUT", &format!("/activities/{id}"), Some("organiser"), body).await;
    assert_eq!((changed.status, changed.code()), (409, "archived"));
    assert_eq!(world.rows(id).await, rows);
    assert_eq!(reconciled(&world, id).await, json!({"archived": [], "heldBack": []}));
}

#[tokio::test]
async fn an_activity_that_has_not_ended_long_enough_ago_stays() {
    let world = World::new().await;
    for id in [ended(&world, 6).await, world.open_activity(1).await] {
        assert_eq!(reconciled(&world, id).await, json!({"archived": [], "heldBack": []}));
        let ttl: i64 =
            redis::cmd("PTTL").arg(ActivityKeys::of(id).activity).query_async(&mut world.redis.clone()).await.unwrap();
        assert_eq!(ttl, -1);
    }
}

#[tokio::test]
async fn with_somebody_on_the_way_to_mysql_it_is_held_back() {
    let world = World::new().await;
    let id = ended(&world, 8).await;
    let cancelled = world.give_back(id, "ann").await;
    let before = world.redis_dump(id).await;
    assert_eq!(reconciled(&world, id).await, json!({"archived": [], "heldBack": [id.to_string()]}));
    assert_eq!(world.redis_dump(id).await, before);
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    assert_eq!(reconciled(&world, id).await["archived"], json!([id.to_string()]));
}

#[tokio::test]
async fn an_archived_activity_that_redis_forgot_comes_back_as_archived() {
    let (world, apart) = World::apart(&[]).await;
    let id = ended(&world, 8).await;
    assert_eq!(world.reconciled(json!({})).await["archive"]["archived"], json!([id.to_string()]));
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(told(&world, "GET", id, "ann").await, (503, json!("unavailable")));
    assert_eq!(world.reconciled(json!({})).await["rebuild"]["rebuilt"], json!([id.to_string()]));
    assert_eq!(told(&world, "GET", id, "ann").await, (410, json!("archived")));
    assert_eq!(told(&world, "POST", id, "zoe").await, (410, json!("closed")));
    apart.stop().await;
}
