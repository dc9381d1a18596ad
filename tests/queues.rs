//! Several queues: each user has one of them, and a sale is as exact as with one.

use std::time::Duration;

use futures::StreamExt;
use lapin::options::QueueDeleteOptions;
use serde_json::json;
use shared::domain::ActivityId;
use tests::{Sale, World, call, fact_of, message_body, mq_event, users};

const THREE: [(&str, &str); 1] = [("SIGNUP_QUEUES", "3")];

/// So many users of this queue.
fn users_of(world: &World, queue: u16, count: usize) -> Vec<String> {
    let topology = world.topology();
    let users = users(1_000).into_iter().filter(|user| topology.shard_of(&user.parse().unwrap()) == queue);
    users.take(count).collect()
}

#[tokio::test]
async fn whatever_a_user_does_is_told_in_one_queue() {
    let world = World::with(&THREE).await;
    let (signup, ids) = (world.signup(), [world.open_activity(30).await, world.open_activity(30).await]);
    for user in users(30) {
        for id in ids {
            assert_eq!(call(&signup, "POST", id, &user).await.status, 202);
        }
        assert_eq!(call(&signup, "DELETE", ids[0], &user).await.status, 202);
        assert_eq!(call(&signup, "POST", ids[0], &user).await.status, 202);
    }
    let topology = world.topology();
    for queue in 0..3 {
        let messages = world.drain(&topology.queue_name(queue)).await;
        assert!(messages.len() >= 16 && messages.len() % 4 == 0, "queue {queue} has {}", messages.len());
        for message in messages {
            assert_eq!(topology.shard_of(&fact_of(&message.body).user_id), queue);
        }
    }
}

#[tokio::test]
async fn a_sale_through_three_queues_is_exact() {
    let world = World::with(&THREE).await;
    let sale = Sale::open(&world, world.signup(), 40).await;
    let people = users(70);
    let sell = async {
        futures::stream::iter(&people).map(|user| sale.call("POST", user)).buffer_unordered(8).count().await;
        // Everybody who got a place and has an odd number gives it back, and somebody else takes it.
        for (n, user) in people.iter().enumerate().filter(|(n, _)| n % 2 == 1) {
            if sale.call("DELETE", user).await.status == 202 {
                sale.expect("POST", &format!("late-{n}"), 202).await;
            }
        }
    };
    // Each queue at its own pace, as by its own event source.
    let pump = async |queue: u16| loop {
        world.pump_queue(queue).await;
        tokio::time::sleep(Duration::from_millis(20 * u64::from(queue + 1))).await;
    };
    tokio::select! {
        () = sell => {}
        _ = async { tokio::join!(pump(0), pump(1), pump(2)) } => {}
    }
    sale.comes_home(40).await;
}

#[tokio::test]
async fn with_more_queues_than_before_nothing_that_waits_is_lost_or_counts_twice() {
    let mut world = World::new().await;
    let id = world.open_activity(30).await;
    let (before, mut receipts) = (world.signup(), Vec::new());
    let people = users(30);
    for user in &people {
        receipts.push(call(&before, "POST", id, user).await.body);
    }
    assert_eq!(world.queued().await, 30);
    world.settings.extend(THREE.map(|(name, value)| (name.to_owned(), value.to_owned())));
    provision::provision(&world.provision()).await.unwrap();
    let after = world.signup();
    for user in &people[..10] {
        receipts.push(call(&after, "DELETE", id, user).await.body);
    }
    for user in &people[5..10] {
        receipts.push(call(&after, "POST", id, user).await.body);
    }
    // What was published first comes out last.
    for queue in [2, 1, 0] {
        world.pump_queue(queue).await;
    }
    let standing = people.iter().enumerate().filter(|(n, _)| *n >= 5).map(|(_, user)| user.as_str());
    let receipts = receipts.into_iter().rev();
    let mut latest = std::collections::BTreeMap::new();
    for receipt in receipts {
        latest.entry(receipt["userId"].as_str().unwrap().to_owned()).or_insert(receipt);
    }
    world.assert_sound(id, latest.into_values()).await;
    let holders: Vec<_> = world.rows(id).await.into_iter().filter(|row| row.1 == 1).map(|row| row.0).collect();
    assert_eq!(holders, standing.collect::<Vec<_>>());
    assert_eq!(world.active(id).await, Some(25));
}

#[tokio::test]
async fn consumers_of_two_queues_fill_activities_to_the_last_place_and_no_further() {
    let world = World::with(&[("SIGNUP_QUEUES", "2")]).await;
    let consumers = [world.consumer(), world.consumer()];
    for round in 0..5_u64 {
        let ids = [world.open_activity(25).await, world.open_activity(25).await];
        // As after a failover that forgot grants: 20 people in each queue for each activity, of which 25 fit. The activities
        // stand in another order in each.
        let batch = |queue: u16, ids: [ActivityId; 2]| {
            let people = users_of(&world, queue, 20);
            let facts = ids.iter().flat_map(|id| people.iter().map(|user| message_body(*id, user, 5, 1, "signed-up")));
            mq_event(facts.collect::<Vec<_>>())
        };
        let (one, other) = tokio::join!(
            world.consume(&consumers[0], batch(0, ids)),
            world.consume(&consumers[1], batch(1, [ids[1], ids[0]]))
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.written + other.written, one.surplus + other.surplus), (50, 30), "{round}: {one:?} {other:?}");
        for id in ids {
            assert_eq!(world.active(id).await, Some(25));
        }
    }
}

