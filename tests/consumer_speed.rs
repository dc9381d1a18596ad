//! How the consumer reaches its speed: the fast path, the plans of its statements, and a full batch.

use std::time::{Duration, Instant};

use consumer::{ConsumerError, Report};
use mysql_async::prelude::Queryable;
use mysql_async::{Params, Row, Value};
use shared::domain::ActivityId;
use shared::store::StoreError;
use tests::{World, eventually, message_body, mq_event, random_activity_id, users};

/// Proven by a login that may not read the rows: reading is what the careful path cannot do without.
#[tokio::test]
async fn a_batch_of_new_sign_ups_is_written_without_reading_rows() {
    let mut world = World::with_own_database().await;
    let (_, database) = world.settings["MYSQL_URL"].rsplit_once('/').unwrap();
    let login = format!("blind_{}", &database[5..]);
    world.sql(&format!("CREATE USER {login}@'127.0.0.1' IDENTIFIED BY 'blind'")).await;
    world.sql(&format!("GRANT SELECT, UPDATE ON {database}.activity TO {login}@'127.0.0.1'")).await;
    world.sql(&format!("GRANT INSERT ON {database}.user_activity TO {login}@'127.0.0.1'")).await;
    let (_, server) = world.settings["MYSQL_URL"].split_once('@').unwrap();
    let url = format!("mysql://{login}:blind@{server}");
    let ids = [world.open_activity(2_000).await, world.open_activity(2_000).await];
    world.settings.insert("MYSQL_URL".to_owned(), url);
    let consumer = world.consumer();

    let people = users(1_100);
    let new = || people.iter().zip(1..).flat_map(|(user, n)| ids.map(|id| message_body(id, user, n, n, "signed-up")));
    let report = world.consume(&consumer, mq_event(new())).await.unwrap();
    assert_eq!(report, Report { received: 2_200, written: 2_200, ..Report::default() });
    assert_eq!((world.active(ids[0]).await, world.active(ids[1]).await), (Some(1_100), Some(1_100)));

    let error = world.consume(&consumer, mq_event(new())).await.unwrap_err();
    assert!(matches!(error, ConsumerError::Store(StoreError::Schema(_))), "{error}");
    assert_eq!((world.active(ids[0]).await, world.active(ids[1]).await), (Some(1_100), Some(1_100)));
}

/// What EXPLAIN says.
struct Plan {
    access: String,
    key: Option<String>,
    examined: u64,
}

/// The plan that MySQL chooses for this statement. Its text has question marks or, on some servers, the values.
async fn explain(world: &World, statement: &str, values: Vec<Value>) -> Plan {
    let params = if values.len() == statement.matches('?').count() {
        Params::Positional(values)
    } else {
        assert!(!statement.contains('?'), "{statement}");
        Params::Empty
    };
    let mut session = world.mysql.get_conn().await.unwrap();
    let plan: Vec<Row> = session.exec(format!("EXPLAIN FORMAT=TRADITIONAL {statement}"), params).await.unwrap();
    assert_eq!(plan.len(), 1);
    let column = |name: &str| plan[0].get::<Option<String>, _>(name).unwrap();
    Plan { access: column("type").unwrap(), key: column("key"), examined: plan[0].get("rows").unwrap() }
}

/// Holds the lock of one row, lets the consumer run into it, and explains the statement that waits.
async fn plan_of_locking(world: &World, facts: &[(ActivityId, String)]) -> Plan {
    let mut facts = facts.to_vec();
    facts.sort();
    let (last_id, last_user) = facts.last().unwrap();
    let mut holder = world.mysql.get_conn().await.unwrap();
    holder.query_drop("START TRANSACTION").await.unwrap();
    let sql = "SELECT user_id FROM user_activity WHERE activity_id = ? AND user_id = ? FOR UPDATE";
    let locked: Option<String> = holder.exec_first(sql, (last_id.get(), last_user)).await.unwrap();
    assert_eq!(locked.as_ref(), Some(last_user));

    // Cancellations always read.
    let batch = facts.iter().map(|(id, user)| message_body(*id, user, 9, 1, "cancelled"));
    let invocation = tests::invocation(mq_event(batch), Duration::from_secs(30));
    let consumer = world.consumer();
    let consuming = tokio::spawn(async move { consumer::handle(&consumer, invocation).await.unwrap() });
    let reads_rows = |statement: &String| statement.starts_with("SELECT activity_id, user_id, status, version");
    eventually("waiting for the lock", Duration::from_secs(10), || async {
        world.running_statements().await.iter().any(reads_rows)
    })
    .await;
    let statement = world.running_statements().await.into_iter().find(reads_rows).unwrap();
    let mut values: Vec<Value> = Vec::new();
    for of_one in facts.chunk_by(|a, b| a.0 == b.0) {
        values.push(of_one[0].0.get().into());
        values.extend(of_one.iter().map(|(_, user)| user.into()));
    }
    let plan = explain(world, &statement, values).await;
    holder.query_drop("ROLLBACK").await.unwrap();
    let report = consuming.await.unwrap();
    assert_eq!(report.written + report.stale, facts.len());
    plan
}

