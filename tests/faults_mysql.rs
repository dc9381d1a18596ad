//! The whole way home after each fault of MySQL: sign-ups go on, batches fail and come again, and in the end everybody
//! has a row, once.

use std::time::Duration;

use consumer::{ConsumerError, Report};
use local::servers::{MySql, RunDir};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use redis::AsyncCommands;
use serde_json::{Value, json};
use shared::reservations::ActivityKeys;
use shared::store::StoreError;
use tests::{Proxy, Sale, World, eventually, invocation, mq_event};

const A_WHILE: Duration = Duration::from_secs(15);

/// What MariaDB allows as the lowest number of connections.
const FEWEST_CONNECTIONS: usize = 10;

#[tokio::test]
async fn a_mysql_that_was_read_only_crowded_and_killed_in_a_transaction_has_everybody_in_the_end() {
    let run = RunDir::create("test-mysql").unwrap();
    let mut mysql = MySql::start(run.path()).await.unwrap();
    let mut world = World::with(&[("MYSQL_URL", mysql.url())]).await;
    let (_, server) = mysql.url().split_once('@').unwrap();
    world.sql("CREATE USER writer@'127.0.0.1' IDENTIFIED BY 'writes'").await;
    world.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON onrush.* TO writer@'127.0.0.1'").await;
    world.settings.insert("MYSQL_URL".to_owned(), format!("mysql://writer:writes@{server}"));

    read_only(&world).await;
    crowded(&world).await;
    killed_in_a_transaction(&world, &mut mysql).await;
    mysql.kill().await.unwrap();
    run.finish(true).unwrap();
}

/// As after a failover: the address leads to a replica (error 1290).
async fn read_only(world: &World) {
    let sale = Sale::open(world, world.signup(), 20).await;
    sale.grant("before", 5).await;
    world.pump().await.unwrap();
    world.sql("SET GLOBAL read_only = 1").await;
    sale.grant("after", 5).await;
    sale.expect("DELETE", "before-003", 202).await;
    let batch = batch(world).await;
    fails(world, &world.consumer(), &batch, "read-only").await;
    assert_eq!((world.outbox(sale.id).await.len(), world.active(sale.id).await), (6, Some(5)));
    world.sql("SET GLOBAL read_only = 0").await;
    let report = world.consume(&world.consumer(), batch).await.unwrap();
    assert_eq!(report, Report { received: 6, written: 6, settled: 6, ..Report::default() });
    sale.comes_home(9).await;
}

/// Others hold all connections that there are (error 1040).
async fn crowded(world: &World) {
    let sale = Sale::open(world, world.signup(), 20).await;
    sale.grant("user", 5).await;
    let batch = batch(world).await;
    // One with the right to set it back; it counts as one more than there may be.
    let mut keeper = world.mysql.get_conn().await.unwrap();
    let before: usize = keeper.query_first("SELECT @@max_connections").await.unwrap().unwrap();
    keeper.query_drop(format!("SET GLOBAL max_connections = {FEWEST_CONNECTIONS}")).await.unwrap();
    let url = mysql_async::Opts::from_url(&world.settings["MYSQL_URL"]).unwrap();
    let mut crowd = Vec::new();
    while let Ok(one) = Conn::new(mysql_async::OptsBuilder::from_opts(url.clone()).prefer_socket(false)).await {
        crowd.push(one);
        assert!(crowd.len() <= FEWEST_CONNECTIONS);
    }
    fails(world, &world.consumer(), &batch, "Too many connections").await;
    keeper.query_drop(format!("SET GLOBAL max_connections = {before}")).await.unwrap();
    assert_eq!(world.outbox(sale.id).await.len(), 5);
    let report = world.consume(&world.consumer(), batch).await.unwrap();
    assert_eq!(report, Report { received: 5, written: 5, settled: 5, ..Report::default() });
    sale.comes_home(5).await;
    for one in crowd {
        one.disconnect().await.unwrap();
    }
}

