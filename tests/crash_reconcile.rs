//! `reconcile` killed in the middle of a step: the next run goes on from what this one left, and nothing is doubled.

use std::cell::Cell;
use std::time::Duration;

use consumer::Report;
use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{World, call, eventually, mq_event, users};

use crate::ONCE;

const LIMIT: Duration = Duration::from_secs(20);

async fn killed(world: &World, id: ActivityId, point: &str) {
    ONCE.killed(world, "reconcile", &json!({"activityId": id.to_string()}), point).await;
}

/// One run over one activity, once the server has noticed that the killed one is gone, and ended its lock.
async fn compared(world: &World, id: ActivityId) -> Value {
    eventually("the lock of the killed run ends", LIMIT, async || {
        let lock = world.store().lock_comparison(id).await.unwrap();
        let is_free = lock.is_some();
        if let Some(lock) = lock {
            lock.release().await.unwrap();
        }
        is_free
    })
    .await;
    let report = world.reconciled_only(id).await;
    assert_eq!(report["compare"]["walked"], 1, "{report}");
    report
}

/// What the only comparison with findings found: lost in Redis, lost in MySQL, mended.
fn found(report: &Value) -> [u64; 3] {
    let first = &report["compare"]["found"][0];
    [&first["lostInRedis"]["count"], &first["lostInMysql"]["count"], &first["mended"]].map(|n| n.as_u64().unwrap())
}

/// Everybody was granted a place, and MySQL has them all.
async fn recorded(world: &World, people: &[impl AsRef<str>], capacity: u32) -> ActivityId {
    let id = world.open_activity(capacity).await;
    let bodies = world.grant(id, people).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    id
}

async fn redis(world: &World, pipeline: &redis::Pipeline) {
    let _: () = pipeline.query_async(&mut world.redis.clone()).await.unwrap();
}

fn written(count: usize) -> Option<Report> {
    Some(Report { received: count, written: count, settled: count as u64, ..Report::default() })
}

