//! The consumer while MySQL or Redis is away: nothing is lost, nothing is settled too early, and nothing hangs.

use std::time::{Duration, Instant};

use consumer::{ConsumerError, Report};
use local::servers::{MySql, RunDir};
use mysql_async::prelude::Queryable;
use shared::domain::ActivityId;
use shared::store::StoreError;
use tests::{Proxy, World, invocation, mq_event, one_redis, users};

/// A corner whose consumer reaches the server of this setting through a proxy.
async fn world_behind_proxy(setting: &str) -> (World, Proxy) {
    let mut world = World::new().await;
    let (proxy, url) = Proxy::before(&world.settings[setting]).await;
    world.settings.insert(setting.to_owned(), url);
    (world, proxy)
}

/// An activity with three places granted, and their messages with poison among them.
async fn three_granted(world: &World) -> (ActivityId, serde_json::Value) {
    let id = world.open_activity(3).await;
    let mut bodies = world.grant(id, &users(3)).await;
    bodies.insert(1, b"poison".to_vec());
    (id, mq_event(bodies))
}

fn complete() -> Report {
    Report { received: 4, written: 3, parked: 1, settled: 3, ..Report::default() }
}

async fn assert_nothing_is_done(world: &World, id: ActivityId) {
    assert_eq!(world.outbox(id).await, users(3));
    assert!(world.rows(id).await.is_empty());
    assert_eq!(world.active(id).await, Some(0));
    assert!(world.drain_parked().await.is_empty());
}

#[tokio::test]
async fn with_mysql_unreachable_the_batch_fails_with_nothing_done_and_later_completes() {
    let (world, proxy) = world_behind_proxy("MYSQL_URL").await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    consumer.warm_up().await;
    for _ in 0..2 {
        proxy.cut();
        let error = world.consume(&consumer, event.clone()).await.unwrap_err();
        assert!(matches!(error, ConsumerError::Store(StoreError::Unavailable(_))), "{error}");
        assert_nothing_is_done(&world, id).await;
    }
    proxy.heal();
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
    assert_eq!(world.active(id).await, Some(3));
    assert!(world.outbox(id).await.is_empty());
}

#[tokio::test]
async fn with_mysql_frozen_the_batch_fails_before_the_deadline_and_later_completes() {
    let (world, proxy) = world_behind_proxy("MYSQL_URL").await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    consumer.warm_up().await;
    proxy.freeze();
    let (limit, started) = (Duration::from_secs(2), Instant::now());
    let error = consumer::handle(&consumer, invocation(event.clone(), limit)).await.unwrap_err();
    assert!(matches!(error, ConsumerError::Store(StoreError::TimedOut)), "{error}");
    assert!(started.elapsed() < limit, "{:?}", started.elapsed());
    assert_nothing_is_done(&world, id).await;
    proxy.heal();
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
    assert_eq!(world.active(id).await, Some(3));
}

#[tokio::test]
async fn functions_start_within_a_moment_while_mysql_is_frozen() {
    let (world, proxy) = world_behind_proxy("MYSQL_URL").await;
    let (id, event) = three_granted(&world).await;
    proxy.freeze();
    let (consumer, activities, started) = (world.consumer(), world.activities(), Instant::now());
    tokio::join!(consumer.warm_up(), activities.warm_up());
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    proxy.heal();
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
    assert_eq!(world.active(id).await, Some(3));
}