/// The transaction has taken the places and written half of the rows, and waits for one that another session holds.
async fn killed_in_a_transaction(world: &World, mysql: &mut MySql) {
    let sale = Sale::open(world, world.signup(), 150).await;
    sale.grant("early", 50).await;
    world.pump().await.unwrap();
    sale.grant("user", 50).await;
    let first = batch(world).await;
    let mut other = world.mysql.get_conn().await.unwrap();
    other.query_drop("START TRANSACTION").await.unwrap();
    let row = format!("INSERT INTO user_activity VALUES ({}, 'user-025', 1, NOW(3), 1, 1)", sale.id);
    other.query_drop(row).await.unwrap();
    let consumer = world.consumer();
    let consuming = tokio::spawn({
        let (consumer, event) = (consumer.clone(), invocation(first.clone(), Duration::from_secs(30)));
        async move { consumer::handle(&consumer, event).await }
    });
    eventually("waiting for the row", A_WHILE, async || {
        world.running_statements().await.iter().any(|statement| statement.starts_with("INSERT"))
    })
    .await;
    mysql.kill().await.unwrap();
    assert!(consuming.await.unwrap().is_err());

    // While it is down people go on signing up and giving back, and every batch fails.
    sale.grant("later", 50).await;
    sale.expect("DELETE", "early-010", 202).await;
    sale.expect("DELETE", "user-010", 202).await;
    let second = batch(world).await;
    for event in [&first, &first, &second] {
        fails(world, &consumer, event, "unavailable").await;
    }
    assert_eq!(world.outbox(sale.id).await.len(), 101);
    mysql.restart().await.unwrap();
    assert_eq!(world.active(sale.id).await, Some(50), "half a transaction leaves nothing");
    let reports = [world.consume(&consumer, first).await.unwrap(), world.consume(&consumer, second).await.unwrap()];
    assert_eq!(reports[0], Report { received: 50, written: 50, settled: 49, ..Report::default() });
    assert_eq!(reports[1], Report { received: 52, written: 52, settled: 52, ..Report::default() });
    sale.comes_home(148).await;
}

#[tokio::test]
async fn a_commit_whose_reply_is_cut_off_with_all_that_follows_fails_the_batch_and_counts_once() {
    let mut world = World::new().await;
    let (proxy, url) = Proxy::before(&world.settings["MYSQL_URL"]).await;
    let direct = world.settings.insert("MYSQL_URL".to_owned(), url).unwrap();
    let consumer = world.consumer();
    world.settings.insert("MYSQL_URL".to_owned(), direct);
    let sale = Sale::open(&world, world.signup(), 10).await;
    sale.grant("user", 5).await;
    let batch = batch(&world).await;

    proxy.lose_reply_to(b"\x03COMMIT"); // a query, and not the setting READ COMMITTED
    let cutting = async {
        while !proxy.has_lost_reply() {
            tokio::task::yield_now().await;
        }
        proxy.cut();
    };
    let (outcome, ()) = tokio::join!(world.consume(&consumer, batch.clone()), cutting);
    assert!(matches!(outcome, Err(ConsumerError::Store(StoreError::Unavailable(_)))), "{outcome:?}");
    assert_eq!((world.active(sale.id).await, world.outbox(sale.id).await.len()), (Some(5), 5), "nobody knows");
    proxy.heal();
    let report = world.consume(&consumer, batch).await.unwrap();
    assert_eq!(report, Report { received: 5, stale: 5, settled: 5, ..Report::default() });
    sale.comes_home(5).await;
}