#[tokio::test]
async fn a_place_that_is_given_back_in_one_queue_is_there_for_who_takes_it_in_another() {
    let world = World::with(&[("SIGNUP_QUEUES", "2")]).await;
    let id = world.open_activity(1).await;
    let [ann, bob] = [users_of(&world, 0, 1).remove(0), users_of(&world, 1, 1).remove(0)];
    let first = world.grant(id, &[&ann]).await;
    world.consume(&world.consumer(), mq_event(first)).await.unwrap();
    let given_back = world.give_back(id, &ann).await;
    let taken = world.grant(id, &[&bob]).await;
    // The queue of the one who takes it is ahead.
    let (consumers, late) = ([world.consumer(), world.consumer()], Duration::from_millis(300));
    let (taking, giving) = tokio::join!(world.consume(&consumers[0], mq_event(taken)), async {
        tokio::time::sleep(late).await;
        world.consume(&consumers[1], mq_event([given_back])).await
    });
    assert_eq!((taking.unwrap().written, giving.unwrap().written), (1, 1));
    assert_eq!(world.active(id).await, Some(1));
    assert_eq!(world.outbox(id).await, [""; 0]);
}

#[tokio::test]
async fn a_queue_that_is_missing_is_named_and_keeps_its_own_users_only() {
    let world = World::with(&[("SIGNUP_QUEUES", "3"), ("OUTBOX_GRACE_SECS", "1")]).await;
    let sale = Sale::open(&world, world.signup(), 10).await;
    let missing = world.topology().queue_name(1);
    let channel = world.amqp().await.create_channel().await.unwrap();
    channel.queue_delete(missing.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    for queue in 0..3 {
        for user in users_of(&world, queue, 2) {
            sale.expect("POST", &user, 202).await;
        }
    }
    // The broker loses those that it had.
    for queue in [0, 2] {
        assert_eq!(world.drain(&world.topology().queue_name(queue)).await.len(), 2);
    }
    world.make_due(sale.id).await;
    let relay = world.reconciled_only(sale.id).await["relay"].clone();
    assert_eq!((&relay["overdue"], &relay["sent"]), (&json!(6), &json!(4)), "{relay}");
    assert_eq!((&relay["missing"], &relay["backlogs"]), (&json!([missing]), &json!([0, null, 0])), "{relay}");
    provision::provision(&world.provision()).await.unwrap();
    assert_eq!(world.queued_in_each().await, [2, 0, 2]);
    sale.comes_home(6).await;
}

#[tokio::test]
async fn a_replayed_message_goes_to_the_queue_of_its_user_and_what_names_nobody_to_the_first() {
    let world = World::with(&THREE).await;
    let id = world.open_activity(10).await;
    for queue in 0..3 {
        for user in users_of(&world, queue, 2) {
            world.park_by_hand(&message_body(id, &user, 5, 1, "signed-up")).await;
        }
    }
    world.park_by_hand(b"poison").await;
    assert_eq!(world.reconciled(json!({"replayParked": 100})).await["replay"]["replayed"], 7);
    let topology = world.topology();
    for queue in 0..3 {
        let messages = world.drain(&topology.queue_name(queue)).await;
        let (poison, facts): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.body == b"poison");
        assert_eq!((facts.len(), poison.len()), (2, usize::from(queue == 0)));
        assert!(facts.iter().all(|fact| topology.shard_of(&fact_of(&fact.body).user_id) == queue));
    }
}

#[tokio::test]
async fn a_replay_goes_on_past_a_queue_that_is_missing_and_keeps_what_belongs_there() {
    let world = World::with(&THREE).await;
    let channel = world.amqp().await.create_channel().await.unwrap();
    let missing = world.topology().queue_name(1);
    channel.queue_delete(missing.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    let id = world.open_activity(10).await;
    for queue in [1, 0, 2, 1, 0] {
        let user = users_of(&world, queue, 1).remove(0);
        world.park_by_hand(&message_body(id, &user, 5, 1, "signed-up")).await;
    }
    let report = world.reconciled(json!({"replayParked": 100})).await["replay"].clone();
    assert!(report["error"].as_str().unwrap().contains("run provision"), "{report}");
    provision::provision(&world.provision()).await.unwrap();
    assert_eq!(world.queued_in_each().await, [2, 0, 1]);
    assert_eq!(world.drain_parked().await.len(), 2);
}

#[tokio::test]
async fn a_message_from_any_queue_that_can_never_succeed_is_parked_and_comes_back_by_a_replay() {
    let world = World::with(&THREE).await;
    let id = world.open_activity(10).await;
    let user = users_of(&world, 2, 1).remove(0);
    // A version from the far future: once the clock is there, the message is good.
    let body = message_body(id, &user, 9_000_000_000_000, 1, "signed-up");
    world.park_by_hand(&body).await;
    world.reconciled(json!({"replayParked": 1})).await;
    let report = world.pump_queue(2).await.unwrap();
    assert_eq!((report.received, report.parked), (1, 1));
    let parked = world.drain_parked().await;
    assert_eq!(parked.iter().map(|message| &message.body).collect::<Vec<_>>(), [&body]);
}

#[tokio::test]
async fn provisioning_declares_every_queue_again_and_again_and_tells_of_one_that_is_left_over() {
    let mut world = World::with(&THREE).await;
    let names = world.topology().queue_names();
    let again = provision::provision(&world.provision()).await.unwrap();
    assert_eq!((&again.queues, again.left_over.len()), (&names, 0));
    let (signup, id) = (world.signup(), world.open_activity(10).await);
    for user in users_of(&world, 2, 1) {
        assert_eq!(call(&signup, "POST", id, &user).await.status, 202);
    }
    world.settings.insert("SIGNUP_QUEUES".into(), "1".into());
    let fewer = provision::provision(&world.provision()).await.unwrap();
    assert_eq!((fewer.queues.as_slice(), fewer.left_over.as_slice()), (&names[..1], &names[2..]));
}
