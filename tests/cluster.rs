//! A Redis cluster: one activity is one slot, and what is told of one Redis holds for three primaries, also while slots move.

use std::time::Duration;

use redis::Value as Answer;
use serde_json::json;
use shared::domain::ActivityId;
use shared::reservations::{ACTIVITIES_KEY, REBUILD_KEY};
use tests::{OwnCluster, World, call, keys_of, random_activity_id, redis_at};

#[tokio::test]
async fn a_sale_over_three_primaries_is_exact_while_the_slot_of_one_activity_moves_key_by_key() {
    let cluster = OwnCluster::patient().await;
    let world = cluster.world(&[("REDIS_WAIT_REPLICAS", "1")]).await;
    let [sale, second, third] = cluster.sales(&world, 60).await;
    let others = [&second, &third];
    let [activity, signups, outbox] = keys_of(sale.id);
    sale.grant("before", 10).await;

    let moving = cluster.nodes.begin_move(&activity, 1).await.unwrap();
    assert_eq!(cluster.nodes.keys_left(moving).await.unwrap().len(), 3);
    sale.grant("begun", 5).await;
    for key in [&activity, &signups] {
        assert!(cluster.nodes.move_key(moving, key).await.unwrap());
        // A script needs all three of its keys on one node. Single commands find each where it is.
        let before = dump(&world, sale.id).await;
        for method in ["POST", "GET", "DELETE"] {
            sale.unavailable(method, "begun-001").await;
        }
        sale.unavailable("POST", "nobody").await;
        assert_eq!(dump(&world, sale.id).await, before, "nothing is half-done");
        let standing = world.reservations().standing(sale.id).await.unwrap();
        assert_eq!((standing.taken, standing.receipts, standing.outbox), (15, 15, 15));
        for other in others {
            other.grant(key, 5).await;
        }
    }
    assert!(cluster.nodes.move_key(moving, &outbox).await.unwrap());
    // All is there, though the slot is not: each call is redirected, at first to a node that has not run these scripts yet.
    for user in ["moved-000", "moved-001", "moved-002", "moved-003", "moved-004"] {
        sale.expect("POST", user, 202).await;
    }
    sale.expect("DELETE", "moved-001", 202).await;
    sale.expect("GET", "before-001", 200).await;
    cluster.nodes.finish_move(moving).await.unwrap();
    sale.grant("after", 5).await;

    // Without a note Redis cannot tell whether the outbox has moved already: refused until the slot is there.
    world.pump().await.unwrap();
    let moving_third = cluster.nodes.begin_move(&keys_of(third.id)[0], 1).await.unwrap();
    assert_eq!(cluster.nodes.keys_left(moving_third).await.unwrap().len(), 2);
    third.unavailable("POST", "early").await;
    cluster.nodes.finish_move(moving_third).await.unwrap();
    third.expect("POST", "early", 202).await;

    // And back again, in the middle of a crowd.
    let move_back = async {
        let moving = cluster.nodes.begin_move(&activity, 0).await.unwrap();
        for key in [&outbox, &activity, &signups] {
            cluster.nodes.move_key(moving, key).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        cluster.nodes.finish_move(moving).await.unwrap();
    };
    let crowd: Vec<_> = (0..60).map(|n| format!("crowd-{n:02}")).collect();
    let ((), told) = tokio::join!(move_back, sale.insist(&crowd));
    assert_eq!((told.granted, told.sold_out), (36, 24), "one of 25 has left again: {told:?}");
    second.comes_home(10).await;
    third.comes_home(11).await;
    sale.comes_home(60).await;
    drop((sale, second, third));
    cluster.stop().await;
}

#[tokio::test]
async fn each_primary_that_lost_its_memory_is_filled_again_and_the_activities_on_the_others_are_left_alone() {
    let cluster = OwnCluster::patient().await;
    let world = cluster.world(&[("REDIS_TIMEOUT_MS", "5000")]).await;
    let sales = cluster.sales(&world, 9).await;
    for sale in &sales {
        sale.grant("recorded", 5).await;
    }
    world.pump().await.unwrap();
    let nodes = [0, 1, 2];
    // What is known, and what is missing, is on two of these nodes itself.
    assert_ne!(
        cluster.nodes.primary_of(ACTIVITIES_KEY).await.unwrap(),
        cluster.nodes.primary_of(REBUILD_KEY).await.unwrap()
    );
    for (node, sale) in nodes.into_iter().zip(&sales) {
        let queued = format!("queued-{node}");
        sale.expect("POST", &queued, 202).await;
        let _: Answer =
            redis::cmd("FLUSHALL").query_async(&mut redis_at(&cluster.nodes.url_of(node)).await).await.unwrap();
        sale.unavailable("POST", "recorded-001").await;
        for other in sales.iter().filter(|other| other.id != sale.id) {
            assert_eq!(other.expect("POST", "recorded-001", 200).await.body["status"], "confirmed");
        }
        let report = world.reconciled_while_pumping().await;
        assert_eq!(report["rebuild"]["rebuilt"], json!([sale.id]), "{report}");
        assert_eq!(sale.expect("POST", &queued, 200).await.body["status"], "confirmed");
        assert_eq!(call(&world.signup(), "POST", random_activity_id(), "ann").await.status, 404);
    }
    for sale in &sales {
        sale.grant("rest", 3).await;
        sale.expect("POST", "nobody", 409).await;
        sale.comes_home(9).await;
    }
    drop(sales);
    cluster.stop().await;
}

#[tokio::test]
async fn one_run_of_reconcile_relays_mends_and_archives_on_all_primaries() {
    let cluster = OwnCluster::patient().await;
    let settings = [("REDIS_TIMEOUT_MS", "5000"), ("OUTBOX_GRACE_SECS", "1"), ("ARCHIVE_AFTER_DAYS", "1")];
    let world = cluster.world(&settings).await;
    let sales = cluster.sales(&world, 9).await;
    let mut over = Vec::new();
    for sale in &sales {
        sale.grant("recorded", 3).await;
        let until_yesterday = json!({"title": "Over", "capacity": 5, "closesAt": "2026-01-01T00:00:00Z"});
        over.push(world.put_activity(until_yesterday).await);
    }
    world.pump().await.unwrap();
    for sale in &sales {
        sale.grant("unsent", 2).await;
        world.make_due(sale.id).await;
        let lost = redis::cmd("HDEL").arg(&keys_of(sale.id)[1]).arg("recorded-001").to_owned();
        let _: Answer = lost.query_async(&mut world.redis.clone()).await.unwrap();
    }
    assert_eq!(world.drain_signups().await.len(), 6, "the broker loses them");
    let report = world.reconciled(json!({})).await;
    assert_eq!((&report["relay"]["sent"], &report["survey"]["activities"]), (&json!(6), &json!(6)), "{report}");
    let found = report["compare"]["found"].as_array().unwrap();
    let lost = found.iter().map(|one| &one["lostInRedis"]["first"]).filter(|lost| **lost != json!([]));
    let lost: Vec<_> = lost.cloned().collect();
    assert_eq!(lost, [json!(["recorded-001"]), json!(["recorded-001"]), json!(["recorded-001"])], "{report}");
    let mut archived = report["archive"]["archived"].as_array().unwrap().clone();
    archived.sort_by_key(|id| id.as_str().unwrap().parse::<u64>().unwrap());
    over.sort();
    assert_eq!(archived, over.iter().map(|id| json!(id)).collect::<Vec<_>>(), "{report}");
    for sale in &sales {
        sale.comes_home(5).await;
    }
    drop(sales);
    cluster.stop().await;
}

#[tokio::test]
async fn an_activity_that_nobody_opened_is_404_whichever_primary_its_slot_is_on() {
    let cluster = OwnCluster::patient().await;
    let world = cluster.world(&[]).await;
    let signup = world.signup();
    let mut asked = [0; 3];
    for _ in 0..30 {
        let id = random_activity_id();
        asked[cluster.nodes.primary_of(&keys_of(id)[0]).await.unwrap()] += 1;
        assert_eq!(call(&signup, "POST", id, "ann").await.status, 503, "nothing was ever loaded");
    }
    assert!(asked.iter().all(|times| *times > 0), "{asked:?}");
    world.open_activity(1).await;
    for _ in 0..30 {
        let id = random_activity_id();
        for method in ["POST", "GET", "DELETE"] {
            let reply = call(&signup, method, id, "ann").await;
            assert_eq!((reply.status, reply.code()), (404, "activity-not-found"), "{method}");
        }
    }
    cluster.stop().await;
}

/// All that Redis holds of the activity, wherever its keys are.
async fn dump(world: &World, id: ActivityId) -> Vec<Option<Vec<u8>>> {
    let mut dumps = Vec::new();
    for key in keys_of(id) {
        dumps.push(redis::cmd("DUMP").arg(key).query_async(&mut world.redis.clone()).await.unwrap());
    }
    dumps
}
