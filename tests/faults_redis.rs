//! The whole way home after each fault of Redis: a quick 503 and nothing half-done while it lasts, and the same places,
//! no fresh ones, after it.

use std::time::{Duration, Instant};

use consumer::Report;
use local::servers::{Fsync, Redis, RunDir};
use redis::Value as Answer;
use tests::{Sale, World, eventually, redis_at};

const TIMEOUT_MS: &str = "400";

/// `REDIS_TIMEOUT_MS`, and what a loaded machine may add.
const AT_ONCE: Duration = Duration::from_millis(900);

const A_WHILE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_redis_that_is_killed_in_a_sale_and_started_again_knows_everybody() {
    let dir = RunDir::create("test").unwrap();
    let mut redis = Redis::start_with(dir.path(), Fsync::EachWrite).await.unwrap();
    let mut world = World::with(&[("REDIS_URL", redis.url()), ("REDIS_TIMEOUT_MS", TIMEOUT_MS)]).await;
    let (signup, consumer) = (world.signup(), world.consumer());
    let id = {
        let sale = Sale::open(&world, signup.clone(), 100).await;
        sale.grant("recorded", 20).await;
        world.pump().await.unwrap();
        sale.grant("queued", 20).await;
        redis.kill().await.unwrap();
        refused(&sale, "nobody", "1").await;
        let batch = tests::mq_event(world.drain_signups().await.into_iter().map(|message| message.body));
        let report = world.consume(&consumer, batch).await.unwrap();
        assert_eq!(report, Report { received: 20, written: 20, ..Report::default() }, "its notes wait for redis");
        redis.restart().await.unwrap();
        for user in ["recorded-007", "queued-007"] {
            let told = sale.receipts().into_iter().find(|receipt| receipt["userId"] == user).unwrap();
            let again = sale.expect("POST", user, 200).await;
            assert_eq!(again.body["sequence"], told["sequence"]);
        }
        assert_eq!(sale.expect("POST", "next", 202).await.body["sequence"], 41);
        (sale.id, sale.receipts())
    };
    world.redis = redis_at(redis.url()).await;
    assert_eq!(world.outbox(id.0).await.len(), 21);
    world.pump().await;
    world.make_due(id.0).await;
    world.assert_sound(id.0, id.1).await;
    assert_eq!(world.active(id.0).await, Some(41));
    redis.kill().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn a_redis_that_was_flushed_gets_everybody_back_from_mysql_and_the_queue_and_sells_no_place_again() {
    let (world, apart) = World::apart(&[("REDIS_TIMEOUT_MS", TIMEOUT_MS)]).await;
    let sale = Sale::open(&world, world.signup(), 50).await;
    sale.grant("recorded", 20).await;
    sale.expect("DELETE", "recorded-003", 202).await;
    world.pump().await.unwrap();
    sale.grant("queued", 29).await;
    sale.expect("DELETE", "queued-003", 202).await;
    let newest = newest_version(&world, &sale).await;

    ask(&world, &["FLUSHALL"]).await;
    for user in ["recorded-001", "queued-001", "nobody"] {
        refused(&sale, user, "5").await;
    }
    // Nothing takes the messages: it may not come back, since who is in them is not in MySQL.
    let report = world.reconciled_while_pumping().await;
    assert_eq!(report["rebuild"]["rebuilt"], serde_json::json!([sale.id]), "{report}");

    assert_eq!(sale.expect("POST", "queued-001", 200).await.body["status"], "confirmed");
    assert_eq!(sale.expect("DELETE", "queued-003", 200).await.body["status"], "cancelled");
    for user in ["first", "second", "recorded-003"] {
        let receipt = sale.expect("POST", user, 202).await.body;
        assert!(receipt["sequence"].as_u64().unwrap() > 49, "{receipt}");
    }
    for user in ["fourth", "queued-003"] {
        assert_eq!(sale.expect("POST", user, 409).await.code(), "sold-out");
    }
    assert!(newest_version(&world, &sale).await > newest);
    sale.comes_home(50).await;
    drop(sale);
    apart.stop().await;
}

#[tokio::test]
async fn a_redis_out_of_memory_refuses_new_places_in_full_and_lets_those_granted_go_home() {
    let (world, apart) = World::apart(&[("REDIS_TIMEOUT_MS", TIMEOUT_MS)]).await;
    let sale = Sale::open(&world, world.signup(), 50).await;
    sale.grant("queued", 10).await;
    let lost = sale.grant("lost", 10).await;
    let messages = world.drain_signups().await;
    let kept = messages.iter().filter(|message| !lost.contains(&user_of(message))).map(|message| &message.body);
    let batch = tests::mq_event(kept);

    world.make_due(sale.id).await;
    ask(&world, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    ask(&world, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = world.redis_dump(sale.id).await;
    for method in ["POST", "DELETE"] {
        let reply = sale.expect(method, "queued-001", 503).await;
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    assert_eq!(sale.expect("POST", "nobody", 503).await.code(), "unavailable");
    assert_eq!(world.redis_dump(sale.id).await, before, "nothing is half-done");
    sale.expect("GET", "queued-001", 200).await;

    let report = world.consume(&world.consumer(), batch).await.unwrap();
    assert_eq!(report, Report { received: 10, written: 10, settled: 10, ..Report::default() });
    let report = world.reconciled_only(sale.id).await;
    assert_eq!((&report["relay"]["sent"], &report["relay"]["overdue"]), (&10.into(), &10.into()), "{report}");
    assert_eq!(world.pump().await.unwrap(), Report { received: 10, written: 10, settled: 10, ..Report::default() });
    assert_eq!(world.outbox(sale.id).await.len(), 0);

    ask(&world, &["CONFIG", "SET", "maxmemory", "0"]).await;
    sale.grant("later", 5).await;
    sale.comes_home(25).await;
    drop(sale);
    apart.stop().await;
}

#[tokio::test]
async fn a_primary_that_became_a_replica_or_is_busy_refuses_at_once_and_everybody_comes_home_after_it() {
    let (world, apart) = World::apart_on_one_server(&[("REDIS_TIMEOUT_MS", TIMEOUT_MS)]).await;
    let sale = Sale::open(&world, world.signup(), 50).await;
    sale.grant("queued", 10).await;

    // Of a primary that is not there, so that it keeps what it has.
    ask(&world, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let before = world.redis_dump(sale.id).await;
    refused_to_write(&sale).await;
    assert_eq!(world.redis_dump(sale.id).await, before);
    assert_eq!(world.pump().await.unwrap(), Report { received: 10, written: 10, ..Report::default() });
    ask(&world, &["REPLICAOF", "NO", "ONE"]).await;
    sale.grant("between", 10).await;

    ask(&world, &["CONFIG", "SET", "busy-reply-threshold", "50"]).await;
    let mut other = redis_at(&world.settings["REDIS_URL"]).await;
    let script = tokio::spawn(async move {
        let endless = redis::cmd("EVAL").arg("while true do end").arg(0).to_owned();
        endless.query_async::<Answer>(&mut other).await.unwrap_err()
    });
    eventually("busy", A_WHILE, async || {
        let pong: Result<Answer, _> = redis::cmd("PING").query_async(&mut world.redis.clone()).await;
        pong.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    refused_to_write(&sale).await;
    ask(&world, &["SCRIPT", "KILL"]).await;
    assert!(script.await.unwrap().to_string().contains("killed"), "the script ended otherwise");
    sale.grant("after", 10).await;
    sale.comes_home(30).await;
    drop(sale);
    apart.stop().await;
}

#[tokio::test]
async fn a_place_that_no_replica_holds_is_503_and_its_receipt_when_asked_again_and_a_row_all_the_same() {
    let settings = [("REDIS_WAIT_REPLICAS", "1"), ("REDIS_WAIT_TIMEOUT_MS", "50"), ("REDIS_TIMEOUT_MS", TIMEOUT_MS)];
    let dir = RunDir::create("test").unwrap();
    let mut replica = Redis::start(dir.path()).await.unwrap();
    let (mut world, apart) = World::apart_on_one_server(&settings[2..]).await;
    follow(&world, &replica).await;
    world.settings.extend(settings.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let sale = Sale::open(&world, world.signup(), 10).await;
    sale.expect("POST", "alice", 202).await;

    replica.kill().await.unwrap();
    let reply = sale.expect("POST", "bob", 503).await;
    assert_eq!((reply.code(), reply.header("retry-after")), ("unavailable", Some("1")));
    assert_eq!(sale.expect("POST", "bob", 200).await.body["sequence"], 2);
    sale.expect("DELETE", "alice", 503).await;
    assert_eq!(sale.expect("DELETE", "alice", 200).await.body["status"], "cancelled");
    let report = world.pump().await.unwrap();
    assert_eq!(report, Report { received: 3, written: 2, settled: 2, ..Report::default() }, "published all the same");
    assert_eq!(world.statuses(sale.id).await, [("alice".to_owned(), 2), ("bob".to_owned(), 1)]);

    replica.restart().await.unwrap();
    follow(&world, &replica).await;
    sale.expect("POST", "carol", 202).await;
    sale.comes_home(2).await;
    drop(sale);
    replica.kill().await.unwrap();
    dir.finish(true).unwrap();
    apart.stop().await;
}

/// Of the functions, the first works on the old primary and the second on the new one.
#[tokio::test]
async fn a_replica_that_is_promoted_without_the_last_second_oversells_nothing_in_mysql_and_names_the_surplus() {
    let dir = RunDir::create("test").unwrap();
    let mut replica = Redis::start(dir.path()).await.unwrap();
    let (mut world, apart) = World::apart_on_one_server(&[("REDIS_TIMEOUT_MS", TIMEOUT_MS)]).await;
    follow(&world, &replica).await;
    let (old, old_consumer) = (world.signup(), world.consumer());
    let old_url = world.settings.insert("REDIS_URL".into(), replica.url().to_owned()).unwrap();
    let new = world.signup();
    world.settings.insert("REDIS_URL".into(), old_url);
    let mut sale = Sale::open(&world, old, 5).await;
    for user in ["ann", "bob"] {
        sale.expect("POST", user, 202).await;
    }
    world.pump().await.unwrap();
    until_in_step(&world).await;

    // The replica hears no more, and these are in the broker only, three of them not for long.
    ask_server(replica.url(), &["REPLICAOF", "NO", "ONE"]).await;
    for user in ["cid", "dan", "eve"] {
        sale.expect("POST", user, 202).await;
    }
    sale.expect("DELETE", "ann", 202).await;
    sale.expect("POST", "ann", 202).await;
    let lost = tests::mq_event(world.drain_signups().await.into_iter().map(|message| message.body));

    // The new primary has three places left, which it gives away again; bob, whom it knows, leaves for good.
    sale.goes_on_with(new);
    for user in ["fay", "gus", "cid"] {
        sale.expect("POST", user, 202).await;
    }
    sale.expect("POST", "hal", 409).await;
    sale.expect("DELETE", "bob", 202).await;
    sale.expect("POST", "hal", 202).await;
    let report = world.consume(&old_consumer, lost).await.unwrap();
    assert_eq!((report.written, report.surplus), (4, 0), "{report:?}");
    let (id, receipts) = (sale.id, sale.receipts());
    drop(sale);
    promoted(&mut world, &replica, id, receipts).await;
    replica.kill().await.unwrap();
    dir.finish(true).unwrap();
    apart.stop().await;
}

/// What follows on the new primary: MySQL has ann, bob, cid, dan and eve, and the messages of the new primary wait.
async fn promoted(
    world: &mut World,
    replica: &Redis,
    id: shared::domain::ActivityId,
    receipts: Vec<serde_json::Value>,
) {
    world.settings.insert("REDIS_URL".into(), replica.url().to_owned());
    world.redis = redis_at(replica.url()).await;
    let report = world.pump().await.unwrap();
    assert_eq!(world.active(id).await, Some(5), "never more than places: {report:?}");
    assert_eq!(report.surplus, 2, "bob's place goes to one of fay, gus and hal: {report:?}");

    let report = world.reconciled_only(id).await;
    let surplus = &report["surplus"][0];
    assert_eq!((&surplus["capacity"], &surplus["taken"]), (&5.into(), &7.into()), "{report}");
    let named: Vec<_> = surplus["people"].as_array().unwrap().iter().map(|one| one["userId"].clone()).collect();
    assert_eq!(named, ["hal", "gus"], "who came last goes first: {report}");
    assert_eq!(world.active(id).await, Some(5));

    let request = serde_json::json!({"activityId": id.to_string(), "releaseSurplus": true});
    let report = world.reconciled(request).await;
    assert_eq!(report["surplus"][0]["released"], 2, "{report}");
    world.pump().await;
    world.make_due(id).await;
    let rows = world.statuses(id).await;
    let holders: Vec<_> = rows.iter().filter(|(_, status)| *status == 1).map(|(user, _)| user.as_str()).collect();
    assert_eq!(holders, ["ann", "cid", "dan", "eve", "fay"]);
    // What ann and cid hold now is another place than the one that they were told of last or first.
    let told = receipts.into_iter().filter(|receipt| receipt["userId"] != "ann" && receipt["userId"] != "cid");
    // Both primaries gave out a fifth place. A number says who came first in the eyes of one of them; the key is the person.
    let mut findings = world.findings(id, told).await;
    let shared = std::mem::take(&mut findings.shared_places);
    assert_eq!((shared.count, shared.first[0].sequence, shared.first[0].users.as_str()), (1, 5, "cid eve"));
    assert!(findings.is_clean(), "{findings:#?}");
}

/// Every call about sign-ups is refused at once, and says when to try again.
async fn refused(sale: &Sale<'_>, user: &str, retry_after: &str) {
    for method in ["POST", "GET", "DELETE"] {
        let started = Instant::now();
        let reply = sale.expect(method, user, 503).await;
        assert!(started.elapsed() < AT_ONCE, "{method} took {:?}", started.elapsed());
        assert_eq!((reply.code(), reply.header("retry-after")), ("unavailable", Some(retry_after)));
    }
}

async fn refused_to_write(sale: &Sale<'_>) {
    for (method, user) in [("POST", "nobody"), ("DELETE", "queued-001")] {
        let started = Instant::now();
        let reply = sale.expect(method, user, 503).await;
        assert!(started.elapsed() < AT_ONCE, "{method} took {:?}", started.elapsed());
        assert_eq!((reply.code(), reply.header("retry-after")), ("unavailable", Some("1")));
    }
}

async fn newest_version(world: &World, sale: &Sale<'_>) -> u64 {
    let keys = shared::reservations::ActivityKeys::of(sale.id);
    let receipts: Vec<String> =
        redis::cmd("HVALS").arg(keys.signups).query_async(&mut world.redis.clone()).await.unwrap();
    let versions = receipts.iter().map(|receipt| receipt.split(' ').nth(1).unwrap().parse().unwrap());
    versions.max().unwrap()
}

fn user_of(message: &tests::Message) -> String {
    message.json()["userId"].as_str().unwrap().to_owned()
}

async fn ask(world: &World, command: &[&str]) {
    let _: Answer = redis::cmd(command[0]).arg(&command[1..]).query_async(&mut world.redis.clone()).await.unwrap();
}

async fn ask_server(url: &str, command: &[&str]) {
    let _: Answer = redis::cmd(command[0]).arg(&command[1..]).query_async(&mut redis_at(url).await).await.unwrap();
}

/// Makes this server a replica of the world's, and waits until it has all.
async fn follow(world: &World, replica: &Redis) {
    // Otherwise it waits five seconds for more replicas.
    ask(world, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
    let (_, address) = world.settings["REDIS_URL"].split_once("://").unwrap();
    let (host, port) = address.trim_end_matches('/').split_once(':').unwrap();
    ask_server(replica.url(), &["REPLICAOF", host, port]).await;
    eventually("the link to the primary", A_WHILE, async || {
        let mut replica = redis_at(replica.url()).await;
        let info: String = redis::cmd("INFO").arg("replication").query_async(&mut replica).await.unwrap();
        info.contains("master_link_status:up")
    })
    .await;
    until_in_step(world).await;
}

/// Waits until the replica holds what the primary does.
async fn until_in_step(world: &World) {
    ask(world, &["SET", "step", "1"]).await;
    let wait = redis::cmd("WAIT").arg(1).arg(5_000).to_owned();
    let holding: u32 = wait.query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(holding, 1);
}
