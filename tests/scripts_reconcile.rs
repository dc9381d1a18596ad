//! Every outcome of the scripts that `reconcile` calls, on a real Redis.

use redis::AsyncCommands;
use shared::domain::{Activity, ActivityId, ActivityState, Signup, SignupStatus, Timestamp, UserId, Version};
use shared::message::Barrier;
use shared::reservations::{ActivityKeys, Archive, Lookup, Reservation, Reservations, Restored};
use tests::{World, fact_of, random_activity_id};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

fn later(ms: u64) -> Timestamp {
    Timestamp::from_ms(Timestamp::now().as_ms() + ms).unwrap()
}

async fn due(world: &World, id: ActivityId, name: &str) -> u64 {
    let due: f64 = world.redis.clone().zscore(ActivityKeys::of(id).outbox, name).await.unwrap();
    due as u64
}

fn names(signups: &[Signup]) -> Vec<&str> {
    signups.iter().map(|signup| signup.user_id.as_str()).collect()
}

#[tokio::test]
async fn claim_hands_out_what_is_due_and_puts_it_off_by_its_age_within_bounds() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(10).await, world.reservations());
    let fact = fact_of(&world.grant(id, &["ann"]).await[0]);
    assert_eq!(names(&reservations.claim(id, Timestamp::now()).await.unwrap().signups), [""; 0]);
    // Its grace is a minute. A clock ahead of the server's counts, so that nobody has to wait here.
    for (age_ms, pause_ms) in [(MINUTE_MS, MINUTE_MS), (5 * MINUTE_MS, 5 * MINUTE_MS), (90 * MINUTE_MS, 10 * MINUTE_MS)]
    {
        let now = Timestamp::from_ms(fact.version.get() + age_ms).unwrap();
        let claimed = reservations.claim(id, now).await.unwrap();
        assert_eq!((names(&claimed.signups), claimed.damaged), (vec!["ann"], 0));
        assert_eq!(claimed.signups[0], fact);
        assert_eq!(claimed.oldest_ms, age_ms);
        assert_eq!(due(&world, id, "ann").await, now.as_ms() + pause_ms);
        assert!(reservations.claim(id, now).await.unwrap().signups.is_empty(), "handed out twice");
    }
}

#[tokio::test]
async fn claim_drops_a_note_without_a_receipt_and_leaves_one_beside_a_damaged_receipt_for_a_day() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(10).await, world.reservations());
    world.grant(id, &["ann", "bob", "cid"]).await;
    let signups = ActivityKeys::of(id).signups;
    let _: () = world.redis.clone().hdel(&signups, "ann").await.unwrap();
    let _: () = world.redis.clone().hset(&signups, "bob", "1 x").await.unwrap();
    let now = later(2 * MINUTE_MS);
    let claimed = reservations.claim(id, now).await.unwrap();
    assert_eq!((names(&claimed.signups), claimed.damaged), (vec!["cid"], 1));
    assert_eq!(world.outbox(id).await, ["bob", "cid"]);
    assert_eq!(due(&world, id, "bob").await, now.as_ms() + DAY_MS);
}

#[tokio::test]
async fn unclaim_makes_a_note_due_again_but_brings_none_back() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(10).await, world.reservations());
    let fact = fact_of(&world.grant(id, &["ann", "bob"]).await[0]);
    let now = later(2 * MINUTE_MS);
    reservations.claim(id, now).await.unwrap();
    reservations.settle(id, &[(&fact.user_id, fact.version)]).await.unwrap();
    reservations.unclaim(id, &[&user("ann"), &user("bob")], now).await.unwrap();
    assert_eq!(names(&reservations.claim(id, now).await.unwrap().signups), ["bob"]);
    assert_eq!(world.outbox(id).await, ["bob"]);
}

