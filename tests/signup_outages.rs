//! `signup` while Redis is down, slow, has lost its memory or holds something else: a quick refusal, nothing half-done.

use std::time::{Duration, Instant};

use local::servers::{Redis, RunDir};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{Proxy, Reply, World, call, one_redis};

const TIMEOUT: Duration = Duration::from_millis(300);

/// What a loaded machine may add to a deadline.
const MARGIN: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_redis_that_is_down_is_a_quick_503_and_the_same_function_goes_on_when_it_is_back() {
    let (world, proxy) = world_behind_a_proxy().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    let before = world.redis_dump(id).await;

    proxy.cut();
    for _ in 0..3 {
        unavailable_at_once(&signup, id, "bob").await;
    }
    assert_eq!(world.redis_dump(id).await, before);
    proxy.heal();
    assert_eq!(call(&signup, "POST", id, "bob").await.status, 202, "the first request after it is back");
    assert_eq!(call(&signup, "GET", id, "alice").await.status, 200);
    assert_eq!(world.drain_signups().await.len(), 2);
}

#[tokio::test]
async fn a_function_that_starts_while_redis_is_down_serves_when_it_is_back() {
    let (world, proxy) = world_behind_a_proxy().await;
    let id = world.open_activity(10).await;
    proxy.cut();
    let signup = world.signup();
    signup.warm_up().await;
    unavailable_at_once(&signup, id, "alice").await;
    proxy.heal();
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
}

#[tokio::test]
async fn a_redis_that_hangs_is_503_in_time_and_asking_again_gives_one_place() {
    let (world, proxy) = world_behind_a_proxy().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);

    proxy.freeze();
    let started = Instant::now();
    assert_unavailable(&call(&signup, "POST", id, "bob").await);
    assert!(started.elapsed() < TIMEOUT + MARGIN, "{:?}", started.elapsed());
    proxy.heal();
    // What was under way when the first request gave up may have happened: then this is the receipt of it.
    let again = call(&signup, "POST", id, "bob").await;
    assert!([200, 202].contains(&again.status), "{again:?}");
    assert_eq!(again.body["sequence"], 2);
    assert_eq!(world.taken(id).await, 2);
    assert_eq!(world.outbox(id).await, ["alice", "bob"]);
}

#[tokio::test]
async fn every_person_who_asks_a_hanging_redis_hears_in_time() {
    let (world, proxy) = world_behind_a_proxy().await;
    let (id, signup) = (world.open_activity(1_000).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    proxy.freeze();
    let started = Instant::now();
    let users: Vec<_> = (0..200).map(|n| format!("user-{n}")).collect();
    let replies = futures::future::join_all(users.iter().map(|user| call(&signup, "POST", id, user))).await;
    assert!(started.elapsed() < TIMEOUT + 2 * MARGIN, "{:?}", started.elapsed());
    assert!(replies.iter().all(|reply| reply.status == 503));
}

#[tokio::test]
async fn an_activity_that_redis_lost_is_503_not_404() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    let keys = ActivityKeys::of(id);
    delete(&world, &keys.activity).await;
    let before = world.redis_dump(id).await;
    for user in ["alice", "bob"] {
        lost_at_once(&signup, id, user).await;
    }
    assert_eq!(world.redis_dump(id).await, before);
    assert_eq!(world.drain_signups().await.len(), 1);
}

