//! A Redis cluster: one activity is one slot, and a sale stays exact while slots move, nodes die and others take over.

use std::time::{Duration, Instant};

use futures::StreamExt;
use local::servers::{RedisCluster, RunDir, free_port};
use redis::Value as Answer;
use serde_json::json;
use shared::domain::ActivityId;
use shared::reservations::{ACTIVITIES_KEY, ActivityKeys, REBUILD_KEY};
use tests::{Sale, World, call, empty_database, random_activity_id, redis_at};

/// No node dies by itself on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);

/// A dead primary is replaced within a few seconds.
const HASTY: Duration = Duration::from_secs(2);

const TIMEOUT: Duration = Duration::from_millis(800);

/// What a loaded machine may add to a deadline.
const MARGIN: Duration = Duration::from_millis(700);

const A_WHILE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_sale_over_three_primaries_is_exact_while_the_slot_of_one_activity_moves_key_by_key() {
    let (dir, cluster) = start(PATIENT).await;
    let world = world_on(&cluster, &[("REDIS_WAIT_REPLICAS", "1")]).await;
    let [sale, second, third] = sales(&world, &cluster, 60).await;
    let others = [&second, &third];
    let [activity, signups, outbox] = keys(sale.id);
    sale.grant("before", 10).await;

    let moving = cluster.begin_move(&activity, 1).await.unwrap();
    assert_eq!(cluster.keys_left(moving).await.unwrap().len(), 3);
    sale.grant("begun", 5).await;
    for key in [&activity, &signups] {
        assert!(cluster.move_key(moving, key).await.unwrap());
        // A script needs all three of its keys on one node. Single commands find each where it is.
        let before = dump(&world, sale.id).await;
        for method in ["POST", "GET", "DELETE"] {
            unavailable(&sale, method, "begun-001").await;
        }
        unavailable(&sale, "POST", "nobody").await;
        assert_eq!(dump(&world, sale.id).await, before, "nothing is half-done");
        let standing = world.reservations().standing(sale.id).await.unwrap();
        assert_eq!((standing.taken, standing.receipts, standing.outbox), (15, 15, 15));
        for other in others {
            other.grant(key, 5).await;
        }
    }
    assert!(cluster.move_key(moving, &outbox).await.unwrap());
    // All is there, though the slot is not: each call is redirected, at first to a node that has not run these scripts yet.
    for user in ["moved-000", "moved-001", "moved-002", "moved-003", "moved-004"] {
        sale.expect("POST", user, 202).await;
    }
    sale.expect("DELETE", "moved-001", 202).await;
    sale.expect("GET", "before-001", 200).await;
    cluster.finish_move(moving).await.unwrap();
    sale.grant("after", 5).await;

    // And back again, in the middle of a crowd.
    let move_back = async {
        let moving = cluster.begin_move(&activity, 0).await.unwrap();
        for key in [&outbox, &activity, &signups] {
            cluster.move_key(moving, key).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        cluster.finish_move(moving).await.unwrap();
    };
    let crowd: Vec<_> = (0..60).map(|n| format!("crowd-{n:02}")).collect();
    let ((), told) = tokio::join!(move_back, insisting(&sale, &crowd));
    assert_eq!((told.granted, told.sold_out), (36, 24), "one of 25 has left again: {told:?}");
    for other in others {
        other.comes_home(10).await;
    }
    sale.comes_home(60).await;
    drop((sale, second, third));
    stop(cluster, dir).await;
}

#[tokio::test]
async fn a_primary_that_is_killed_in_a_sale_costs_503_until_its_replica_has_taken_over_and_no_place() {
    let (dir, mut cluster) = start(HASTY).await;
    let world = world_on(&cluster, &[("REDIS_WAIT_REPLICAS", "1")]).await;
    // The first node is the one that REDIS_URL names, and the first activity is there.
    let [sale, second, third] = sales(&world, &cluster, 40).await;
    // Each function has seen the cluster, so it is not lost with the address that it was given.
    for sale in [&sale, &second, &third] {
        sale.grant("before", 10).await;
    }
    cluster.kill(0).await.unwrap();
    unavailable(&sale, "POST", "early").await;
    let crowd: Vec<_> = (0..50).map(|n| format!("crowd-{n:02}")).collect();
    // Those on the other primaries go on selling.
    let others = async {
        second.grant("meanwhile", 20).await;
        third.grant("meanwhile", 20).await;
    };
    let (told, ()) = tokio::join!(insisting(&sale, &crowd), others);
    assert!(told.refused > 0 && told.granted + told.sold_out == 50, "{told:?}");
    assert_eq!(told.granted, 30, "{told:?}");
    let promoted = cluster.primary_after(&keys(sale.id)[0], 0).await.unwrap();
    assert_eq!(promoted, 3);
    cluster.restart(0).await.unwrap();
    cluster.until_well().await.unwrap();
    for user in ["before-000", "before-009"] {
        assert_eq!(sale.expect("POST", user, 200).await.body["status"], "queued");
    }
    sale.expect("DELETE", "before-009", 202).await;
    sale.expect("POST", "late", 202).await;
    sale.comes_home(40).await;
    second.comes_home(30).await;
    third.comes_home(30).await;
    drop((sale, second, third));
    stop(cluster, dir).await;
}

#[tokio::test]
async fn what_a_failover_lost_is_put_back_from_mysql_and_the_rest_is_sold_exactly() {
    let (dir, mut cluster) = start(PATIENT).await;
    let world = world_on(&cluster, &[]).await;
    let [sale, second, third] = sales(&world, &cluster, 20).await;
    sale.grant("recorded", 5).await;
    world.pump().await.unwrap();
    // The replica misses what follows.
    let key = &keys(sale.id)[0];
    let replica = cluster.replica_of(key).await.unwrap();
    wait_for_replica(&cluster, 0).await;
    cluster.kill(replica).await.unwrap();
    sale.grant("lost", 10).await;
    sale.expect("DELETE", "recorded-004", 202).await;
    cluster.kill(0).await.unwrap();
    cluster.restart(replica).await.unwrap();
    cluster.take_over(replica, key).await.unwrap();
    let held = eventually_served(&sale, "GET", "lost-001", &[404]).await;
    assert_eq!(held.code(), "not-signed-up", "nobody can know yet");
    world.pump().await.unwrap();
    assert_eq!(world.active(sale.id).await, Some(14));
    // As a replica, so that functions that begin now find the cluster at its address.
    cluster.restart(0).await.unwrap();
    cluster.until_well().await.unwrap();
    let report = world.reconciled_only(sale.id).await;
    assert_eq!(report["compare"]["found"][0]["mended"], 11, "{report}");
    assert_eq!(sale.expect("POST", "lost-001", 200).await.body["status"], "confirmed");
    let crowd: Vec<_> = (0..10).map(|n| format!("crowd-{n:02}")).collect();
    let told = insisting(&sale, &crowd).await;
    assert_eq!((told.granted, told.sold_out), (6, 4), "{told:?}");
    sale.comes_home(20).await;
    drop((sale, second, third));
    stop(cluster, dir).await;
}

#[tokio::test]
async fn each_primary_that_lost_its_memory_is_filled_again_and_the_activities_on_the_others_are_left_alone() {
    let (dir, cluster) = start(PATIENT).await;
    let world = world_on(&cluster, &[("REDIS_TIMEOUT_MS", "5000")]).await;
    let sales = sales(&world, &cluster, 9).await;
    for sale in &sales {
        sale.grant("recorded", 5).await;
    }
    world.pump().await.unwrap();
    let nodes = [0, 1, 2];
    // What is known, and what is missing, is on two of these nodes itself.
    assert_ne!(cluster.primary_of(ACTIVITIES_KEY).await.unwrap(), cluster.primary_of(REBUILD_KEY).await.unwrap());
    for (node, sale) in nodes.into_iter().zip(&sales) {
        let queued = format!("queued-{node}");
        sale.expect("POST", &queued, 202).await;
        let _: Answer =
            redis::cmd("FLUSHALL").query_async(&mut redis_at(&cluster.url_of(node)).await).await.unwrap();
        unavailable(sale, "POST", "recorded-001").await;
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
    stop(cluster, dir).await;
}

#[tokio::test]
async fn one_run_of_reconcile_relays_mends_and_archives_on_all_primaries() {
    let (dir, cluster) = start(PATIENT).await;
    let settings = [("REDIS_TIMEOUT_MS", "5000"), ("OUTBOX_GRACE_SECS", "1"), ("ARCHIVE_AFTER_DAYS", "1")];
    let world = world_on(&cluster, &settings).await;
    let sales = sales(&world, &cluster, 9).await;
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
        let lost = redis::cmd("HDEL").arg(&keys(sale.id)[1]).arg("recorded-001").to_owned();
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
    stop(cluster, dir).await;
}

#[tokio::test]
async fn a_function_starts_without_a_node_or_without_any_and_sells_as_soon_as_they_are_there() {
    let (dir, mut cluster) = start(PATIENT).await;
    let mut world = world_on(&cluster, &[]).await;
    let [sale, second, third] = sales(&world, &cluster, 40).await;

    // Frozen: its machine is gone, and nobody has taken over.
    cluster.pause(1).unwrap();
    let started = Instant::now();
    let signup = world.signup();
    signup.warm_up().await;
    assert!(started.elapsed() < 2 * (TIMEOUT + MARGIN), "{:?}", started.elapsed());
    let (sale, second) = (sold_by(sale, &signup), sold_by(second, &signup));
    sale.expect("POST", "ann", 202).await;
    unavailable(&second, "POST", "ann").await;
    eventually_served(&sale, "POST", "bob", &[202]).await;
    cluster.resume(1).unwrap();
    eventually_served(&second, "POST", "ann", GRANTED).await;

    // The node that REDIS_URL names is gone for good; the function has seen the others.
    cluster.kill(0).await.unwrap();
    let third = sold_by(third, &signup);
    unavailable(&sale, "POST", "cid").await;
    third.expect("POST", "ann", 202).await;
    cluster.pause(2).unwrap();
    unavailable(&third, "POST", "bob").await;
    cluster.resume(2).unwrap();
    eventually_served(&third, "POST", "bob", GRANTED).await;

    for node in 1..6 {
        cluster.kill(node).await.unwrap();
    }
    unavailable(&second, "POST", "bob").await;
    let signup = world.signup();
    signup.warm_up().await;
    let sale = sold_by(sale, &signup);
    unavailable(&sale, "POST", "cid").await;
    for node in 0..6 {
        cluster.restart(node).await.unwrap();
    }
    cluster.until_well().await.unwrap();
    for sale in [&sale, &second, &third] {
        eventually_served(sale, "POST", "dan", GRANTED).await;
    }
    for (sale, holders) in [(&sale, 3), (&second, 2), (&third, 3)] {
        sale.comes_home(holders).await;
    }
    drop((sale, second, third));

    // Nobody is there at all, or somebody who is no cluster.
    let nowhere = format!("redis://127.0.0.1:{}/", free_port().unwrap());
    for url in [nowhere, tests::one_redis()] {
        world.settings.insert("REDIS_URL".into(), url.clone());
        let signup = world.signup();
        signup.warm_up().await;
        let reply = call(&signup, "POST", random_activity_id(), "ann").await;
        assert_eq!((reply.status, reply.code()), (503, "unavailable"), "{url}");
    }
    stop(cluster, dir).await;
}

#[tokio::test]
async fn an_activity_that_nobody_opened_is_404_whichever_primary_its_slot_is_on() {
    let (dir, cluster) = start(PATIENT).await;
    let world = world_on(&cluster, &[]).await;
    let signup = world.signup();
    let mut asked = [0; 3];
    for _ in 0..30 {
        let id = random_activity_id();
        asked[cluster.primary_of(&keys(id)[0]).await.unwrap()] += 1;
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
    stop(cluster, dir).await;
}

#[tokio::test]
async fn a_failover_in_order_and_scripts_that_are_flushed_go_unnoticed() {
    let (dir, cluster) = start(PATIENT).await;
    let world = world_on(&cluster, &[("REDIS_WAIT_REPLICAS", "1"), ("REDIS_TIMEOUT_MS", "5000")]).await;
    let [sale, second, third] = sales(&world, &cluster, 40).await;
    for sale in [&sale, &second, &third] {
        sale.grant("before", 5).await;
        let old = cluster.primary_of(&keys(sale.id)[0]).await.unwrap();
        let crowd: Vec<_> = (0..20).map(|n| format!("crowd-{n:02}")).collect();
        let key = &keys(sale.id)[0];
        let (new, told) = tokio::join!(cluster.fail_over(key), insisting(sale, &crowd));
        assert_eq!((new.unwrap(), told.granted), (old + 3, 20), "{told:?}");
        let _: Answer = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut world.redis.clone()).await.unwrap();
        cluster.until_well().await.unwrap();
        sale.grant("after", 5).await;
    }
    for sale in [&sale, &second, &third] {
        sale.comes_home(30).await;
    }
    drop((sale, second, third));
    stop(cluster, dir).await;
}

/// What people were told in the end.
#[derive(Debug, Default)]
struct Told {
    granted: usize,
    sold_out: usize,
    /// 503, on the way there.
    refused: usize,
}

/// Each of these people asks until they are told something final.
async fn insisting(sale: &Sale<'_>, users: &[String]) -> Told {
    let told = users.iter().map(async |user| {
        let started = Instant::now();
        let mut refused = 0;
        loop {
            let asked = Instant::now();
            let reply = sale.call("POST", user).await;
            assert!(asked.elapsed() < Duration::from_secs(5) + MARGIN, "{:?}", asked.elapsed());
            match reply.status {
                200 | 202 => break Told { granted: 1, sold_out: 0, refused },
                409 => break Told { granted: 0, sold_out: 1, refused },
                503 => refused += 1,
                _ => panic!("{user}: {reply:?}"),
            }
            assert!(started.elapsed() < A_WHILE, "{user} is refused for ever: {reply:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let add = async |sum: Told, one: Told| Told {
        granted: sum.granted + one.granted,
        sold_out: sum.sold_out + one.sold_out,
        refused: sum.refused + one.refused,
    };
    futures::stream::iter(told).buffer_unordered(8).fold(Told::default(), add).await
}

/// A call that is refused in time, and says when to try again.
async fn unavailable(sale: &Sale<'_>, method: &str, user: &str) {
    let started = Instant::now();
    let reply = sale.expect(method, user, 503).await;
    assert!(started.elapsed() < TIMEOUT + MARGIN, "{method} took {:?}", started.elapsed());
    assert_eq!(reply.code(), "unavailable", "{reply:?}");
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
}

/// A call that was refused may have been heard all the same, and is then answered with 200.
const GRANTED: &[u16] = &[200, 202];

/// The first reply that is not 503; it has one of these statuses.
async fn eventually_served(sale: &Sale<'_>, method: &str, user: &str, statuses: &[u16]) -> tests::Reply {
    let started = Instant::now();
    loop {
        let reply = sale.call(method, user).await;
        if reply.status != 503 {
            assert!(statuses.contains(&reply.status), "{method} by {user}: {reply:?}");
            return reply;
        }
        assert!(started.elapsed() < A_WHILE, "{method} by {user} is refused for ever: {reply:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn start(node_timeout: Duration) -> (RunDir, RedisCluster) {
    let dir = RunDir::create("test").unwrap();
    let cluster = RedisCluster::start(dir.path(), node_timeout).await.unwrap();
    (dir, cluster)
}

async fn stop(cluster: RedisCluster, dir: RunDir) {
    cluster.stop().await.unwrap();
    dir.finish(true).unwrap();
}

/// A corner on this cluster, with a database of its own.
async fn world_on(cluster: &RedisCluster, own: &[(&str, &str)]) -> World {
    let (url, database, timeout) = (cluster.url(), empty_database().await, TIMEOUT.as_millis().to_string());
    let settings = [("REDIS_URL", url.as_str()), ("REDIS_CLUSTER", "true"), ("MYSQL_URL", &database)];
    World::with(&[&settings[..], &[("REDIS_TIMEOUT_MS", timeout.as_str())], own].concat()).await
}

/// An activity on each primary, in the order of the nodes, and a function for each.
async fn sales<'a>(world: &'a World, cluster: &RedisCluster, capacity: u32) -> [Sale<'a>; 3] {
    let mut found = [None, None, None];
    for _ in 0..200 {
        let id = random_activity_id();
        let place = &mut found[cluster.primary_of(&keys(id)[0]).await.unwrap()];
        if place.is_none() {
            *place = Some(Sale::open_as(world, world.signup(), id, capacity).await);
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.map(Option::unwrap)
}

/// The same sale, with another function.
fn sold_by<'a>(mut sale: Sale<'a>, signup: &signup::App) -> Sale<'a> {
    sale.goes_on_with(signup.clone());
    sale
}

fn keys(id: ActivityId) -> [String; 3] {
    let ActivityKeys { activity, signups, outbox } = ActivityKeys::of(id);
    [activity, signups, outbox]
}

/// All that Redis holds of the activity, wherever its keys are.
async fn dump(world: &World, id: ActivityId) -> Vec<Option<Vec<u8>>> {
    let mut dumps = Vec::new();
    for key in keys(id) {
        dumps.push(redis::cmd("DUMP").arg(key).query_async(&mut world.redis.clone()).await.unwrap());
    }
    dumps
}

/// Waits until the replica of this node holds what the node does.
async fn wait_for_replica(cluster: &RedisCluster, node: usize) {
    let mut connection = redis_at(&cluster.url_of(node)).await;
    let wait = redis::cmd("WAIT").arg(1).arg(10_000).to_owned();
    let holding: u32 = wait.query_async(&mut connection).await.unwrap();
    assert_eq!(holding, 1);
}
