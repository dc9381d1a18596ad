//! The private Redis cluster, for real.
#![allow(clippy::unwrap_used)] // the lint's own exception for tests stops at functions without `#[test]`

use std::time::{Duration, Instant};

use local::servers::{RedisCluster, RunDir};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;

const NODE_TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_cluster_starts_moves_a_slot_fails_over_and_gets_its_nodes_back() {
    let dir = RunDir::create("test").unwrap();
    let started = Instant::now();
    let mut cluster = RedisCluster::start(dir.path(), NODE_TIMEOUT).await.unwrap();
    println!("up in {:.1} s", started.elapsed().as_secs_f32());
    let mut connection = connect(&cluster).await;
    let keys = ["a", "b", "c", "{b}:1", "{b}:2"];
    for key in keys {
        ask(&mut connection, &["SET", key, key]).await;
    }
    let primaries = [cluster.primary_of("a").await.unwrap(), cluster.primary_of("b").await.unwrap()];
    assert_eq!(primaries, [2, 0], "slots 15495 and 3300");

    let moving = cluster.begin_move("b", 1).await.unwrap();
    assert_eq!(cluster.keys_left(moving).await.unwrap().len(), 3);
    assert!(cluster.move_key(moving, "{b}:1").await.unwrap());
    assert!(!cluster.move_key(moving, "{b}:1").await.unwrap());
    assert_eq!(ask(&mut connection, &["GET", "{b}:1"]).await, "{b}:1");
    assert_eq!(ask(&mut connection, &["GET", "b"]).await, "b");
    cluster.finish_move(moving).await.unwrap();
    assert_eq!((cluster.primary_of("b").await.unwrap(), cluster.keys_left(moving).await.unwrap().len()), (1, 0));
    assert_eq!(ask(&mut connection, &["GET", "b"]).await, "b");

    assert_eq!(cluster.fail_over("a").await.unwrap(), 5);
    cluster.kill(5).await.unwrap();
    assert_eq!(cluster.primary_after("a", 5).await.unwrap(), 2, "its old primary follows it, and takes over again");
    cluster.restart(5).await.unwrap();
    cluster.until_well().await.unwrap();
    let mut connection = connect(&cluster).await;
    for key in keys {
        assert_eq!(ask(&mut connection, &["GET", key]).await, key);
    }
    cluster.stop().await.unwrap();
    dir.finish(true).unwrap();
}

async fn connect(cluster: &RedisCluster) -> ClusterConnection {
    ClusterClient::new([cluster.url()]).unwrap().get_async_connection().await.unwrap()
}

async fn ask(connection: &mut ClusterConnection, command: &[&str]) -> String {
    redis::cmd(command[0]).arg(&command[1..]).query_async(connection).await.unwrap()
}
