//! `signup` killed at each step of a request. Whatever was done stays, whatever was not is as if nobody had asked, and
//! asking again tells the truth.

use std::collections::BTreeSet;

use consumer::Report;
use futures::future::join_all;
use serde_json::{Value, json};
use shared::domain::ActivityId;
use tests::{Reply, World, call, signup_event};

use crate::ONCE;

const BEFORE_RESERVE: &str = "signup.before-reserve";
const BEFORE_PUBLISH: &str = "signup.before-publish";
const BEFORE_CONFIRM: &str = "publish.before-confirm";
const BEFORE_REPLY: &str = "signup.before-reply";

async fn killed(world: &World, method: &str, id: ActivityId, user: &str, point: &str) {
    ONCE.killed(world, "signup", &signup_event(method, id, user), point).await;
}

/// Status, place and state of a receipt.
fn told(reply: &Reply) -> (u16, &Value, &str) {
    (reply.status, &reply.body["sequence"], reply.body["status"].as_str().unwrap_or_default())
}

fn one_row() -> Option<Report> {
    Some(Report { received: 1, written: 1, settled: 1, ..Report::default() })
}

#[tokio::test]
async fn a_request_that_nothing_befalls_is_answered_by_its_process() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    let reply = ONCE.ran(&world, "signup", &signup_event("POST", id, "alice")).await;
    assert_eq!((&reply["status"], &reply["body"]["sequence"]), (&json!(202), &json!(1)));
    assert_eq!(world.pump().await, one_row());
    world.assert_sound(id, [reply["body"].clone()]).await;
}

#[tokio::test]
async fn killed_before_the_script_nothing_has_happened_and_asking_again_is_granted() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    let before = world.redis_dump(id).await;
    killed(&world, "POST", id, "alice", BEFORE_RESERVE).await;
    assert_eq!((world.redis_dump(id).await, world.queued().await), (before, 0));

    let again = call(&world.signup(), "POST", id, "alice").await;
    assert_eq!(told(&again), (202, &json!(1), "queued"));
    assert_eq!(world.pump().await, one_row());
    world.assert_sound(id, [again.body]).await;
}

#[tokio::test]
async fn killed_between_script_and_publish_the_place_is_held_and_the_relay_brings_it_to_mysql() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    killed(&world, "POST", id, "alice", BEFORE_PUBLISH).await;
    assert_eq!((world.taken(id).await, world.outbox(id).await), (1, vec!["alice".to_owned()]));
    assert_eq!(world.queued().await, 0);
    assert_eq!(call(&world.signup(), "POST", id, "bob").await.code(), "sold-out");

    let again = call(&world.signup(), "POST", id, "alice").await;
    assert_eq!(told(&again), (200, &json!(1), "queued"));
    assert_eq!(world.queued().await, 0, "asking again publishes nothing: the outbox has the note");
    assert_eq!(world.reconciled_only(id).await["relay"]["overdue"], 0, "its grace is not over");
    world.make_due(id).await;
    assert_eq!(world.reconciled_only(id).await["relay"]["sent"], 1);
    assert_eq!(world.pump().await, one_row());
    assert_eq!(told(&call(&world.signup(), "GET", id, "alice").await), (200, &json!(1), "confirmed"));
    world.assert_sound(id, [again.body]).await;
}

#[tokio::test]
async fn killed_between_publish_and_confirm_the_message_arrives_once_and_asking_again_sends_no_other() {
    the_message_is_on_its_way(BEFORE_CONFIRM).await;
}

#[tokio::test]
async fn killed_between_confirm_and_reply_the_message_arrives_once_and_asking_again_sends_no_other() {
    the_message_is_on_its_way(BEFORE_REPLY).await;
}

async fn the_message_is_on_its_way(point: &str) {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    killed(&world, "POST", id, "alice", point).await;
    assert_eq!((world.taken(id).await, world.outbox(id).await), (1, vec!["alice".to_owned()]));
    assert_eq!(world.queued().await, 1);

    let again = call(&world.signup(), "POST", id, "alice").await;
    assert_eq!(told(&again), (200, &json!(1), "queued"));
    // With the message in the queue the relay holds back, even when the note is overdue.
    world.make_due(id).await;
    let relay = world.reconciled_only(id).await["relay"].clone();
    assert_eq!((&relay["overdue"], &relay["sent"], &relay["backlog"]), (&json!(1), &json!(0), &json!(1)));
    assert_eq!(world.pump().await, one_row());
    assert_eq!(told(&call(&world.signup(), "POST", id, "alice").await), (200, &json!(1), "confirmed"));
    world.assert_sound(id, [again.body]).await;
}