#[tokio::test]
async fn a_connection_that_died_in_silence_costs_one_try_and_not_the_batch() {
    let (world, proxy) = world_behind_proxy("MYSQL_URL").await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    assert_eq!(world.consume(&consumer, event.clone()).await.unwrap(), complete());
    // Lets the pool take its connection back. Whether it has is asserted below: nothing else waits.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    proxy.strand();
    let started = Instant::now();
    let again = world.consume(&consumer, event).await.unwrap();
    assert_eq!(again, Report { written: 0, stale: 3, settled: 0, ..complete() });
    let took = started.elapsed();
    assert!(took > Duration::from_secs(1), "the dead connection was not met: {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(world.active(id).await, Some(3));
}

#[tokio::test]
async fn a_connection_that_died_between_two_batches_is_replaced_unnoticed() {
    let (world, proxy) = world_behind_proxy("MYSQL_URL").await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    consumer.warm_up().await;
    proxy.cut();
    proxy.heal();
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
    assert_eq!(world.active(id).await, Some(3));
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_counts_once() {
    let (world, proxy) = world_behind_proxy("MYSQL_URL").await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    proxy.lose_reply_to(b"\x03COMMIT"); // a query, and not the setting READ COMMITTED
    let report = world.consume(&consumer, event).await.unwrap();
    assert!(proxy.has_lost_reply());
    // The second attempt finds the rows of the first.
    assert_eq!(report, Report { received: 4, stale: 3, parked: 1, settled: 3, ..Report::default() });
    assert_eq!((world.rows(id).await.len(), world.active(id).await), (3, Some(3)));
    assert!(world.outbox(id).await.is_empty());
}

#[tokio::test]
async fn an_invocation_with_too_little_time_left_fails_in_time() {
    let world = World::new().await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    let mut blocker = world.mysql.get_conn().await.unwrap();
    blocker.query_drop("START TRANSACTION").await.unwrap();
    let _: Option<u64> =
        blocker.exec_first("SELECT id FROM activity WHERE id = ? FOR UPDATE", (id.get(),)).await.unwrap();

    for limit in [Duration::ZERO, Duration::from_millis(400)] {
        let started = Instant::now();
        let error = consumer::handle(&consumer, invocation(event.clone(), limit)).await.unwrap_err();
        assert!(matches!(error, ConsumerError::Store(StoreError::TimedOut)), "{error}");
        assert!(started.elapsed() < limit.max(Duration::from_millis(200)), "{limit:?}: {:?}", started.elapsed());
    }
    blocker.query_drop("ROLLBACK").await.unwrap();
    assert_nothing_is_done(&world, id).await;
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
}

#[tokio::test]
async fn with_a_table_missing_the_batch_fails_with_a_word_to_the_operator_and_nothing_is_parked() {
    let world = World::with_own_database().await;
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    for (table, elsewhere) in [("activity", "moved_1"), ("user_activity", "moved_2")] {
        world.sql(&format!("RENAME TABLE {table} TO {elsewhere}")).await;
        let error = world.consume(&consumer, event.clone()).await.unwrap_err();
        assert!(matches!(error, ConsumerError::Store(StoreError::Schema(_))), "{error}");
        assert!(error.to_string().contains("run provision"), "{error}");
        world.sql(&format!("RENAME TABLE {elsewhere} TO {table}")).await;
        assert_nothing_is_done(&world, id).await;
    }
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
}

#[tokio::test]
async fn with_redis_away_the_rows_are_written_and_the_notes_stay_until_the_facts_come_again() {
    let mut world = World::with(&[("REDIS_URL", &one_redis())]).await;
    let (id, event) = three_granted(&world).await;
    let (proxy, url) = Proxy::before(&world.settings["REDIS_URL"]).await;
    world.settings.insert("REDIS_URL".to_owned(), url);
    world.settings.insert("REDIS_TIMEOUT_MS".to_owned(), "200".to_owned());
    let consumer = world.consumer();
    proxy.cut();
    let report = world.consume(&consumer, event.clone()).await.unwrap();
    assert_eq!(report, Report { settled: 0, ..complete() });
    assert_eq!((world.active(id).await, world.outbox(id).await), (Some(3), users(3)));
    proxy.freeze();
    let report = world.consume(&consumer, event.clone()).await.unwrap();
    assert_eq!(report, Report { written: 0, stale: 3, settled: 0, ..complete() });
    assert_eq!(world.outbox(id).await, users(3));
    proxy.heal();
    let report = world.consume(&consumer, event).await.unwrap();
    assert_eq!(report, Report { written: 0, stale: 3, ..complete() });
    assert!(world.outbox(id).await.is_empty());
}

#[tokio::test]
async fn one_activity_that_redis_cannot_settle_does_not_keep_the_notes_of_the_others() {
    let world = World::new().await;
    let (broken, sound) = (world.open_activity(1).await, world.open_activity(1).await);
    let mut ids = [broken, sound];
    ids.sort();
    let [broken, sound] = ids;
    let bodies = [world.grant(broken, &["ann"]).await.remove(0), world.grant(sound, &["bob"]).await.remove(0)];
    let outbox = shared::reservations::ActivityKeys::of(broken).outbox;
    let _: () = redis::cmd("SET").arg(&outbox).arg("no outbox").query_async(&mut world.redis.clone()).await.unwrap();
    let report = world.consume(&world.consumer(), mq_event(&bodies)).await.unwrap();
    assert_eq!(report, Report { received: 2, written: 2, settled: 1, ..Report::default() });
    assert!(world.outbox(sound).await.is_empty());
}

#[tokio::test]
async fn a_mysql_that_is_killed_restarted_or_made_read_only_loses_nothing() {
    let run = RunDir::create("test-mysql").unwrap();
    let mut mysql = MySql::start(run.path()).await.unwrap();
    let mut world = World::with(&[("MYSQL_URL", mysql.url())]).await;
    world.sql("CREATE USER writer@'127.0.0.1' IDENTIFIED BY 'writes'").await;
    world.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON onrush.* TO writer@'127.0.0.1'").await;
    let (_, server) = mysql.url().split_once('@').unwrap();
    world.settings.insert("MYSQL_URL".to_owned(), format!("mysql://writer:writes@{server}"));
    let (id, event) = three_granted(&world).await;
    let consumer = world.consumer();
    consumer.warm_up().await;

    // As after a failover: the address leads to a replica (error 1290).
    world.sql("SET GLOBAL read_only = 1").await;
    let error = world.consume(&consumer, event.clone()).await.unwrap_err();
    assert!(matches!(error, ConsumerError::Store(StoreError::Unavailable(_))), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    world.sql("SET GLOBAL read_only = 0").await;
    assert_nothing_is_done(&world, id).await;

    mysql.kill().await.unwrap();
    let started = Instant::now();
    let error = world.consume(&consumer, event.clone()).await.unwrap_err();
    assert!(matches!(error, ConsumerError::Store(StoreError::Unavailable(_))), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(world.outbox(id).await, users(3));

    mysql.restart().await.unwrap();
    assert_eq!(world.consume(&consumer, event).await.unwrap(), complete());
    assert_eq!(world.active(id).await, Some(3));
    mysql.kill().await.unwrap();
    run.finish(true).unwrap();
}
