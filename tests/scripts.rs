//! Every outcome of every script, on a real Redis.

use redis::AsyncCommands;
use shared::domain::{Activity, ActivityId, ActivityState, Signup, SignupStatus, Timestamp, UserId, Version};
use shared::reservations::{ActivityKeys, Load, Lookup, Release, Reservation, ReservationsError};
use tests::{World, random_activity_id};

fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

fn activity(capacity: u32) -> Activity {
    Activity { title: "Spring hike".into(), capacity, opens_at: None, closes_at: None, state: ActivityState::Open }
}

fn ms_from_now(ms: i64) -> Option<Timestamp> {
    Some(Timestamp::from_ms(Timestamp::now().as_ms().checked_add_signed(ms).unwrap()).unwrap())
}

async fn loaded(world: &World, activity: &Activity) -> ActivityId {
    let id = random_activity_id();
    world.reservations().remember(&[id]).await.unwrap();
    assert_eq!(world.reservations().launch(id, activity, 0, 0).await.unwrap(), Load::Loaded { taken: 0 });
    id
}

async fn reserved(world: &World, id: ActivityId, name: &str) -> Signup {
    match world.reservations().reserve(id, &user(name)).await.unwrap() {
        Reservation::Reserved(signup) => signup,
        other => panic!("not reserved: {other:?}"),
    }
}

#[tokio::test]
async fn reserve_takes_a_place_and_notes_it_in_the_outbox() {
    let world = World::new().await;
    let id = loaded(&world, &activity(2)).await;
    let before = Timestamp::now();
    let signup = reserved(&world, id, "alice").await;
    assert_eq!((signup.sequence, signup.status), (1, SignupStatus::SignedUp));
    assert!(signup.signed_up_at >= before && signup.signed_up_at <= Timestamp::now());
    assert_eq!(signup.version.get(), signup.signed_up_at.as_ms());
    assert_eq!((world.taken(id).await, world.outbox(id).await), (1, vec!["alice".to_owned()]));
    let due: f64 = world.redis.clone().zscore(ActivityKeys::of(id).outbox, "alice").await.unwrap();
    assert_eq!(due as u64, signup.signed_up_at.as_ms() + 60_000);
}

#[tokio::test]
async fn reserve_gives_the_same_receipt_again_and_takes_no_second_place() {
    let world = World::new().await;
    let id = loaded(&world, &activity(1)).await;
    let signup = reserved(&world, id, "alice").await;
    let before = world.redis_dump(id).await;
    let again = world.reservations().reserve(id, &user("alice")).await.unwrap();
    assert_eq!(again, Reservation::AlreadySignedUp { signup, queued: true });
    assert_eq!(world.redis_dump(id).await, before);
}

#[tokio::test]
async fn a_receipt_is_given_again_also_while_the_activity_is_paused_or_closed() {
    let world = World::new().await;
    let id = loaded(&world, &activity(1)).await;
    let signup = reserved(&world, id, "alice").await;
    for changed in [
        Activity { state: ActivityState::Paused, ..activity(1) },
        Activity { closes_at: ms_from_now(-1), ..activity(1) },
        Activity { opens_at: ms_from_now(60_000), ..activity(1) },
    ] {
        world.reservations().load(id, &changed).await.unwrap();
        let again = world.reservations().reserve(id, &user("alice")).await.unwrap();
        assert_eq!(again, Reservation::AlreadySignedUp { signup: signup.clone(), queued: true });
    }
}

#[tokio::test]
async fn reserve_refuses_when_sold_out_paused_closed_or_not_open_and_changes_nothing() {
    let world = World::new().await;
    let opens_at = ms_from_now(60_000);
    for (activity, refusal) in [
        (activity(0), Reservation::SoldOut),
        (Activity { state: ActivityState::Paused, ..activity(1) }, Reservation::Paused),
        (Activity { closes_at: ms_from_now(-1), ..activity(1) }, Reservation::Closed),
        (Activity { opens_at, ..activity(1) }, Reservation::NotOpen { opens_at: opens_at.unwrap() }),
    ] {
        let id = loaded(&world, &activity).await;
        let before = world.redis_dump(id).await;
        assert_eq!(world.reservations().reserve(id, &user("alice")).await.unwrap(), refusal);
        assert_eq!(world.redis_dump(id).await, before);
    }
}

