//! Other sessions in MySQL at the same time: a second consumer (an invocation that Lambda gave up may still be at
//! work when its batch comes again), an organiser, somebody who holds locks.

use std::time::Duration;

use consumer::Report;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::Value;
use shared::domain::ActivityId;
use tests::{World, eventually, message_body, mq_event, random_activity_id, users};
use tokio::task::JoinHandle;

const A_WHILE: Duration = Duration::from_secs(10);

/// A session that holds the lock of this row.
async fn lock_row(world: &World, id: ActivityId, user: &str) -> Conn {
    let mut session = world.mysql.get_conn().await.unwrap();
    session.query_drop("START TRANSACTION").await.unwrap();
    let sql = "SELECT user_id FROM user_activity WHERE activity_id = ? AND user_id = ? FOR UPDATE";
    let locked: Option<String> = session.exec_first(sql, (id.get(), user)).await.unwrap();
    assert_eq!(locked.as_deref(), Some(user));
    session
}

/// Begins to consume, with a function of its own.
fn begin(world: &World, event: Value) -> JoinHandle<Report> {
    let consumer = world.consumer();
    let invocation = tests::invocation(event, Duration::from_secs(30));
    tokio::spawn(async move { consumer::handle(&consumer, invocation).await.unwrap() })
}

async fn until_waiting(world: &World, statements: usize) {
    eventually("waiting for the lock", A_WHILE, || async { world.running_statements().await.len() >= statements })
        .await;
}

async fn until_done_or_waiting<T>(world: &World, task: &JoinHandle<T>, statements: usize) {
    eventually("the end or a lock", A_WHILE, || async {
        task.is_finished() || world.running_statements().await.len() >= statements
    })
    .await;
}

#[tokio::test]
async fn consumers_with_overlapping_batches_end_in_the_highest_versions_and_an_exact_count() {
    let world = World::new().await;
    let id = world.open_activity(1_000).await;
    let mut facts = Vec::new();
    for user in users(30) {
        for version in 1..=4 {
            let status = if version % 2 == 1 { "signed-up" } else { "cancelled" };
            facts.push(message_body(id, &user, version, 1, status));
        }
        // A third of them end with the place, in one fact more.
        if user.ends_with(['0', '3', '6']) {
            facts.push(message_body(id, &user, 5, 2, "signed-up"));
        }
    }
    let consumers = [world.consumer(), world.consumer(), world.consumer()];
    for _ in 0..10 {
        let mut rng = rand::rng();
        let batches = [(); 3].map(|()| {
            let mut batch: Vec<_> = facts.sample(&mut rng, 40).cloned().collect();
            batch.shuffle(&mut rng);
            mq_event(batch)
        });
        let [a, b, c] = batches;
        let (a, b, c) = tokio::join!(
            world.consume(&consumers[0], a),
            world.consume(&consumers[1], b),
            world.consume(&consumers[2], c)
        );
        assert!([a, b, c].iter().all(|outcome| outcome.as_ref().is_ok_and(|report| report.surplus == 0)));
        world.active(id).await;
    }
    let all = || mq_event(&facts);
    let (a, b) = tokio::join!(world.consume(&consumers[0], all()), world.consume(&consumers[1], all()));
    assert_eq!((a.unwrap().surplus, b.unwrap().surplus), (0, 0));
    let expected = users(30)
        .into_iter()
        .map(|user| if user.ends_with(['0', '3', '6']) { (user, 1, 5, 2) } else { (user, 2, 4, 1) });
    assert_eq!(world.rows(id).await, expected.collect::<Vec<_>>());
    assert_eq!(world.active(id).await, Some(9));
}

#[tokio::test]
async fn two_consumers_of_the_same_new_batch_take_each_place_once() {
    let world = World::new().await;
    let id = world.open_activity(150).await;
    let bodies = world.grant(id, &users(150)).await;
    let (one, other) = (begin(&world, mq_event(&bodies)), begin(&world, mq_event(bodies.iter().rev())));
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    assert_eq!((one.written + other.written, one.stale + other.stale), (150, 150), "{one:?} {other:?}");
    assert_eq!((one.surplus, other.surplus), (0, 0));
    assert_eq!(one.settled + other.settled, 150);
    assert_eq!(world.active(id).await, Some(150));
}

/// The first consumer has read that `ann` has no row, and waits for the lock of `zoe` before it writes.
#[tokio::test]
async fn a_cancellation_written_while_another_consumer_decides_is_counted() {
    let world = World::with_own_database().await;
    let id = world.open_activity(2).await;
    let consumer = world.consumer();
    world.consume(&consumer, mq_event([message_body(id, "zoe", 1, 1, "signed-up")])).await.unwrap();
    let mut blocker = lock_row(&world, id, "zoe").await;

    let sign_ups = [message_body(id, "ann", 5, 2, "signed-up"), message_body(id, "zoe", 5, 1, "signed-up")];
    let first = begin(&world, mq_event(sign_ups));
    until_waiting(&world, 1).await;
    let second = begin(&world, mq_event([message_body(id, "ann", 9, 2, "cancelled")]));
    until_done_or_waiting(&world, &second, 2).await;
    blocker.query_drop("ROLLBACK").await.unwrap();

    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(world.rows(id).await, [("ann".to_owned(), 2, 9, 2), ("zoe".to_owned(), 1, 5, 1)]);
    assert_eq!(world.active(id).await, Some(1));
}

