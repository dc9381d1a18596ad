//! The checks against real servers: a sound system passes, and every broken promise is found and named.
#![allow(clippy::unwrap_used)] // the lint's own exception for tests stops at functions without `#[test]`

use std::fmt::Write;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use local::servers::{RunDir, Servers, workspace_root};
use local::verify::{Findings, HandedOut, Settings, verify};
use mysql_async::prelude::Queryable;
use shared::domain::{ActivityId, Receipt};

/// Servers with the tables and queues, empty.
struct System {
    servers: Servers,
    settings: Settings,
    redis: redis::aio::MultiplexedConnection,
    mysql: mysql_async::Conn,
    broker: Connection,
}

impl System {
    async fn start(dir: &RunDir) -> Self {
        let servers = Servers::start(dir.path()).await.unwrap();
        let settings = Settings::from_variables(&servers.env()).unwrap();
        let redis = redis::Client::open(servers.redis.url()).unwrap();
        let redis = redis.get_multiplexed_async_connection().await.unwrap();
        let mut mysql = mysql_async::Conn::from_url(servers.mysql.url()).await.unwrap();
        for migration in migrations() {
            mysql.query_drop(migration).await.unwrap();
        }
        // MySQL itself refuses what some of these tests need to set up.
        mysql.query_drop("ALTER TABLE activity DROP CONSTRAINT activity_never_oversold").await.unwrap();
        let broker = Connection::connect(servers.rabbitmq.url(), ConnectionProperties::default()).await.unwrap();
        let channel = broker.create_channel().await.unwrap();
        for queue in [settings.queue.clone(), settings.topology().unwrap().parked_queue()] {
            let declared = channel.queue_declare(queue.into(), QueueDeclareOptions::default(), FieldTable::default());
            declared.await.unwrap();
        }
        Self { servers, settings, redis, mysql, broker }
    }

    /// An activity of this many places in which the first `people` hold one each, everywhere the same.
    async fn sound(&mut self, id: u64, capacity: u64, people: u64) {
        let key = format!("{{activity:{id}}}");
        let mut known = redis::pipe();
        known.sadd("activities", id);
        known.hset_multiple(&key, &[("capacity", capacity), ("taken", people), ("sequence", people)]);
        let _: () = known.query_async(&mut self.redis).await.unwrap();
        for chunk in (1..=people).collect::<Vec<_>>().chunks(1_000) {
            let mut receipts = redis::pipe();
            let columns = "activity_id, user_id, status, signup_time, sequence, version";
            let mut rows = format!("INSERT INTO user_activity ({columns}) VALUES ");
            for number in chunk {
                let (user, version) = (format!("p-{number:07}"), 1_796_040_000_000 + number);
                receipts.hset(format!("{key}:signups"), &user, format!("1 {version} {number}"));
                let time = "'1970-01-01' + INTERVAL";
                let separator = if *number == chunk[0] { "" } else { "," };
                write!(rows, "{separator}({id}, '{user}', 1, {time} {version}000 MICROSECOND, {number}, {version})")
                    .unwrap();
            }
            let _: () = receipts.query_async(&mut self.redis).await.unwrap();
            self.mysql.query_drop(rows).await.unwrap();
        }
        let activity = format!(
            "INSERT INTO activity (id, title, capacity, state, active) VALUES ({id}, 'x', {capacity}, 1, {people})"
        );
        self.mysql.query_drop(activity).await.unwrap();
    }

    async fn redis(&mut self, command: &str) {
        let mut words = command.split('|');
        let mut sent = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            sent.arg(word);
        });
        let _: redis::Value = sent.query_async(&mut self.redis).await.unwrap();
    }

    async fn found(&self, id: u64, handed_out: &HandedOut) -> Findings {
        verify(&self.settings, Some(ActivityId::new(id)), handed_out).await.unwrap()
    }

    async fn stop(self, dir: RunDir) {
        self.mysql.disconnect().await.unwrap();
        self.broker.close(200, "done".into()).await.unwrap();
        self.servers.stop().await.unwrap();
        dir.finish(true).unwrap();
    }
}

