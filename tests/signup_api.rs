//! The answers of `signup`, row by row of the HTTP table, and what each leaves behind.

use serde_json::json;
use shared::domain::{ActivityId, Timestamp};
use tests::{Reply, World, call, random_activity_id};

const HOUR_MS: u64 = 3_600_000;

#[tokio::test]
async fn a_granted_place_is_202_with_a_receipt_and_asking_again_is_200_with_the_same_receipt() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    let before = Timestamp::now();
    let granted = call(&signup, "POST", id, "alice").await;

    assert_eq!((granted.status, granted.header("content-type")), (202, Some("application/json")), "{granted:?}");
    let signed_up_at = signed_up_at(&granted);
    assert!(before <= signed_up_at && signed_up_at <= Timestamp::now(), "{granted:?}");
    let receipt = json!({"activityId": id.to_string(), "userId": "alice", "sequence": 1, "status": "queued",
        "signedUpAt": signed_up_at.to_string()});
    assert_eq!(granted.body, receipt);

    for _ in 0..3 {
        let again = call(&signup, "POST", id, "alice").await;
        assert_eq!((again.status, &again.body), (200, &receipt));
    }
    let second = call(&signup, "POST", id, "bob").await;
    assert_eq!((second.status, &second.body["sequence"]), (202, &json!(2)), "{second:?}");
    assert_eq!(world.taken(id).await, 2);
    assert_eq!(world.outbox(id).await, ["alice", "bob"]);
    assert_eq!(world.drain_signups().await.len(), 2, "a repeated request must not be published");
}

#[tokio::test]
async fn a_receipt_can_be_looked_up_until_and_after_it_is_cancelled() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    let granted = call(&signup, "POST", id, "alice").await;
    let shown = call(&signup, "GET", id, "alice").await;
    assert_eq!((shown.status, shown.header("content-type")), (200, Some("application/json")), "{shown:?}");
    assert_eq!(shown.body, granted.body);

    let cancelled = call(&signup, "DELETE", id, "alice").await;
    let shown = call(&signup, "GET", id, "alice").await;
    assert_eq!((shown.status, &shown.body), (200, &cancelled.body));
}

#[tokio::test]
async fn a_cancelled_place_is_202_then_200_and_goes_to_the_next_person() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(1).await, world.signup());
    let granted = call(&signup, "POST", id, "alice").await;
    assert_eq!(call(&signup, "POST", id, "bob").await.code(), "sold-out");

    let cancelled = call(&signup, "DELETE", id, "alice").await;
    let mut receipt = granted.body.clone();
    receipt["status"] = json!("cancelled");
    assert_eq!((cancelled.status, &cancelled.body), (202, &receipt), "the place stays the one that was granted");
    let again = call(&signup, "DELETE", id, "alice").await;
    assert_eq!((again.status, &again.body), (200, &receipt));
    assert_eq!(world.taken(id).await, 0, "a place must not be given back twice");

    assert_eq!(call(&signup, "POST", id, "bob").await.status, 202);
    assert_eq!(call(&signup, "POST", id, "alice").await.code(), "sold-out");
    assert_eq!(world.outbox(id).await, ["alice", "bob"]);
    assert_eq!(world.drain_signups().await.len(), 3);
}

#[tokio::test]
async fn a_person_who_cancelled_can_sign_up_again_with_a_newer_version() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(1).await, world.signup());
    for (method, status) in [("POST", 202), ("DELETE", 202), ("POST", 202), ("POST", 200)] {
        assert_eq!(call(&signup, method, id, "alice").await.status, status, "{method}");
    }
    assert_eq!(call(&signup, "GET", id, "alice").await.body["sequence"], 2);
    let messages: Vec<_> = world.drain_signups().await.iter().map(tests::Message::json).collect();
    let statuses: Vec<_> = messages.iter().map(|message| message["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["signed-up", "cancelled", "signed-up"]);
    let versions: Vec<_> = messages.iter().map(|message| message["version"].as_u64().unwrap()).collect();
    assert!(versions.is_sorted_by(|earlier, later| earlier < later), "{versions:?}");
}

#[tokio::test]
async fn a_sold_out_activity_is_409_for_everyone_but_its_holders() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(1).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    world.drain_signups().await;
    refused(&world, &signup, id, "bob", (409, "sold-out")).await;
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 200);

    let empty = world.open_activity(0).await;
    refused(&world, &signup, empty, "alice", (409, "sold-out")).await;
}