#[tokio::test]
async fn a_redis_that_lost_everything_is_503_not_404() {
    let dir = RunDir::create("test").unwrap();
    let mut redis = Redis::start(dir.path()).await.unwrap();
    let world = World::with(&[("REDIS_URL", redis.url())]).await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);

    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    lost_at_once(&signup, id, "alice").await;
    assert_eq!(world.redis_dump(id).await, [None, None, None], "an activity must not come back by itself");
    redis.stop().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn a_redis_that_is_killed_and_started_again_keeps_every_place_and_the_function_its_clients() {
    let dir = RunDir::create("test").unwrap();
    let mut redis = Redis::start(dir.path()).await.unwrap();
    let world = World::with(&[("REDIS_URL", redis.url()), ("REDIS_TIMEOUT_MS", "300")]).await;
    let always = redis::cmd("CONFIG").arg("SET").arg("appendfsync").arg("always").to_owned();
    let _: () = always.query_async(&mut world.redis.clone()).await.unwrap();
    let (id, signup) = (world.open_activity(10).await, world.signup());
    let granted = call(&signup, "POST", id, "alice").await;
    assert_eq!(granted.status, 202);

    redis.kill().await.unwrap();
    unavailable_at_once(&signup, id, "bob").await;
    redis.restart().await.unwrap();
    let again = call(&signup, "POST", id, "alice").await;
    assert_eq!((again.status, again.body), (200, granted.body));
    assert_eq!(call(&signup, "POST", id, "bob").await.body["sequence"], 2);
    redis.stop().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn keys_of_another_form_are_500_and_stay_as_they_are() {
    let world = World::new().await;
    let signup = world.signup();
    let hash = |field: &'static str, value: &'static str| vec!["HSET", field, value];
    // The key, and the command that spoils it: its name, then its arguments after the key.
    type Key = fn(ActivityKeys) -> String;
    let (activity, signups, outbox): (Key, Key, Key) = (|keys| keys.activity, |keys| keys.signups, |keys| keys.outbox);
    for (key, spoil, methods) in [
        (activity, vec!["SET", "x"], &["POST", "GET", "DELETE"][..]),
        (signups, vec!["SET", "x"], &["POST", "GET", "DELETE"]),
        (outbox, vec!["SET", "x"], &["POST", "GET", "DELETE"]),
        (signups, hash("alice", "granted"), &["POST", "GET", "DELETE"]),
        (signups, hash("alice", ""), &["POST", "GET", "DELETE"]),
        (activity, hash("capacity", "many"), &["POST"]),
        (activity, hash("taken", ""), &["POST"]),
        (activity, hash("sequence", "x"), &["POST"]),
        (activity, hash("opens_at_ms", "soon"), &["POST"]),
        (activity, hash("closes_at_ms", "late"), &["POST"]),
    ] {
        let id = world.open_activity(10).await;
        let key = key(ActivityKeys::of(id));
        let mut command = redis::cmd(spoil[0]);
        command.arg(key).arg(&spoil[1..]);
        let _: () = command.query_async(&mut world.redis.clone()).await.unwrap();
        let before = world.redis_dump(id).await;
        for method in methods {
            let reply = call(&signup, method, id, "alice").await;
            assert_eq!((reply.status, reply.code()), (500, "internal-error"), "{method} after {spoil:?}");
        }
        assert_eq!(world.redis_dump(id).await, before, "{spoil:?}");
    }
    assert!(world.drain_signups().await.is_empty());
}

async fn world_behind_a_proxy() -> (World, Proxy) {
    let mut world = World::with(&[("REDIS_URL", &one_redis())]).await;
    let (proxy, url) = Proxy::before(&world.settings["REDIS_URL"]).await;
    world.settings.insert("REDIS_URL".into(), url);
    world.settings.insert("REDIS_TIMEOUT_MS".into(), TIMEOUT.as_millis().to_string());
    (world, proxy)
}

/// Every call about sign-ups is refused in time, and says when to try again.
async fn unavailable_at_once(app: &signup::App, id: ActivityId, user: &str) {
    refused_at_once(app, id, user, "1").await;
}

/// The same for an activity that waits to be rebuilt.
async fn lost_at_once(app: &signup::App, id: ActivityId, user: &str) {
    refused_at_once(app, id, user, "5").await;
}

async fn refused_at_once(app: &signup::App, id: ActivityId, user: &str, retry_after: &str) {
    for method in ["POST", "GET", "DELETE"] {
        let started = Instant::now();
        let reply = call(app, method, id, user).await;
        assert!(started.elapsed() < TIMEOUT + MARGIN, "{method} took {:?}", started.elapsed());
        assert_eq!((reply.status, reply.code()), (503, "unavailable"), "{reply:?}");
        assert_eq!(reply.header("retry-after"), Some(retry_after), "{reply:?}");
    }
}

fn assert_unavailable(reply: &Reply) {
    assert_eq!((reply.status, reply.code(), reply.header("retry-after")), (503, "unavailable", Some("1")), "{reply:?}");
}

async fn delete(world: &World, key: &str) {
    let deleted: u64 = redis::cmd("DEL").arg(key).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(deleted, 1);
}

#[tokio::test]
async fn a_dead_socket_to_redis_is_replaced() {
    let (world, proxy) = world_behind_a_proxy().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);

    proxy.strand();
    let started = Instant::now();
    assert_unavailable(&call(&signup, "POST", id, "bob").await);
    assert!(started.elapsed() < TIMEOUT + MARGIN, "{:?}", started.elapsed());
    assert_eq!(call(&signup, "POST", id, "bob").await.status, 202, "one deadline, then a new connection");
}
