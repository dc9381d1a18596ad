//! `reconcile` killed while it cancels a surplus, and while it lets an activity go that has ended.

use consumer::Report;
use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{World, call, mq_event};

use crate::ONCE;

/// Two places. MySQL knows `ann` and `bob`; Redis lost them, gave the places to `cid` and `dan`, and has learned of `ann`
/// and `bob` again.
pub(crate) async fn overbooked(world: &World) -> ActivityId {
    let id = world.open_activity(2).await;
    let bodies = world.grant(id, &["ann", "bob"]).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let keys = ActivityKeys::of(id);
    let mut lose = redis::pipe();
    lose.del(&keys.signups).hset(&keys.activity, "taken", 0);
    let _: () = lose.query_async(&mut world.redis.clone()).await.unwrap();
    let bodies = world.grant(id, &["cid", "dan"]).await;
    let report = world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    assert_eq!((report.surplus, world.reconciled_only(id).await["surplus"][0]["taken"].as_u64()), (2, Some(4)));
    id
}

/// Only those who came last and found no place were cancelled, on both sides.
pub(crate) async fn the_surplus_is_gone(world: &World, id: ActivityId) {
    let rows: Vec<_> = ["ann", "bob", "cid", "dan"].map(str::to_owned).into_iter().zip([1, 1, 2, 2]).collect();
    assert_eq!((world.statuses(id).await, world.active(id).await, world.taken(id).await), (rows, Some(2), 2));
    let mut receipts = Vec::new();
    for user in ["ann", "bob"] {
        receipts.push(call(&world.signup(), "GET", id, user).await.body);
        assert_eq!(receipts.last().unwrap()["status"], "confirmed");
    }
    world.assert_sound(id, receipts).await;
}

#[tokio::test]
async fn a_release_of_the_surplus_killed_after_each_withdrawal_cancels_nobody_else_in_the_next_run() {
    for (pass, withdrawn) in [(1, vec!["dan"]), (2, vec!["cid", "dan"])] {
        let world = World::new().await;
        let id = overbooked(&world).await;
        let event = json!({"activityId": id.to_string(), "releaseSurplus": true});
        ONCE.killed_on_pass(&world, "reconcile", &event, "surplus.after-withdraw", pass).await;
        assert_eq!(world.taken(id).await, 4 - u64::from(pass));
        for user in &withdrawn {
            assert_eq!(call(&world.signup(), "GET", id, user).await.body["status"], "cancelled", "{user}");
        }
        assert_eq!(world.queued().await, 0, "nobody has been told yet");

        let report = world.reconciled(event).await;
        let surplus: Value = match withdrawn.len() {
            1 => report["surplus"][0]["released"].clone(),
            _ => report["surplus"].clone(),
        };
        assert_eq!(surplus, if withdrawn.len() == 1 { json!(1) } else { json!([]) }, "{report}");
        the_cancellations_arrive(&world, id).await;
        the_surplus_is_gone(&world, id).await;
    }
}

/// The first run, or the relay of the second, sends one; the other follows.
async fn the_cancellations_arrive(world: &World, id: ActivityId) {
    let mut sum = Report::default();
    for _ in 0..2 {
        let report = world.pump().await.unwrap_or_default();
        sum.written += report.written;
        sum.settled += report.settled;
        world.make_due(id).await;
        world.reconciled_only(id).await;
    }
    assert_eq!((sum.written, sum.settled), (2, 2));
}

/// An activity with one place taken and one given back, that closed eight days ago, and its rows.
pub(crate) async fn ended(world: &World) -> ActivityId {
    let id = world.open_activity(10).await;
    let mut bodies = world.grant(id, &["ann", "bob"]).await;
    bodies.push(world.give_back(id, "bob").await);
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let closed = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(8 * 24);
    let body = json!({"title": "Spring hike", "capacity": 10, "closesAt": closed.to_string()}).to_string();
    let reply = world.activities_call("PUT", &format!("/activities/{id}"), Some("organiser"), &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    id
}

/// Both sides know it, and late callers hear the truth; with the receipts and when they have expired.
pub(crate) async fn it_is_archived(world: &World, id: ActivityId) {
    let stored = world.store().activity(id).await.unwrap().unwrap();
    let standing = world.reservations().standing(id).await.unwrap();
    assert_eq!((stored.archived, standing.archived, standing.taken), (true, true, 1));
    let signups = ActivityKeys::of(id).signups;
    let left_ms: i64 = redis::cmd("PTTL").arg(&signups).query_async(&mut world.redis.clone()).await.unwrap();
    assert_ne!(left_ms, -1, "the receipts must not stay for ever");
    world.assert_sound(id, []).await;
    let _: u64 = redis::cmd("DEL").arg(&signups).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(call(&world.signup(), "GET", id, "ann").await.code(), "archived");
    assert_eq!(call(&world.signup(), "POST", id, "zoe").await.code(), "closed");
    assert_eq!(world.statuses(id).await, [("ann".to_owned(), 1), ("bob".to_owned(), 2)]);
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn an_archive_killed_between_redis_and_mysql_is_completed_by_the_next_run() {
    let world = World::new().await;
    let id = ended(&world).await;
    ONCE.killed(&world, "reconcile", &json!({"activityId": id.to_string()}), "archive.before-mark").await;
    assert!(!world.store().activity(id).await.unwrap().unwrap().archived);
    let report = world.reconciled_only(id).await;
    assert_eq!(report["archive"], json!({"archived": [id.to_string()], "heldBack": []}));
    it_is_archived(&world, id).await;
}

#[tokio::test]
async fn receipts_that_expired_before_an_archive_was_completed_do_not_come_back() {
    let world = World::new().await;
    let id = ended(&world).await;
    ONCE.killed(&world, "reconcile", &json!({"activityId": id.to_string()}), "archive.before-mark").await;
    let signups = ActivityKeys::of(id).signups;
    let gone: u64 = redis::cmd("DEL").arg(&signups).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(gone, 1);
    let report = world.reconciled_only(id).await;
    assert_eq!(report["archive"], json!({"archived": [id.to_string()], "heldBack": []}));
    let receipts: u64 = redis::cmd("HLEN").arg(&signups).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!((receipts, &report["compare"]["found"]), (0, &json!([])));
    it_is_archived(&world, id).await;
}