#[tokio::test]
async fn postpone_puts_the_note_of_a_parked_fact_off_for_a_day_and_of_no_newer_one() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(10).await, world.reservations());
    let facts: Vec<_> = world.grant(id, &["ann", "bob"]).await.iter().map(|body| fact_of(body)).collect();
    world.give_back(id, "bob").await;
    let newer = due(&world, id, "bob").await;
    let before = Timestamp::now().as_ms();
    let parked: Vec<_> = facts.iter().map(|fact| (&fact.user_id, fact.version)).collect();
    assert_eq!(reservations.postpone(id, &parked).await.unwrap(), 1);
    assert!((before + DAY_MS..=before + DAY_MS + MINUTE_MS).contains(&due(&world, id, "ann").await));
    assert_eq!(due(&world, id, "bob").await, newer);
    reservations.settle(id, &[(&facts[0].user_id, facts[0].version)]).await.unwrap();
    assert_eq!(reservations.postpone(id, &parked).await.unwrap(), 0, "a settled note came back");
    assert_eq!(world.outbox(id).await, ["bob"]);
}

#[tokio::test]
async fn restore_writes_newer_facts_only_and_moves_the_count_with_them() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(2).await, world.reservations());
    let facts: Vec<_> = world.grant(id, &["ann", "bob"]).await.iter().map(|body| fact_of(body)).collect();
    let newer = |fact: &Signup, status| Signup {
        status,
        version: Version::new(fact.version.get() + 5).unwrap(),
        ..fact.clone()
    };
    let older = Signup { version: Version::new(1).unwrap(), status: SignupStatus::Cancelled, ..facts[1].clone() };
    let unknown = Signup { user_id: user("cid"), sequence: 9, ..facts[0].clone() };
    let before = world.redis_dump(id).await;
    assert_eq!(reservations.restore(id, &[facts[0].clone(), older]).await.unwrap(), Restored::default());
    assert_eq!(world.redis_dump(id).await, before);

    let rows = [newer(&facts[0], SignupStatus::Cancelled), newer(&facts[1], SignupStatus::SignedUp), unknown];
    assert_eq!(reservations.restore(id, &rows).await.unwrap(), Restored { restored: 3, damaged: 0 });
    assert_eq!((world.taken(id).await, world.outbox(id).await.len()), (2, 0));
    for row in rows {
        let found = reservations.find(id, &row.user_id).await.unwrap();
        assert_eq!(found, Lookup::Found { signup: row, queued: false });
    }
    assert_eq!(reservations.reserve(id, &user("dan")).await.unwrap(), Reservation::SoldOut);
    let standing = reservations.standing(id).await.unwrap();
    assert_eq!((standing.sequence, standing.receipts), (9, 3));
}

#[tokio::test]
async fn restore_may_pass_the_capacity_and_leaves_what_it_cannot_read() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(1).await, world.reservations());
    let fact = fact_of(&world.grant(id, &["ann"]).await[0]);
    let bob = Signup { user_id: user("bob"), ..fact.clone() };
    let _: () = world.redis.clone().hset(ActivityKeys::of(id).signups, "ann", "x").await.unwrap();
    let restored = reservations.restore(id, &[fact, bob]).await.unwrap();
    assert_eq!(restored, Restored { restored: 1, damaged: 1 });
    assert_eq!(world.taken(id).await, 2);
}

#[tokio::test]
async fn recount_sets_the_count_unless_somebody_came_or_went() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(9).await, world.reservations());
    world.grant(id, &["ann", "bob"]).await;
    for change in ["grant", "give back", "both"] {
        let before = reservations.standing(id).await.unwrap();
        if change != "give back" {
            world.grant(id, &[change.replace(' ', "-")]).await;
        }
        if change != "grant" {
            world.give_back(id, if change == "both" { "ann" } else { "bob" }).await;
        }
        let taken = world.taken(id).await;
        assert!(!reservations.recount(id, before, 7).await.unwrap(), "{change}");
        assert_eq!(world.taken(id).await, taken);
    }
    let before = reservations.standing(id).await.unwrap();
    assert!(reservations.recount(id, before, 7).await.unwrap());
    assert_eq!(world.taken(id).await, 7);
}