#[tokio::test]
async fn an_activity_that_opens_later_is_409_and_says_when() {
    let world = World::new().await;
    let opens_at = Timestamp::from_ms(Timestamp::now().as_ms() + HOUR_MS).unwrap().to_string();
    let id = world.put_activity(json!({"title": "t", "capacity": 1, "opensAt": opens_at})).await;
    let reply = refused(&world, &world.signup(), id, "alice", (409, "not-open")).await;
    assert_eq!(reply.body["opensAt"], json!(opens_at));
    assert_eq!(reply.header("retry-after"), None);
}

#[tokio::test]
async fn a_paused_activity_is_409_with_a_time_to_try_again_and_keeps_what_it_granted() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    put(&world, id, json!({"title": "t", "capacity": 10, "state": "paused"})).await;
    world.drain_signups().await;

    let reply = refused(&world, &signup, id, "bob", (409, "paused")).await;
    assert_eq!(reply.header("retry-after"), Some("5"));
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 200);
    assert_eq!(call(&signup, "GET", id, "alice").await.status, 200);
    assert_eq!(call(&signup, "DELETE", id, "alice").await.status, 202);
}

#[tokio::test]
async fn a_closed_activity_is_410_and_keeps_what_it_granted() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    put(&world, id, json!({"title": "t", "capacity": 10, "closesAt": "2026-01-01T00:00:00Z"})).await;
    world.drain_signups().await;

    let reply = refused(&world, &signup, id, "bob", (410, "closed")).await;
    assert_eq!(reply.header("retry-after"), None);
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 200);
    assert_eq!(call(&signup, "GET", id, "alice").await.status, 200);
    assert_eq!(call(&signup, "DELETE", id, "alice").await.status, 202);
}

#[tokio::test]
async fn an_unknown_activity_is_404_for_every_call() {
    let world = World::new().await;
    world.open_activity(1).await;
    let (id, signup) = (random_activity_id(), world.signup());
    for method in ["POST", "GET", "DELETE"] {
        let reply = call(&signup, method, id, "alice").await;
        assert_eq!((reply.status, reply.code()), (404, "activity-not-found"), "{method}");
    }
    assert_eq!(world.redis_dump(id).await, [None, None, None]);
    assert!(world.drain_signups().await.is_empty());
}

#[tokio::test]
async fn somebody_who_is_not_signed_up_is_404_for_a_look_and_a_cancellation() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(1).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    let before = world.redis_dump(id).await;
    for method in ["GET", "DELETE"] {
        let reply = call(&signup, method, id, "bob").await;
        assert_eq!((reply.status, reply.code()), (404, "not-signed-up"), "{method}");
    }
    assert_eq!(world.redis_dump(id).await, before);
    assert_eq!(world.drain_signups().await.len(), 1);
}

/// Asks for a place and expects this refusal, which must leave everything as it was.
async fn refused(world: &World, app: &signup::App, id: ActivityId, user: &str, expected: (u16, &str)) -> Reply {
    let before = world.redis_dump(id).await;
    let reply = call(app, "POST", id, user).await;
    assert_eq!((reply.status, reply.code()), expected, "{reply:?}");
    assert_eq!(world.redis_dump(id).await, before, "a refusal changed something in Redis");
    assert!(world.drain_signups().await.is_empty(), "a refusal was published");
    let shown = call(app, "GET", id, user).await;
    assert_eq!((shown.status, shown.code()), (404, "not-signed-up"));
    reply
}

async fn put(world: &World, id: ActivityId, body: serde_json::Value) {
    let path = format!("/activities/{id}");
    let reply = world.activities_call("PUT", &path, Some("organiser"), &body.to_string()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn signed_up_at(reply: &Reply) -> Timestamp {
    reply.body["signedUpAt"].as_str().unwrap().parse().unwrap()
}
