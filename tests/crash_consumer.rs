//! `consumer` killed at each step of a batch. The event source, which got no answer, delivers the whole batch again, and
//! the second time finds what the first one left.

use consumer::Report;
use serde_json::Value;
use shared::domain::ActivityId;
use shared::message::barrier_to_json;
use shared::reservations::REBUILD_KEY;
use tests::{World, mq_event, users};

use crate::ONCE;

async fn killed(world: &World, batch: &Value, point: &str) {
    ONCE.killed(world, "consumer", batch, point).await;
}

async fn delivered_again(world: &World, batch: Value) -> Report {
    world.consume(&world.consumer(), batch).await.unwrap()
}

/// Two people with a place and one who gave it back, of whom MySQL knows nothing: four messages, three facts.
async fn three_facts(world: &World) -> (ActivityId, Value) {
    let id = world.open_activity(2).await;
    let mut bodies = world.grant(id, &["ann", "bob"]).await;
    bodies.push(world.give_back(id, "bob").await);
    bodies.extend(world.grant(id, &["cid"]).await);
    (id, mq_event(bodies))
}

async fn all_are_recorded_once(world: &World, id: ActivityId) {
    let expected = [("ann".to_owned(), 1), ("bob".to_owned(), 2), ("cid".to_owned(), 1)];
    assert_eq!((world.statuses(id).await, world.active(id).await), (expected.into(), Some(2)));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn a_batch_that_nothing_befalls_is_taken_by_its_process() {
    let world = World::new().await;
    let (id, batch) = three_facts(&world).await;
    let report = ONCE.ran(&world, "consumer", &batch).await;
    assert_eq!((&report["received"], &report["written"], &report["settled"]), (&4.into(), &3.into(), &3.into()));
    all_are_recorded_once(&world, id).await;
}

#[tokio::test]
async fn killed_before_the_upsert_or_before_its_commit_nothing_is_written_until_the_batch_comes_again() {
    for point in ["consumer.before-upsert", "upsert.before-commit"] {
        let world = World::new().await;
        let (id, batch) = three_facts(&world).await;
        killed(&world, &batch, point).await;
        assert_eq!((world.rows(id).await.len(), world.active(id).await), (0, Some(0)), "{point}");
        assert_eq!(world.outbox(id).await, ["ann", "bob", "cid"], "{point}");
        let report = delivered_again(&world, batch).await;
        assert_eq!(report, Report { received: 4, written: 3, settled: 3, ..Report::default() }, "{point}");
        all_are_recorded_once(&world, id).await;
    }
}

#[tokio::test]
async fn killed_between_commit_and_settle_the_notes_stay_until_the_batch_comes_again() {
    let world = World::new().await;
    let (id, batch) = three_facts(&world).await;
    killed(&world, &batch, "consumer.before-settle").await;
    assert_eq!((world.rows(id).await.len(), world.active(id).await), (3, Some(2)));
    assert_eq!(world.outbox(id).await, ["ann", "bob", "cid"]);
    let report = delivered_again(&world, batch).await;
    assert_eq!(report, Report { received: 4, stale: 3, settled: 3, ..Report::default() });
    all_are_recorded_once(&world, id).await;
}

#[tokio::test]
async fn killed_between_settle_and_reply_the_batch_changes_nothing_when_it_comes_again() {
    let world = World::new().await;
    let (id, batch) = three_facts(&world).await;
    killed(&world, &batch, "consumer.before-reply").await;
    let (rows, redis) = (world.rows(id).await, world.redis_dump(id).await);
    assert_eq!((rows.len(), world.outbox(id).await.len()), (3, 0));
    let report = delivered_again(&world, batch).await;
    assert_eq!(report, Report { received: 4, stale: 3, ..Report::default() });
    assert_eq!((world.rows(id).await, world.redis_dump(id).await), (rows, redis));
    all_are_recorded_once(&world, id).await;
}

/// The broker may hold a batch back for long, or lose it: the outbox alone must do.
#[tokio::test]
async fn killed_between_commit_and_settle_the_relay_settles_what_never_comes_again() {
    let world = World::new().await;
    let (id, batch) = three_facts(&world).await;
    killed(&world, &batch, "consumer.before-settle").await;
    world.make_due(id).await;
    assert_eq!(world.reconciled_only(id).await["relay"]["sent"], 3);
    let report = world.pump().await;
    assert_eq!(report, Some(Report { received: 3, stale: 3, settled: 3, ..Report::default() }));
    all_are_recorded_once(&world, id).await;
}

#[tokio::test]
async fn killed_in_its_second_transaction_a_large_batch_keeps_the_first_and_writes_only_the_rest_again() {
    let world = World::new().await;
    let id = world.open_activity(1_500).await;
    let batch = mq_event(world.grant(id, &users(1_500)).await);
    ONCE.killed_on_pass(&world, "consumer", &batch, "upsert.before-commit", 2).await;
    assert_eq!((world.active(id).await, world.outbox(id).await.len()), (Some(1_000), 1_500));
    let report = delivered_again(&world, batch).await;
    let expected = Report { received: 1_500, written: 500, stale: 1_000, settled: 1_500, ..Report::default() };
    assert_eq!(report, expected);
    assert_eq!(world.active(id).await, Some(1_500));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn killed_at_the_last_place_the_one_who_has_it_keeps_it_and_the_surplus_keeps_its_note() {
    let world = World::new().await;
    let id = world.open_activity(2).await;
    let mut bodies = world.grant(id, &["ann", "bob"]).await;
    // Redis lost ann, and gave her place to cid.
    let keys = shared::reservations::ActivityKeys::of(id);
    let mut lose = redis::pipe();
    lose.hdel(&keys.signups, "ann").zrem(&keys.outbox, "ann").hset(&keys.activity, "taken", 1);
    let _: () = lose.query_async(&mut world.redis.clone()).await.unwrap();
    bodies.extend(world.grant(id, &["cid"]).await);
    let batch = mq_event(bodies);
    killed(&world, &batch, "consumer.before-settle").await;
    let rows = world.rows(id).await;
    assert_eq!(rows.len(), 2);
    let report = delivered_again(&world, batch).await;
    assert_eq!((report.written, report.stale, report.surplus), (0, 2, 1));
    assert_eq!((world.rows(id).await, world.active(id).await), (rows, Some(2)));
    let without: Vec<_> = world.outbox(id).await;
    assert_eq!(without.len(), 1, "one of three has no place: {without:?}");
}

/// Parking is at least once: a batch that comes again brings its poison along.
#[tokio::test]
async fn poison_is_parked_after_a_kill_and_good_rows_are_written_once() {
    for (point, parked) in [("consumer.before-park", 1), ("consumer.before-reply", 2)] {
        let world = World::new().await;
        let id = world.open_activity(1).await;
        let mut bodies = world.grant(id, &["ann"]).await;
        bodies.push(b"poison".to_vec());
        let batch = mq_event(bodies);
        killed(&world, &batch, point).await;
        assert_eq!((world.active(id).await, world.outbox(id).await.len()), (Some(1), 0), "{point}");
        let report = delivered_again(&world, batch).await;
        assert_eq!(report, Report { received: 2, stale: 1, parked: 1, ..Report::default() }, "{point}");
        let copies = world.drain_parked().await;
        assert_eq!(copies.len(), parked, "{point}");
        assert!(copies.iter().all(|copy| copy.body == b"poison"), "{point}");
        world.assert_sound(id, []).await;
    }
}

#[tokio::test]
async fn a_barrier_has_not_passed_before_the_batch_that_holds_it_is_settled() {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(1).await;
    let barrier = world.reservations().notice(&[id]).await.unwrap().barrier;
    let mut bodies = world.grant(id, &["ann"]).await;
    bodies.push(barrier_to_json(barrier, 0));
    let batch = mq_event(bodies);
    let has_passed = async || world.reservations().passed().await.unwrap().through(0, barrier);
    killed(&world, &batch, "upsert.before-commit").await;
    assert!(!has_passed().await);
    killed(&world, &batch, "consumer.before-settle").await;
    assert!(!has_passed().await);
    let report = delivered_again(&world, batch).await;
    assert_eq!(report, Report { received: 2, stale: 1, settled: 1, ..Report::default() });
    assert!(has_passed().await);
    let _: () = redis::cmd("DEL").arg(REBUILD_KEY).query_async(&mut world.redis.clone()).await.unwrap();
    world.assert_sound(id, []).await;
    apart.stop().await;
}
