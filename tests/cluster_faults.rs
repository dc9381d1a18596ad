//! Nodes of a Redis cluster that die, freeze or hand over in a sale: 503 in time for their activities until somebody has taken
//! over, and afterwards the same places.

use std::time::{Duration, Instant};

use local::servers::{RedisCluster, free_port};
use redis::Value as Answer;
use tests::{CLUSTER_MARGIN, CLUSTER_TIMEOUT, OwnCluster, Sale, call, keys_of, random_activity_id, redis_at};

/// A call that was refused may have been heard all the same, and is then answered with 200.
const GRANTED: &[u16] = &[200, 202];

#[tokio::test]
async fn a_primary_that_is_killed_in_a_sale_costs_503_until_its_replica_has_taken_over_and_no_place() {
    let mut cluster = OwnCluster::hasty().await;
    let world = cluster.world(&[("REDIS_WAIT_REPLICAS", "1")]).await;
    // The first node is the one that REDIS_URL names, and the first activity is there.
    let [sale, second, third] = cluster.sales(&world, 40).await;
    // Each function has seen the cluster, so it is not lost with the address that it was given.
    for sale in [&sale, &second, &third] {
        sale.grant("before", 10).await;
    }
    cluster.nodes.kill(0).await.unwrap();
    sale.unavailable("POST", "early").await;
    let crowd: Vec<_> = (0..50).map(|n| format!("crowd-{n:02}")).collect();
    // Those on the other primaries go on selling.
    let others = async {
        second.grant("meanwhile", 20).await;
        third.grant("meanwhile", 20).await;
    };
    let (told, ()) = tokio::join!(sale.insist(&crowd), others);
    assert!(told.refused > 0 && told.granted + told.sold_out == 50, "{told:?}");
    assert_eq!(told.granted, 30, "{told:?}");
    let promoted = cluster.nodes.primary_after(&keys_of(sale.id)[0], 0).await.unwrap();
    assert_eq!(promoted, 3);
    cluster.nodes.restart(0).await.unwrap();
    cluster.nodes.until_well().await.unwrap();
    for user in ["before-000", "before-009"] {
        assert_eq!(sale.expect("POST", user, 200).await.body["status"], "queued");
    }
    // The new replica may be late, and who hears so asks again.
    sale.served("DELETE", "before-009", GRANTED).await;
    sale.served("POST", "late", GRANTED).await;
    sale.comes_home(40).await;
    second.comes_home(30).await;
    third.comes_home(30).await;
    drop((sale, second, third));
    cluster.stop().await;
}

#[tokio::test]
async fn what_a_failover_lost_is_put_back_from_mysql_and_the_rest_is_sold_exactly() {
    let mut cluster = OwnCluster::patient().await;
    let world = cluster.world(&[]).await;
    let [sale, second, third] = cluster.sales(&world, 20).await;
    sale.grant("recorded", 5).await;
    world.pump().await.unwrap();
    // The replica misses what follows.
    let key = &keys_of(sale.id)[0];
    let replica = cluster.nodes.replica_of(key).await.unwrap();
    wait_for_replica(&cluster.nodes, 0).await;
    cluster.nodes.kill(replica).await.unwrap();
    sale.grant("lost", 10).await;
    sale.expect("DELETE", "recorded-004", 202).await;
    cluster.nodes.kill(0).await.unwrap();
    cluster.nodes.restart(replica).await.unwrap();
    cluster.nodes.take_over(replica, key).await.unwrap();
    let held = sale.served("GET", "lost-001", &[404]).await;
    assert_eq!(held.code(), "not-signed-up", "nobody can know yet");
    world.pump().await.unwrap();
    assert_eq!(world.active(sale.id).await, Some(14));
    // As a replica, so that functions that begin now find the cluster at its address.
    cluster.nodes.restart(0).await.unwrap();
    cluster.nodes.until_well().await.unwrap();
    let report = world.reconciled_only(sale.id).await;
    assert_eq!(report["compare"]["found"][0]["mended"], 11, "{report}");
    assert_eq!(sale.expect("POST", "lost-001", 200).await.body["status"], "confirmed");
    let crowd: Vec<_> = (0..10).map(|n| format!("crowd-{n:02}")).collect();
    let told = sale.insist(&crowd).await;
    assert_eq!((told.granted, told.sold_out), (6, 4), "{told:?}");
    sale.comes_home(20).await;
    drop((sale, second, third));
    cluster.stop().await;
}