/// The consumer has read that MySQL does not know the activity, and waits for the lock of `zoe` before it writes.
#[tokio::test]
async fn an_activity_created_while_a_consumer_writes_its_first_rows_counts_them() {
    let world = World::with_own_database().await;
    let id = random_activity_id();
    let consumer = world.consumer();
    world.consume(&consumer, mq_event([message_body(id, "zoe", 1, 1, "signed-up")])).await.unwrap();
    let mut blocker = lock_row(&world, id, "zoe").await;

    let sign_ups = [message_body(id, "ann", 5, 2, "signed-up"), message_body(id, "zoe", 5, 1, "signed-up")];
    let consuming = begin(&world, mq_event(sign_ups));
    until_waiting(&world, 1).await;
    let (activities, path) = (world.activities(), format!("/activities/{id}"));
    let body = r#"{"title": "Spring hike", "capacity": 10}"#;
    let request = tests::request_of(&tests::event_for("PUT", &path, Some("organiser"), body));
    let putting = tokio::spawn(async move { activities::handle(&activities, request).await.status().as_u16() });
    until_done_or_waiting(&world, &putting, 2).await;
    blocker.query_drop("ROLLBACK").await.unwrap();

    let report = consuming.await.unwrap();
    assert_eq!((report.written, putting.await.unwrap()), (2, 201));
    assert_eq!(world.active(id).await, Some(2));
}

/// The other session has written much, so MySQL gives the consumer up, which is the cheaper one to undo.
#[tokio::test]
async fn a_deadlock_is_tried_again_and_written() {
    let world = World::with_own_database().await;
    let id = world.open_activity(10).await;
    let consumer = world.consumer();
    world.consume(&consumer, mq_event([message_body(id, "zoe", 1, 1, "signed-up")])).await.unwrap();
    let mut other = lock_row(&world, id, "zoe").await;
    let rows: Vec<_> = (0..500).map(|n| format!("(7, 'user-{n}', 1, '2026-11-30', 1, 1)")).collect();
    other.query_drop(format!("INSERT INTO user_activity VALUES {}", rows.join(","))).await.unwrap();

    let sign_ups = [message_body(id, "ann", 5, 2, "signed-up"), message_body(id, "zoe", 5, 1, "signed-up")];
    let consuming = begin(&world, mq_event(sign_ups));
    until_waiting(&world, 1).await;
    // The consumer holds the activity and waits for the row; this session holds the row and asks for the activity.
    other.exec_drop("UPDATE activity SET title = 'Hike' WHERE id = ?", (id.get(),)).await.unwrap();
    assert!(!consuming.is_finished());
    other.query_drop("COMMIT").await.unwrap();
    let report = consuming.await.unwrap();
    assert_eq!(report, Report { received: 2, written: 2, ..Report::default() });
    assert_eq!(world.active(id).await, Some(2));
}

#[tokio::test]
async fn a_lock_that_somebody_holds_for_long_is_waited_for_and_the_rows_written() {
    let world = World::with_own_database().await;
    let id = world.open_activity(10).await;
    let consumer = world.consumer();
    world.consume(&consumer, mq_event([message_body(id, "zoe", 1, 1, "signed-up")])).await.unwrap();
    let mut holder = lock_row(&world, id, "zoe").await;
    let consuming = begin(&world, mq_event([message_body(id, "zoe", 5, 1, "cancelled")]));
    // The first wait ends with error 1205: the consumer lets go of the activity, and tries again.
    until_waiting(&world, 1).await;
    let free = "SELECT id FROM activity WHERE id = ? FOR UPDATE SKIP LOCKED";
    let mut other = world.mysql.get_conn().await.unwrap();
    let is_free = async |other: &mut Conn| other.exec_first::<u64, _, _>(free, (id.get(),)).await.unwrap().is_some();
    assert!(!is_free(&mut other).await);
    let started = std::time::Instant::now();
    while !is_free(&mut other).await {
        assert!(started.elapsed() < A_WHILE, "the consumer never let go");
        tokio::task::yield_now().await;
    }
    holder.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(consuming.await.unwrap(), Report { received: 1, written: 1, ..Report::default() });
    assert_eq!(world.active(id).await, Some(0));
}

/// Nothing locks a row that is not there, and an activity that MySQL does not know cannot be locked either.
#[tokio::test]
async fn a_newer_row_that_comes_between_the_look_and_the_write_stays() {
    let world = World::new().await;
    let id = random_activity_id();
    let newer = format!(
        "INSERT INTO user_activity VALUES ({id}, 'ann', 2, '2026-11-30 12:00:00.123', 7, 9), \
         ({id}, 'bob', 1, '2026-11-30 12:00:00.123', 8, 9)"
    );
    let url = world.settings["MYSQL_URL"].clone();
    shared::fail::cfg_callback("upsert.before-write", move || {
        let (url, newer) = (url.clone(), newer.clone());
        let insert = async move {
            let pool = mysql_async::Pool::new(url.as_str());
            pool.get_conn().await.unwrap().query_drop(newer).await.unwrap();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(insert)).join().unwrap();
    })
    .unwrap();
    let older = [message_body(id, "ann", 5, 1, "signed-up"), message_body(id, "bob", 5, 2, "cancelled")];
    world.consume(&world.consumer(), mq_event(&older[..1])).await.unwrap();
    shared::fail::remove("upsert.before-write");
    world.consume(&world.consumer(), mq_event(&older[1..])).await.unwrap();
    assert_eq!(world.rows(id).await, [("ann".into(), 2, 9, 7), ("bob".into(), 1, 9, 8)]);
}