#[tokio::test]
async fn an_unknown_activity_is_told_from_one_that_redis_lost() {
    let world = World::new().await;
    let reservations = world.reservations();
    let known = loaded(&world, &activity(1)).await;
    let unknown = random_activity_id();
    assert_eq!(reservations.reserve(unknown, &user("a")).await.unwrap(), Reservation::ActivityNotFound);
    assert_eq!(reservations.release(unknown, &user("a")).await.unwrap(), Release::ActivityNotFound);
    assert_eq!(reservations.find(unknown, &user("a")).await.unwrap(), Lookup::ActivityNotFound);

    let _: () = world.redis.clone().del(ActivityKeys::of(known).activity).await.unwrap();
    let lost = |error| matches!(error, ReservationsError::NotLoaded(id) if id == known);
    assert!(lost(reservations.reserve(known, &user("a")).await.unwrap_err()));
    assert!(lost(reservations.release(known, &user("a")).await.unwrap_err()));
    assert!(lost(reservations.find(known, &user("a")).await.unwrap_err()));
    assert!(lost(reservations.load(known, &activity(1)).await.unwrap_err()), "came back with fresh places");
}

#[tokio::test]
async fn release_gives_the_place_back_once_and_somebody_else_can_take_it() {
    let world = World::new().await;
    let reservations = world.reservations();
    let id = loaded(&world, &activity(1)).await;
    let signup = reserved(&world, id, "alice").await;
    let Release::Released(cancelled) = reservations.release(id, &user("alice")).await.unwrap() else {
        panic!("not released")
    };
    assert!(cancelled.version > signup.version);
    assert_eq!((cancelled.status, cancelled.sequence), (SignupStatus::Cancelled, 1));
    assert_eq!(cancelled.signed_up_at, signup.signed_up_at);

    let again = reservations.release(id, &user("alice")).await.unwrap();
    assert_eq!(again, Release::AlreadyCancelled(cancelled.clone()));
    assert_eq!(world.taken(id).await, 0);
    let found = reservations.find(id, &user("alice")).await.unwrap();
    assert_eq!(found, Lookup::Found { signup: cancelled, queued: true });
    assert_eq!(reserved(&world, id, "bob").await.sequence, 2);
    assert_eq!(reservations.release(id, &user("cid")).await.unwrap(), Release::NotSignedUp);
}

#[tokio::test]
async fn a_user_who_comes_back_gets_a_new_place_with_a_higher_version() {
    let world = World::new().await;
    let id = loaded(&world, &activity(1)).await;
    let mut version = reserved(&world, id, "alice").await.version;
    for sequence in 2..=5 {
        // Faster than the clock ticks: the version still rises.
        world.reservations().release(id, &user("alice")).await.unwrap();
        let signup = reserved(&world, id, "alice").await;
        assert!(signup.version > version);
        assert_eq!(signup.sequence, sequence);
        version = signup.version;
    }
}

#[tokio::test]
async fn settle_drops_the_notes_that_mysql_has_and_no_newer_one() {
    let world = World::new().await;
    let reservations = world.reservations();
    let id = loaded(&world, &activity(9)).await;
    let (ann, bob, cid) = (user("ann"), user("bob"), user("cid"));
    let old = reserved(&world, id, "ann").await.version;
    reservations.release(id, &ann).await.unwrap();
    let current = reserved(&world, id, "bob").await.version;
    reserved(&world, id, "cid").await;

    let unseen = user("nobody");
    assert_eq!(reservations.settle(id, &[(&ann, old), (&bob, current), (&unseen, current)]).await.unwrap(), 1);
    assert_eq!(world.outbox(id).await, ["ann", "cid"]);
    let found = reservations.find(id, &bob).await.unwrap();
    assert!(matches!(found, Lookup::Found { queued: false, .. }), "{found:?}");

    assert_eq!(reservations.settle(id, &[(&bob, current)]).await.unwrap(), 0);
    assert_eq!(reservations.settle(id, &[(&ann, Version::MAX), (&cid, Version::MAX)]).await.unwrap(), 2);
    assert!(world.outbox(id).await.is_empty());
    assert_eq!(reservations.settle(id, &[]).await.unwrap(), 0);
}