/// The tables as `provision` creates them.
fn migrations() -> Vec<String> {
    let folder = std::fs::read_dir(workspace_root().join("shared/migrations")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// The kinds of findings that are not empty, each with its count.
fn named(findings: &Findings) -> Vec<(&'static str, u64)> {
    let kind = |kind: &'static str| kind.split(':').next().unwrap_or(kind);
    findings.counts().into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (kind(name), count)).collect()
}

fn receipt(id: u64, user: &str, sequence: u64) -> Receipt {
    serde_json::from_value(serde_json::json!({
        "activityId": id.to_string(), "userId": user, "sequence": sequence, "status": "queued",
        "signedUpAt": "2026-11-30T12:00:00.123Z",
    }))
    .unwrap()
}

/// What is broken in a sound activity of 10 places and 10 people, by a command to Redis or a statement to MySQL (`ID`
/// stands for the activity), and what must be found.
const BROKEN: &[(&str, &[(&str, u64)])] = &[
    ("DELETE FROM user_activity WHERE activity_id = ID AND user_id = 'p-0000003'", &[("lost", 1), ("miscounted", 1)]),
    (
        "UPDATE user_activity SET status = 2 WHERE activity_id = ID AND user_id = 'p-0000003'",
        &[("lost", 1), ("miscounted", 1)],
    ),
    ("HDEL|{activity:ID}:signups|p-0000003", &[("unexpected", 1), ("miscounted", 1)]),
    ("HSET|{activity:ID}:signups|p-0000003|1 1796040000004 3 1796040000003", &[("differing", 1)]),
    (
        "UPDATE user_activity SET sequence = 4 WHERE activity_id = ID AND user_id = 'p-0000003'",
        &[("differing", 1), ("shared", 1)],
    ),
    (
        "UPDATE user_activity SET signup_time = NOW(3) WHERE activity_id = ID AND user_id = 'p-0000003'",
        &[("differing", 1)],
    ),
    ("HSET|{activity:ID}:signups|P-0000003|2 1796040000003 3", &[("differing", 1)]),
    ("HSET|{activity:ID}|taken|9", &[("miscounted", 1)]),
    ("HSET|{activity:ID}|sequence|9", &[("miscounted", 1)]),
    ("UPDATE activity SET active = 9 WHERE id = ID", &[("miscounted", 1)]),
    ("HSET|{activity:ID}|capacity|9", &[("oversold", 2), ("miscounted", 1)]),
    ("UPDATE activity SET capacity = 9 WHERE id = ID", &[("oversold", 1), ("miscounted", 1)]),
    ("ZADD|{activity:ID}:outbox|1796040000003|p-0000003", &[("outbox", 1)]),
    ("HSET|{activity:ID}:signups|p-0000003|1 two 3", &[("unexpected", 1), ("miscounted", 1), ("malformed", 1)]),
    ("HSET|{activity:ID}:signups|two words|1 1796040000003 3", &[("malformed", 1)]),
    (
        "UPDATE user_activity SET status = 7 WHERE activity_id = ID AND user_id = 'p-0000003'",
        &[("miscounted", 1), ("malformed", 1)],
    ),
    ("DELETE FROM activity WHERE id = ID", &[("missing", 1)]),
];

#[tokio::test]
async fn every_broken_promise_is_found_and_nothing_else() {
    let dir = RunDir::create("test").unwrap();
    let mut system = System::start(&dir).await;
    for (id, (breakage, expected)) in (100..).zip(BROKEN) {
        system.sound(id, 10, 10).await;
        let findings = system.found(id, &HandedOut::default()).await;
        assert_eq!((named(&findings), findings.rows()), (vec![], 10));

        let breakage = breakage.replace("ID", &id.to_string());
        if breakage.contains('|') {
            system.redis(&breakage).await
        } else {
            system.mysql.query_drop(&breakage).await.unwrap()
        }
        let findings = system.found(id, &HandedOut::default()).await;
        assert_eq!(named(&findings), *expected, "{breakage}\n{findings:#?}");
        let whole = serde_json::to_string(&findings).unwrap();
        assert!(!breakage.contains("p-0000003") || whole.contains("p-0000003"), "nobody named: {breakage}\n{whole}");
    }
    let all = verify(&system.settings, None, &HandedOut::default()).await.unwrap();
    assert_eq!(all.activities.len(), BROKEN.len());
    system.stop(dir).await;
}

#[tokio::test]
async fn receipts_handed_out_and_messages_left_over_are_held_against_the_stores() {
    let dir = RunDir::create("test").unwrap();
    let mut system = System::start(&dir).await;
    system.sound(7, 10, 10).await;
    let all: HandedOut = (1..=10).map(|number| receipt(7, &format!("p-{number:07}"), number)).collect();
    assert_eq!(named(&system.found(7, &all).await), []);

    let forgotten: HandedOut = [receipt(7, "alice", 11), receipt(8, "bob", 1)].into_iter().collect();
    let findings = system.found(7, &forgotten).await;
    assert_eq!(named(&findings), [("lost", 1)]);
    assert_eq!(findings.lost.first[0].user_id.as_str(), "alice");
    let twice: HandedOut = [receipt(7, "p-0000003", 3), receipt(7, "p-0000003", 2)].into_iter().collect();
    assert_eq!(named(&system.found(7, &twice).await), [("twice", 1)]);

    let channel = system.broker.create_channel().await.unwrap();
    channel.confirm_select(Default::default()).await.unwrap();
    for queue in [&system.settings.queue, &system.settings.topology().unwrap().parked_queue()] {
        let sent =
            channel.basic_publish("".into(), queue.as_str().into(), Default::default(), b"{}", Default::default());
        sent.await.unwrap().await.unwrap();
    }
    assert_eq!(named(&system.found(7, &all).await), [("queued", 1), ("parked", 1)]);

    let _: () = redis::cmd("FLUSHALL").query_async(&mut system.redis).await.unwrap();
    assert_eq!(named(&system.found(7, &HandedOut::default()).await)[0], ("missing", 1));
    system.stop(dir).await;
}

#[tokio::test]
async fn of_an_archived_activity_the_rows_are_held_against_the_count_that_redis_kept() {
    let dir = RunDir::create("test").unwrap();
    let mut system = System::start(&dir).await;
    system.sound(5, 10, 10).await;
    system.redis("HSET|{activity:5}|archived_at_ms|1796040000000").await;
    let findings = system.found(5, &HandedOut::default()).await;
    assert_eq!((named(&findings), findings.activities[0].archived), (vec![], false), "receipts are shown for a day");

    system.redis("DEL|{activity:5}:signups").await;
    let all: HandedOut = (1..=10).map(|number| receipt(5, &format!("p-{number:07}"), number)).collect();
    let findings = system.found(5, &all).await;
    assert_eq!((named(&findings), findings.activities[0].archived), (vec![], true));
    system.redis("HSET|{activity:5}|taken|11").await;
    assert_eq!(named(&system.found(5, &all).await), [("miscounted", 1)]);
    let forgotten: HandedOut = [receipt(5, "alice", 11)].into_iter().collect();
    system.redis("HSET|{activity:5}|taken|10").await;
    assert_eq!(named(&system.found(5, &forgotten).await), [("lost", 1)]);
    system.stop(dir).await;
}

#[tokio::test]
async fn a_hundred_thousand_sign_ups_are_compared_page_by_page() {
    let dir = RunDir::create("test").unwrap();
    let mut system = System::start(&dir).await;
    system.sound(9, 100_000, 100_000).await;
    system.redis("HDEL|{activity:9}:signups|p-0000001").await;
    system.redis("HSET|{activity:9}:signups|p-0100000|2 1796040200000 100000 1796040100000").await;
    let strays = "DELETE FROM user_activity WHERE activity_id = 9 AND sequence BETWEEN 50001 AND 50030";
    system.mysql.query_drop(strays).await.unwrap();
    let findings = system.found(9, &HandedOut::default()).await;
    assert_eq!((findings.lost.count, findings.lost.first.len()), (30, 20));
    let unexpected: Vec<_> = findings.unexpected.first.iter().map(|place| place.user_id.as_str()).collect();
    assert_eq!(unexpected, ["p-0000001", "p-0100000"]);
    assert_eq!((findings.rows(), findings.activities[0].receipts), (99_970, 99_998));
    system.stop(dir).await;
}