#[tokio::test]
async fn a_failover_in_order_and_scripts_that_are_flushed_go_unnoticed() {
    let cluster = OwnCluster::patient().await;
    let world = cluster.world(&[("REDIS_WAIT_REPLICAS", "1"), ("REDIS_TIMEOUT_MS", "5000")]).await;
    let [sale, second, third] = cluster.sales(&world, 40).await;
    for sale in [&sale, &second, &third] {
        sale.grant("before", 5).await;
        let old = cluster.nodes.primary_of(&keys_of(sale.id)[0]).await.unwrap();
        let crowd: Vec<_> = (0..20).map(|n| format!("crowd-{n:02}")).collect();
        let key = &keys_of(sale.id)[0];
        let (new, told) = tokio::join!(cluster.nodes.fail_over(key), sale.insist(&crowd));
        assert_eq!((new.unwrap(), told.granted), (old + 3, 20), "{told:?}");
        let _: Answer = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut world.redis.clone()).await.unwrap();
        cluster.nodes.until_well().await.unwrap();
        sale.grant("after", 5).await;
    }
    for sale in [&sale, &second, &third] {
        sale.comes_home(30).await;
    }
    drop((sale, second, third));
    cluster.stop().await;
}

#[tokio::test]
async fn a_function_starts_without_a_node_or_without_any_and_sells_as_soon_as_they_are_there() {
    let mut cluster = OwnCluster::patient().await;
    let mut world = cluster.world(&[]).await;
    let [sale, second, third] = cluster.sales(&world, 40).await;

    // Frozen: its machine is gone, and nobody has taken over.
    cluster.nodes.pause(1).unwrap();
    let started = Instant::now();
    let signup = world.signup();
    signup.warm_up().await;
    assert!(started.elapsed() < 2 * (CLUSTER_TIMEOUT + CLUSTER_MARGIN), "{:?}", started.elapsed());
    let (sale, second) = (sold_by(sale, &signup), sold_by(second, &signup));
    sale.expect("POST", "ann", 202).await;
    second.unavailable("POST", "ann").await;
    sale.served("POST", "bob", &[202]).await;
    cluster.nodes.resume(1).unwrap();
    second.served("POST", "ann", GRANTED).await;

    // The node that REDIS_URL names is gone for good; the function has seen the others.
    cluster.nodes.kill(0).await.unwrap();
    let third = sold_by(third, &signup);
    sale.unavailable("POST", "cid").await;
    third.expect("POST", "ann", 202).await;
    cluster.nodes.pause(2).unwrap();
    third.unavailable("POST", "bob").await;
    cluster.nodes.resume(2).unwrap();
    third.served("POST", "bob", GRANTED).await;

    for node in 1..6 {
        cluster.nodes.kill(node).await.unwrap();
    }
    second.unavailable("POST", "bob").await;
    let before = busy_for();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = busy_for() - before;
    assert!(busy < Duration::from_millis(300), "it looks for them though nobody asks: {busy:?} of a second");
    let signup = world.signup();
    signup.warm_up().await;
    let sale = sold_by(sale, &signup);
    sale.unavailable("POST", "cid").await;
    for node in 0..6 {
        cluster.nodes.restart(node).await.unwrap();
    }
    cluster.nodes.until_well().await.unwrap();
    for sale in [&sale, &second, &third] {
        sale.served("POST", "dan", GRANTED).await;
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
    cluster.stop().await;
}

#[tokio::test]
async fn a_grant_waits_for_the_replica_of_its_own_primary_alone() {
    let cluster = OwnCluster::patient().await;
    let world = cluster.world(&[("REDIS_WAIT_REPLICAS", "1"), ("REDIS_WAIT_TIMEOUT_MS", "200")]).await;
    // All by one function, whose connections to all primaries have something to wait for.
    let signup = world.signup();
    let [sale, second, third] = cluster.sales(&world, 10).await.map(|sale| sold_by(sale, &signup));
    cluster.nodes.pause(3).unwrap();
    sale.unavailable("POST", "ann").await;
    assert_eq!(sale.served("POST", "ann", &[200]).await.body["sequence"], 1);
    for other in [&second, &third] {
        other.grant("user", 5).await;
    }
    cluster.nodes.resume(3).unwrap();
    sale.grant("user", 5).await;
    for (sale, holders) in [(&sale, 6), (&second, 5), (&third, 5)] {
        sale.comes_home(holders).await;
    }
    drop((sale, second, third));
    cluster.stop().await;
}

/// The same sale, with another function.
fn sold_by<'a>(mut sale: Sale<'a>, signup: &signup::App) -> Sale<'a> {
    sale.goes_on_with(signup.clone());
    sale
}

/// The time that this process has used a processor.
fn busy_for() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Waits until the replica of this node holds what the node does.
async fn wait_for_replica(cluster: &RedisCluster, node: usize) {
    let mut connection = redis_at(&cluster.url_of(node)).await;
    let wait = redis::cmd("WAIT").arg(1).arg(10_000).to_owned();
    let holding: u32 = wait.query_async(&mut connection).await.unwrap();
    assert_eq!(holding, 1);
}