#[tokio::test]
async fn settle_goes_past_a_damaged_receipt_whose_note_stays() {
    let world = World::new().await;
    let id = loaded(&world, &activity(9)).await;
    for name in ["ann", "bob", "cid"] {
        reserved(&world, id, name).await;
    }
    let _: () = world.redis.clone().hset(ActivityKeys::of(id).signups, "bob", "garbage").await.unwrap();
    let users = [user("ann"), user("bob"), user("cid")];
    let facts: Vec<_> = users.iter().map(|user| (user, Version::MAX)).collect();
    assert_eq!(world.reservations().settle(id, &facts).await.unwrap(), 2);
    assert_eq!(world.outbox(id).await, ["bob"]);
}

#[tokio::test]
async fn settle_takes_a_batch_larger_than_one_script_call() {
    let world = World::new().await;
    let reservations = world.reservations();
    let id = loaded(&world, &activity(3_000)).await;
    let users: Vec<_> = (0..2_500).map(|n| user(&format!("u{n}"))).collect();
    for user in &users {
        reservations.reserve(id, user).await.unwrap();
    }
    let facts: Vec<_> = users.iter().map(|user| (user, Version::MAX)).collect();
    assert_eq!(reservations.settle(id, &facts).await.unwrap(), 2_500);
    assert!(world.outbox(id).await.is_empty());
}

#[tokio::test]
async fn load_changes_what_the_organiser_set_and_never_the_sign_ups() {
    let world = World::new().await;
    let reservations = world.reservations();
    let id = loaded(&world, &activity(3)).await;
    for name in ["ann", "bob"] {
        reserved(&world, id, name).await;
    }
    assert_eq!(reservations.load(id, &activity(1)).await.unwrap(), Load::CapacityBelowTaken { taken: 2 });
    let (opens_at, closes_at) = (ms_from_now(-60_000), ms_from_now(60_000));
    let changed = Activity { title: "Näher".into(), capacity: 2, opens_at, closes_at, state: ActivityState::Paused };
    // Also by one who takes it for lost: what Redis knows of the sign-ups stays.
    for takes_for_lost in [false, true] {
        let loaded = if takes_for_lost {
            reservations.launch(id, &changed, 0, 0).await.unwrap()
        } else {
            reservations.load(id, &changed).await.unwrap()
        };
        assert_eq!(loaded, Load::Loaded { taken: 2 });
        let occupancy = reservations.activity(id).await.unwrap().unwrap();
        assert_eq!((occupancy.activity, occupancy.taken, occupancy.remaining), (changed.clone(), 2, 0));
    }
    reservations.load(id, &activity(3)).await.unwrap();
    let occupancy = reservations.activity(id).await.unwrap().unwrap();
    assert_eq!((occupancy.activity.opens_at, occupancy.activity.closes_at), (None, None));
    assert_eq!(reserved(&world, id, "cid").await.sequence, 3);
}

#[tokio::test]
async fn a_script_flush_in_the_middle_goes_unnoticed() {
    let world = World::new().await;
    let id = loaded(&world, &activity(9)).await;
    let reservations = world.reservations();
    for name in ["ann", "bob", "cid"] {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut world.redis.clone()).await.unwrap();
        let reserved = reservations.reserve(id, &user(name)).await.unwrap();
        assert!(matches!(reserved, Reservation::Reserved(_)), "{reserved:?}");
    }
    assert_eq!(world.taken(id).await, 3);
}