#[tokio::test]
async fn withdraw_cancels_only_what_is_still_one_too_many() {
    let world = World::new().await;
    let (id, reservations) = (world.open_activity(2).await, world.reservations());
    let facts: Vec<_> = world.grant(id, &["ann", "bob"]).await.iter().map(|body| fact_of(body)).collect();
    assert!(!reservations.withdraw(&facts[1]).await.unwrap(), "everybody fits");
    let _: () = world.redis.clone().hset(ActivityKeys::of(id).activity, "taken", 3).await.unwrap();
    let older = Signup { version: Version::new(1).unwrap(), ..facts[1].clone() };
    assert!(!reservations.withdraw(&older).await.unwrap(), "another fact");
    assert!(reservations.withdraw(&facts[1]).await.unwrap());
    assert!(!reservations.withdraw(&facts[1]).await.unwrap(), "cancelled before");
    assert_eq!(world.taken(id).await, 2);
    let Lookup::Found { signup, queued: true } = reservations.find(id, &user("bob")).await.unwrap() else {
        panic!("no note")
    };
    assert_eq!((signup.status, signup.sequence), (SignupStatus::Cancelled, facts[1].sequence));
    assert!(signup.version > facts[1].version);
    assert!(due(&world, id, "bob").await <= Timestamp::now().as_ms());
}

#[tokio::test]
async fn archive_refuses_what_is_open_or_on_its_way_or_lost() {
    let world = World::new().await;
    let reservations = world.reservations();
    let closed = |ago_ms: u64| Activity {
        title: "t".into(),
        capacity: 2,
        opens_at: None,
        closes_at: Some(Timestamp::from_ms(Timestamp::now().as_ms() - ago_ms).unwrap()),
        state: ActivityState::Open,
    };
    let (id, week) = (world.open_activity(2).await, std::time::Duration::from_hours(7 * 24));
    assert_eq!(reservations.archive(id, week).await.unwrap(), Archive::NotClosed);
    reservations.load(id, &closed(6 * DAY_MS)).await.unwrap();
    assert_eq!(reservations.archive(id, week).await.unwrap(), Archive::NotClosed);
    reservations.load(id, &closed(8 * DAY_MS)).await.unwrap();
    let _: () = world.redis.clone().zadd(ActivityKeys::of(id).outbox, "ann", 1).await.unwrap();
    assert_eq!(reservations.archive(id, week).await.unwrap(), Archive::NotSettled);
    let _: () = world.redis.clone().del(ActivityKeys::of(id).outbox).await.unwrap();
    for _ in 0..2 {
        assert_eq!(reservations.archive(id, week).await.unwrap(), Archive::Archived);
    }
    assert_eq!(reservations.archive(random_activity_id(), week).await.unwrap(), Archive::NotLoaded);
}

#[tokio::test]
async fn barriers_rise_and_each_activity_waits_for_one_from_after_its_loss() {
    let (world, apart) = World::apart(&[]).await;
    let reservations: Reservations = world.reservations();
    let (first, second) = (ActivityId::new(1), ActivityId::new(2));
    let one = reservations.notice(&[first]).await.unwrap();
    assert_eq!(one.missing, [(first, one.barrier)]);
    assert!(!reservations.passed().await.unwrap().through(0, one.barrier));
    reservations.pass(0, one.barrier).await.unwrap();

    let two = reservations.notice(&[first, second]).await.unwrap();
    assert!(two.barrier > one.barrier);
    assert_eq!(two.missing, [(first, one.barrier), (second, two.barrier)]);
    let passed = reservations.passed().await.unwrap();
    assert!(passed.through(0, one.barrier) && !passed.through(0, two.barrier));
    assert!(!passed.through(1, one.barrier), "each queue has barriers of its own");
    reservations.pass(7, two.barrier).await.unwrap();
    let passed = reservations.passed().await.unwrap();
    assert!(passed.through_all(&[0, 7], one.barrier) && !passed.through_all(&[0, 7], two.barrier));
    assert!(!passed.through_all(&[0, 1, 7], one.barrier));

    reservations.forget_missing(first).await.unwrap();
    let three = reservations.notice(&[first]).await.unwrap();
    assert!(three.missing[0].1 > two.barrier, "a new loss waits for a new barrier");
    reservations.pass(0, Barrier::new(three.barrier.get() + 1)).await.unwrap();
    assert!(reservations.passed().await.unwrap().through(0, three.barrier));
    assert_eq!(reservations.noted_missing().await.unwrap().len(), 2, "the other fields are no activities");
    apart.stop().await;
}