/// A deadlock and a wait that ends: the row is another session's first, and so is the activity in the end.
#[tokio::test]
async fn a_deadlock_and_a_lock_that_is_held_too_long_cost_a_try_and_no_row() {
    let world = World::with_own_database().await;
    let sale = Sale::open(&world, world.signup(), 10).await;
    sale.grant("user", 3).await;
    world.pump().await.unwrap();
    sale.expect("DELETE", "user-001", 202).await;
    sale.grant("more", 2).await;
    let batch = batch(&world).await;

    let mut other = world.mysql.get_conn().await.unwrap();
    other.query_drop("START TRANSACTION").await.unwrap();
    // Much work, so that the consumer is the one to give up.
    for n in 0..100 {
        other.query_drop(format!("INSERT INTO user_activity VALUES (1, 'x-{n}', 1, NOW(3), 1, 1)")).await.unwrap();
    }
    let lock =
        format!("SELECT status FROM user_activity WHERE activity_id = {} AND user_id = 'user-001' FOR UPDATE", sale.id);
    other.query_drop(lock).await.unwrap();
    let consuming = tokio::spawn({
        let (consumer, event) = (world.consumer(), invocation(batch.clone(), Duration::from_secs(30)));
        async move { consumer::handle(&consumer, event).await }
    });
    eventually("waiting for the row", A_WHILE, async || waiting_since(&world).await.is_some()).await;
    // Now each waits for the other.
    other.query_drop(format!("SELECT id FROM activity WHERE id = {} FOR UPDATE", sale.id)).await.unwrap();
    // The consumer has been given up and tries again: it waits, here for longer than the two seconds that it may.
    eventually("the second try", A_WHILE, async || waiting_since(&world).await.is_some()).await;
    let second = waiting_since(&world).await;
    eventually("the third try", A_WHILE, async || {
        let third = waiting_since(&world).await;
        third.is_some() && third != second
    })
    .await;
    other.query_drop("ROLLBACK").await.unwrap();
    let report = consuming.await.unwrap().unwrap();
    assert_eq!(report, Report { received: 3, written: 3, settled: 3, ..Report::default() });
    sale.comes_home(4).await;
}

#[tokio::test]
async fn one_row_in_a_thousand_that_no_longer_fits_is_parked_rests_and_comes_home_after_the_fix() {
    let world = World::with_own_database().await;
    let sale = Sale::open(&world, world.signup(), 1_000).await;
    world.sql("ALTER TABLE user_activity MODIFY user_id VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin").await;
    sale.grant("user", 999).await;
    let long = "a-name-that-no-longer-fits";
    sale.expect("POST", long, 202).await;
    let report = world.pump().await.unwrap();
    assert_eq!(report, Report { received: 1_000, written: 999, parked: 1, settled: 999, ..Report::default() });

    assert_eq!(world.outbox(sale.id).await, [long]);
    let due: u64 = world.redis.clone().zscore(ActivityKeys::of(sale.id).outbox, long).await.unwrap();
    let now = shared::domain::Timestamp::now().as_ms();
    assert!((23..25).contains(&((due - now) / 3_600_000)), "its note rests for a day");
    let report = world.reconciled_only(sale.id).await;
    assert_eq!((&report["relay"]["overdue"], &report["relay"]["parked"]), (&0.into(), &1.into()), "{report}");
    assert_eq!((world.queued().await, sale.call("GET", long).await.body["status"].clone()), (0, json!("queued")));

    world.sql("ALTER TABLE user_activity MODIFY user_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin").await;
    let report = world.reconciled(json!({"replayParked": 10})).await;
    assert_eq!(report["replay"], json!({"replayed": 1, "mostReplays": 1, "parkedBefore": 1}));
    let report = world.pump().await.unwrap();
    assert_eq!(report, Report { received: 1, written: 1, settled: 1, ..Report::default() });
    assert_eq!(sale.call("GET", long).await.body["status"], "confirmed");
    sale.comes_home(1_000).await;
}

/// What waits in the queue, as the event that comes again until it is taken.
async fn batch(world: &World) -> Value {
    mq_event(world.drain_signups().await.into_iter().map(|message| message.body))
}

async fn fails(world: &World, consumer: &consumer::App, batch: &Value, word: &str) {
    let error = world.consume(consumer, batch.clone()).await.unwrap_err();
    assert!(matches!(error, ConsumerError::Store(StoreError::Unavailable(_))), "{error:?}");
    assert!(error.to_string().contains(word), "{error}");
}

/// When the transaction began that waits for a lock in this database, if one does.
async fn waiting_since(world: &World) -> Option<String> {
    // The table is a copy, which is not renewed while it is read more often than each 100 ms.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let sql = "SELECT CAST(trx_started AS CHAR) FROM information_schema.INNODB_TRX \
        JOIN information_schema.PROCESSLIST ON ID = trx_mysql_thread_id \
        WHERE trx_state = 'LOCK WAIT' AND DB = DATABASE()";
    world.mysql.get_conn().await.unwrap().query_first(sql).await.unwrap()
}