#[tokio::test]
async fn a_place_whose_user_never_asks_again_ends_in_mysql_all_the_same() {
    let world = World::new().await;
    let id = world.open_activity(3).await;
    for (user, point) in [("ann", BEFORE_PUBLISH), ("bob", BEFORE_CONFIRM), ("cid", BEFORE_REPLY)] {
        killed(&world, "POST", id, user, point).await;
    }
    let report = world.pump().await;
    assert_eq!(report, Some(Report { received: 2, written: 2, settled: 2, ..Report::default() }));
    world.make_due(id).await;
    assert_eq!(world.reconciled_only(id).await["relay"]["sent"], 1);
    assert_eq!(world.pump().await, one_row());
    assert_eq!(world.statuses(id).await, [("ann".to_owned(), 1), ("bob".to_owned(), 1), ("cid".to_owned(), 1)]);
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_cancellation_killed_before_the_script_has_not_happened() {
    let (world, id) = with_alice().await;
    let before = world.redis_dump(id).await;
    killed(&world, "DELETE", id, "alice", "cancel.before-release").await;
    assert_eq!((world.redis_dump(id).await, world.queued().await), (before, 0));
    assert_eq!(told(&call(&world.signup(), "DELETE", id, "alice").await), (202, &json!(1), "cancelled"));
    assert_eq!(world.pump().await, one_row());
    the_place_is_free_once(&world, id).await;
}

#[tokio::test]
async fn a_cancellation_killed_between_script_and_publish_is_brought_to_mysql_by_the_relay() {
    let (world, id) = with_alice().await;
    killed(&world, "DELETE", id, "alice", "cancel.before-publish").await;
    assert_eq!((world.taken(id).await, world.queued().await), (0, 0));
    assert_eq!(told(&call(&world.signup(), "DELETE", id, "alice").await), (200, &json!(1), "cancelled"));
    world.make_due(id).await;
    assert_eq!(world.reconciled_only(id).await["relay"]["sent"], 1);
    assert_eq!(world.pump().await, one_row());
    the_place_is_free_once(&world, id).await;
}

#[tokio::test]
async fn a_cancellation_killed_after_its_publish_frees_the_place_once() {
    for point in [BEFORE_CONFIRM, "cancel.before-reply"] {
        let (world, id) = with_alice().await;
        killed(&world, "DELETE", id, "alice", point).await;
        assert_eq!((world.taken(id).await, world.queued().await), (0, 1), "{point}");
        assert_eq!(told(&call(&world.signup(), "DELETE", id, "alice").await), (200, &json!(1), "cancelled"));
        assert_eq!(world.pump().await, one_row(), "{point}");
        the_place_is_free_once(&world, id).await;
    }
}

/// One place, which `alice` holds, in MySQL too.
async fn with_alice() -> (World, ActivityId) {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    assert_eq!(call(&world.signup(), "POST", id, "alice").await.status, 202);
    assert_eq!(world.pump().await, one_row());
    (world, id)
}

async fn the_place_is_free_once(world: &World, id: ActivityId) {
    assert_eq!((world.taken(id).await, world.active(id).await), (0, Some(0)));
    let bob = call(&world.signup(), "POST", id, "bob").await;
    assert_eq!(told(&bob), (202, &json!(2), "queued"));
    assert_eq!(call(&world.signup(), "POST", id, "cid").await.code(), "sold-out");
    assert_eq!(world.pump().await, one_row());
    assert_eq!(world.statuses(id).await, [("alice".to_owned(), 2), ("bob".to_owned(), 1)]);
    world.assert_sound(id, [bob.body]).await;
}

/// Two people die at each point, all at once; six of them after the script, for six places.
#[tokio::test]
async fn a_crowd_of_killed_requests_holds_each_place_once() {
    let world = World::new().await;
    let id = world.open_activity(6).await;
    let points = [BEFORE_RESERVE, BEFORE_PUBLISH, BEFORE_CONFIRM, BEFORE_REPLY];
    let people: Vec<String> = (0..8).map(|n| format!("user-{n}")).collect();
    let deaths = people.iter().zip(points.iter().cycle());
    join_all(deaths.clone().map(|(user, point)| killed(&world, "POST", id, user, point))).await;
    assert_eq!(world.taken(id).await, 6);

    let (signup, mut receipts) = (world.signup(), Vec::new());
    for (user, point) in deaths {
        let again = call(&signup, "POST", id, user).await;
        if *point == BEFORE_RESERVE {
            assert_eq!(again.code(), "sold-out", "{user}");
        } else {
            assert_eq!(again.status, 200, "{user}, killed at {point}: {again:?}");
            receipts.push(again.body);
        }
    }
    let places: BTreeSet<_> = receipts.iter().filter_map(|receipt| receipt["sequence"].as_u64()).collect();
    assert_eq!(places, (1..=6).collect());
    world.pump().await;
    world.make_due(id).await;
    world.reconciled_only(id).await;
    world.pump().await;
    assert_eq!((world.rows(id).await.len(), world.active(id).await), (6, Some(6)));
    world.assert_sound(id, receipts).await;
}

#[tokio::test]
async fn a_test_whose_kill_never_happens_fails() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    assert_eq!(call(&world.signup(), "POST", id, "alice").await.status, 202);
    let event = signup_event("POST", id, "alice");
    let error = ONCE.died(&world, "signup", &event, BEFORE_PUBLISH, 1).await.unwrap_err();
    assert!(error.starts_with("signup never came to signup.before-publish"), "{error}");
}