#[tokio::test]
async fn a_key_of_another_type_or_form_is_an_error_and_nothing_is_written() {
    let world = World::new().await;
    let reservations = world.reservations();
    let (ann, bob) = (user("ann"), user("bob"));
    for damage in ["activity type", "signups type", "outbox type", "receipt", "taken", "capacity"] {
        let id = loaded(&world, &activity(5)).await;
        reserved(&world, id, "ann").await;
        let keys = ActivityKeys::of(id);
        let mut redis = world.redis.clone();
        let mut retype = async |key: &str| {
            let _: () = redis.set(key, "text").await.unwrap();
        };
        match damage {
            "activity type" => retype(&keys.activity).await,
            "signups type" => retype(&keys.signups).await,
            "outbox type" => retype(&keys.outbox).await,
            "receipt" => world.redis.clone().hset(&keys.signups, "ann", "1 x").await.unwrap(),
            "taken" => world.redis.clone().hset(&keys.activity, "taken", "many").await.unwrap(),
            _ => world.redis.clone().hset(&keys.activity, "capacity", "lots").await.unwrap(),
        }
        let before = world.redis_dump(id).await;
        let is_malformed = |error: &ReservationsError| matches!(error, ReservationsError::Malformed { .. });
        // Somebody new meets the damage of the activity, the holder that of the receipt.
        let reserve = reservations.reserve(id, if damage == "receipt" { &ann } else { &bob }).await;
        assert!(reserve.as_ref().is_err_and(is_malformed), "{damage}: {reserve:?}");
        if damage != "capacity" {
            let release = reservations.release(id, &ann).await;
            assert!(release.as_ref().is_err_and(is_malformed), "{damage}: {release:?}");
        }
        assert_eq!(world.redis_dump(id).await, before, "{damage}");
    }
}

#[tokio::test]
async fn a_hostile_user_id_is_only_a_name() {
    let world = World::new().await;
    let id = loaded(&world, &activity(9)).await;
    let names = ["{activity:1}", "}..{", "'\"]]--", "*", "$(reboot)", "%s%d", "\\x00"];
    for name in &names {
        let signup = reserved(&world, id, name).await;
        assert_eq!(signup.user_id.as_str(), *name);
        let found = world.reservations().find(id, &user(name)).await.unwrap();
        assert_eq!(found, Lookup::Found { signup, queued: true });
    }
    assert_eq!(world.taken(id).await, 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_people_at_once_get_a_hundred_places() {
    // All of them wait at once here, for one connection.
    let world = World::with(&[("REDIS_TIMEOUT_MS", "20000")]).await;
    let id = loaded(&world, &activity(100)).await;
    let reservations = world.reservations();
    let asked = (0..10_000).map(|n| {
        let reservations = reservations.clone();
        tokio::spawn(async move { reservations.reserve(id, &user(&format!("u{n}"))).await.unwrap() })
    });
    let mut sequences = Vec::new();
    let mut sold_out = 0;
    for outcome in futures::future::join_all(asked).await {
        match outcome.unwrap() {
            Reservation::Reserved(signup) => sequences.push(signup.sequence),
            Reservation::SoldOut => sold_out += 1,
            other => panic!("{other:?}"),
        }
    }
    sequences.sort_unstable();
    assert_eq!(sequences, (1..=100).collect::<Vec<_>>());
    assert_eq!((sold_out, world.taken(id).await, world.outbox(id).await.len()), (9_900, 100, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_a_hundred_times_at_once_gets_one_place() {
    let world = World::new().await;
    let id = loaded(&world, &activity(100)).await;
    let reservations = world.reservations();
    let asked = (0..100).map(|_| {
        let reservations = reservations.clone();
        tokio::spawn(async move { reservations.reserve(id, &user("alice")).await.unwrap() })
    });
    let mut granted = Vec::new();
    let mut repeated = Vec::new();
    for outcome in futures::future::join_all(asked).await {
        match outcome.unwrap() {
            Reservation::Reserved(signup) => granted.push(signup),
            Reservation::AlreadySignedUp { signup, .. } => repeated.push(signup),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((granted.len(), repeated.len()), (1, 99));
    assert!(repeated.iter().all(|signup| *signup == granted[0]));
    assert_eq!(world.taken(id).await, 1);
}