#[tokio::test]
async fn a_relay_killed_after_its_claim_leaves_the_notes_to_a_later_run() {
    let world = World::with(&[("OUTBOX_GRACE_SECS", "1")]).await;
    let id = world.open_activity(3).await;
    world.grant(id, &["ann", "bob", "cid"]).await;
    world.make_due(id).await;
    killed(&world, id, "relay.after-claim").await;
    assert_eq!((world.outbox(id).await.len(), world.queued().await), (3, 0));
    // They are due again by themselves, when the grace is over.
    eventually("the notes are sent", LIMIT, async || world.reconciled_only(id).await["relay"]["sent"] == 3).await;
    assert_eq!(world.pump().await, written(3));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_relay_killed_after_its_publish_has_sent_each_note_and_the_next_sends_none() {
    let world = World::new().await;
    let id = world.open_activity(3).await;
    world.grant(id, &["ann", "bob", "cid"]).await;
    world.make_due(id).await;
    killed(&world, id, "relay.after-publish").await;
    assert_eq!(world.queued().await, 3);
    world.make_due(id).await;
    let relay = world.reconciled_only(id).await["relay"].clone();
    assert_eq!((&relay["overdue"], &relay["sent"], &relay["backlog"]), (&json!(3), &json!(0), &json!(3)));
    assert_eq!(world.pump().await, written(3));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_relay_killed_while_it_waits_for_confirms_sends_the_rest_later() {
    let world = World::new().await;
    let id = world.open_activity(1_500).await;
    world.grant(id, &users(1_500)).await;
    world.make_due(id).await;
    killed(&world, id, "publish.before-confirm").await;
    let sent = world.pump().await.unwrap();
    assert!(sent.received > 0 && sent == written(sent.received).unwrap(), "{sent:?}");
    world.make_due(id).await;
    let rest = 1_500 - sent.received;
    assert_eq!(world.reconciled_only(id).await["relay"]["sent"], rest);
    assert_eq!(world.pump().await, written(rest));
    assert_eq!(world.active(id).await, Some(1_500));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_relay_killed_after_its_second_claim_has_sent_the_first_thousand_once() {
    let world = World::new().await;
    let id = world.open_activity(1_500).await;
    world.grant(id, &users(1_500)).await;
    world.make_due(id).await;
    let event = json!({"activityId": id.to_string()});
    ONCE.killed_on_pass(&world, "reconcile", &event, "relay.after-claim", 2).await;
    assert_eq!(world.pump().await, written(1_000));
    assert_eq!(world.reconciled_only(id).await["relay"]["overdue"], 0, "all were put off");
    world.make_due(id).await;
    assert_eq!(world.reconciled_only(id).await["relay"]["sent"], 500);
    assert_eq!(world.pump().await, written(500));
    world.assert_sound(id, []).await;
}

/// Redis lost everybody; the rows come in two pages.
#[tokio::test]
async fn a_comparison_killed_before_or_after_it_restores_a_page_restores_the_rest_in_the_next_run() {
    for (point, restored) in [("compare.before-restore", 0), ("compare.after-restore", 1_000)] {
        let world = World::new().await;
        let id = recorded(&world, &users(1_500), 1_500).await;
        let keys = ActivityKeys::of(id);
        redis(&world, redis::pipe().del(&keys.signups).hset(&keys.activity, "taken", 0)).await;
        killed(&world, id, point).await;
        assert_eq!(world.taken(id).await, restored, "{point}");
        let report = compared(&world, id).await;
        assert_eq!(found(&report), [1_500 - restored, 0, 1_500 - restored], "{point}: {report}");
        assert_eq!((world.taken(id).await, world.queued().await), (1_500, 0), "{point}");
        assert_eq!(call(&world.signup(), "POST", id, "zoe").await.code(), "sold-out", "{point}");
        world.assert_sound(id, []).await;
    }
}

#[tokio::test]
async fn a_comparison_killed_before_it_sends_again_what_mysql_lost_does_so_in_the_next_run() {
    let world = World::new().await;
    let id = recorded(&world, &["ann", "bob", "cid"], 3).await;
    world.forget_rows(id).await;
    killed(&world, id, "compare.before-resend").await;
    assert_eq!((world.outbox(id).await.len(), world.queued().await), (0, 0));
    let report = compared(&world, id).await;
    assert_eq!((found(&report), &report["relayAgain"]["sent"]), ([0, 3, 3], &json!(3)), "{report}");
    assert_eq!(world.pump().await, written(3));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_comparison_killed_after_it_noted_what_mysql_lost_leaves_it_to_the_next_relay() {
    let world = World::new().await;
    let id = recorded(&world, &["ann", "bob", "cid"], 3).await;
    world.forget_rows(id).await;
    killed(&world, id, "compare.after-resend").await;
    assert_eq!((world.outbox(id).await.len(), world.queued().await), (3, 0));
    let report = compared(&world, id).await;
    assert_eq!((&report["relay"]["sent"], &report["compare"]["found"]), (&json!(3), &json!([])), "{report}");
    assert_eq!(world.pump().await, written(3));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_comparison_killed_before_it_mends_a_count_mends_it_in_the_next_run() {
    let world = World::new().await;
    let id = recorded(&world, &["ann", "bob"], 3).await;
    redis(&world, redis::pipe().hset(ActivityKeys::of(id).activity, "taken", 3)).await;
    killed(&world, id, "compare.before-recount").await;
    assert_eq!(world.taken(id).await, 3);
    let report = compared(&world, id).await;
    assert_eq!((found(&report), world.taken(id).await), ([0, 0, 1], 2), "{report}");
    let cid = call(&world.signup(), "POST", id, "cid").await;
    assert_eq!((cid.status, &cid.body["sequence"]), (202, &json!(3)));
    world.pump().await;
    world.assert_sound(id, [cid.body]).await;
}

/// Three parked messages. A kill at the first acknowledgement leaves all of them parked, one at the second two; all have
/// been published. What is replayed again finds its row.
#[tokio::test]
async fn a_replay_killed_between_confirm_and_acknowledgement_parks_what_it_had_and_doubles_no_row() {
    for (pass, left) in [(1, 3), (2, 2), (3, 1)] {
        let world = World::new().await;
        let id = world.open_activity(3).await;
        for body in world.grant(id, &["ann", "bob", "cid"]).await {
            world.park_by_hand(&body).await;
        }
        let event = json!({"replayParked": 100});
        ONCE.killed_on_pass(&world, "reconcile", &event, "replay.before-ack", pass).await;
        assert_eq!(world.queued().await, 3);
        replay_the_rest(&world, left).await;
        let report = world.pump().await;
        let expected = Report { received: 3 + left, written: 3, settled: 3, ..Report::default() };
        assert_eq!(report, Some(expected), "killed at acknowledgement {pass}");
        world.assert_sound(id, []).await;
    }
}

#[tokio::test]
async fn a_replay_killed_before_its_confirms_loses_nothing() {
    let world = World::new().await;
    let id = world.open_activity(3).await;
    for body in world.grant(id, &["ann", "bob", "cid"]).await {
        world.park_by_hand(&body).await;
    }
    ONCE.killed(&world, "reconcile", &json!({"replayParked": 100}), "publish.before-confirm").await;
    assert!((1..=3).contains(&world.queued().await));
    replay_the_rest(&world, 3).await;
    let report = world.pump().await.unwrap();
    assert_eq!((report.written, report.settled, report.parked), (3, 3, 0), "{report:?}");
    world.assert_sound(id, []).await;
}

/// The broker takes back what a killed run held, as soon as it notices.
async fn replay_the_rest(world: &World, count: usize) {
    let (event, replayed) = (json!({"replayParked": 100}), Cell::new(0));
    eventually("the rest is replayed", LIMIT, async || {
        let report = world.reconciled(event.clone()).await;
        replayed.set(replayed.get() + report["replay"]["replayed"].as_u64().unwrap());
        replayed.get() >= count as u64
    })
    .await;
    assert_eq!((replayed.get(), world.drain_parked().await.len()), (count as u64, 0));
}