#[tokio::test]
async fn rows_are_locked_by_their_primary_keys_and_the_table_is_never_scanned() {
    let world = World::with_own_database().await;
    let consumer = world.consumer();
    let ids = [(); 300].map(|()| random_activity_id());
    let people = users(3_000);
    let all = || {
        let many_people = people.iter().map(|user| (ids[0], user.clone()));
        many_people.chain(ids.iter().flat_map(|id| people.iter().take(10).map(|user| (*id, user.clone()))))
    };
    let rows = all().map(|(id, user)| message_body(id, &user, 1, 1, "signed-up"));
    world.consume(&consumer, mq_event(rows)).await.unwrap();
    let facts: Vec<_> = all().collect();
    world.sql("ANALYZE TABLE user_activity").await;

    let one_activity: Vec<_> = facts[..3_000].iter().step_by(3).cloned().collect();
    let many_activities: Vec<_> = facts[3_000..].iter().step_by(3).filter(|(id, _)| *id != ids[0]).cloned().collect();
    let one_user_each: Vec<_> = ids[1..].iter().map(|id| (*id, people[5].clone())).collect();
    for batch in [one_activity, many_activities, one_user_each] {
        let Plan { access, key, examined } = plan_of_locking(&world, &batch).await;
        assert_eq!((access.as_str(), key.as_deref()), ("range", Some("PRIMARY")), "{} facts", batch.len());
        assert!(examined <= batch.len() as u64 + 50, "{examined} rows for {} facts", batch.len());
    }
}

/// The aim is one second in a release build on two cores. To see what this machine does:
/// `cargo nextest run --release -p tests --no-capture ten_thousand`.
#[tokio::test]
async fn a_batch_of_ten_thousand_messages_is_in_mysql_in_seconds() {
    let world = World::new().await;
    let id = world.open_activity(10_000).await;
    let consumer = world.consumer();
    consumer.warm_up().await;
    let people = users(10_000);
    let batch = |version: u64, status: &'static str| {
        mq_event(people.iter().zip(1..).map(move |(user, n)| message_body(id, user, version, n, status)))
    };
    for (what, version, status, active) in [
        ("new", 1, "signed-up", 10_000),
        ("redelivered", 1, "signed-up", 10_000),
        ("cancelled", 2, "cancelled", 0),
        ("signed up again", 3, "signed-up", 10_000),
    ] {
        let event = batch(version, status);
        let started = Instant::now();
        let report = world.consume(&consumer, event).await.unwrap();
        let took = started.elapsed();
        println!("10,000 messages, {what}: {took:.2?}, {:.0} a second", 10_000.0 / took.as_secs_f64());
        assert_eq!((report.received, report.written + report.stale, report.surplus), (10_000, 10_000, 0));
        assert_eq!(world.active(id).await, Some(active));
        assert!(took < Duration::from_secs(15), "{what}: {took:?}");
    }
}

#[tokio::test]
async fn a_batch_about_two_thousand_activities_is_in_mysql_in_seconds() {
    let world = World::with_own_database().await;
    let consumer = world.consumer();
    consumer.warm_up().await;
    let ids: Vec<_> = (0..2_000).map(|_| random_activity_id()).collect();
    let rows: Vec<_> = ids.iter().map(|id| format!("({id}, 'Spring hike', 1, 1)")).collect();
    world.sql(&format!("INSERT INTO activity (id, title, capacity, state) VALUES {}", rows.join(","))).await;
    for (what, version, status, active) in [("new", 1, "signed-up", 2_000), ("cancelled", 2, "cancelled", 0)] {
        let event = mq_event(ids.iter().map(|id| message_body(*id, "ann", version, 1, status)));
        let started = Instant::now();
        let report = world.consume(&consumer, event).await.unwrap();
        let took = started.elapsed();
        println!("2,000 activities, {what}: {took:.2?}");
        assert_eq!(report, Report { received: 2_000, written: 2_000, ..Report::default() });
        let sql = "SELECT COUNT(*) FROM activity WHERE active = 1";
        let counted: Option<u64> = world.mysql.get_conn().await.unwrap().query_first(sql).await.unwrap();
        assert_eq!(counted, Some(active));
        assert!(took < Duration::from_secs(15), "{what}: {took:?}");
    }
}
