//! Clocks that are an hour off: Redis's, by which places are granted, and those of the functions.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use local::servers::{Launch, Process, Redis, RunDir, free_port, until_ready};
use shared::domain::Timestamp;
use shared::reservations::ActivityKeys;
use tests::{Clock, Sale, World, eventually, mq_event, signup_event};

use crate::ONCE;

const AN_HOUR: i64 = 3_600;

const A_WHILE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn with_a_redis_clock_that_goes_back_and_forth_versions_rise_and_every_note_is_relayed() {
    let dir = RunDir::create("test").unwrap();
    let clock = Clock::in_dir(dir.path());
    let (mut redis, url) = redis_with(&clock, dir.path()).await;
    let world = World::with(&[("REDIS_URL", &url), ("OUTBOX_GRACE_SECS", "1")]).await;
    let sale = Sale::open(&world, world.signup(), 10).await;

    let steps = [
        (0, &[("POST", "ann"), ("POST", "bob"), ("POST", "cid")][..]),
        (-AN_HOUR, &[("DELETE", "ann"), ("POST", "ann"), ("POST", "dan")]),
        (AN_HOUR, &[("DELETE", "bob"), ("POST", "eve")]),
        (-AN_HOUR, &[("POST", "bob"), ("DELETE", "dan"), ("DELETE", "eve"), ("POST", "dan")]),
    ];
    let right = Timestamp::now().as_ms();
    for (offset, calls) in steps {
        clock.set_off(offset);
        // Valkey looks at the clock less often than Redis.
        eventually("a look at the clock", A_WHILE, async || (told(&world).await - now_secs() - offset).abs() < 60)
            .await;
        for (method, user) in calls {
            let before = version(&world, &sale, user).await;
            sale.expect(method, user, 202).await;
            let after = version(&world, &sale, user).await;
            assert!(after > before, "{method} by {user} at {offset} s: {before}, then {after}");
        }
    }
    assert!(version(&world, &sale, "dan").await < right - 3_000_000, "the clock was set back");

    // The broker loses every message. Redis's clock stands behind, and would keep the notes from the relay for an hour.
    let lost = world.drain_signups().await.len();
    assert_eq!(lost, 12);
    let sent = RefCell::new((BTreeSet::new(), Vec::new()));
    eventually("relaying", A_WHILE, async || {
        world.reconciled_only(sale.id).await;
        for message in world.drain_signups().await {
            let (users, bodies) = &mut *sent.borrow_mut();
            users.insert(message.json()["userId"].as_str().unwrap().to_owned());
            bodies.push(message.body);
        }
        sent.borrow().0.len() == 5
    })
    .await;
    world.consume(&world.consumer(), mq_event(sent.into_inner().1)).await.unwrap();
    assert_eq!(world.outbox(sale.id).await, [""; 0]);
    clock.set_off(0);
    sale.comes_home(4).await;
    redis.kill().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn functions_whose_clocks_are_an_hour_off_sell_record_and_relay_all_the_same() {
    let dir = RunDir::create("test").unwrap();
    let clock = Clock::in_dir(dir.path());
    let mut world = World::with(&[("OUTBOX_GRACE_SECS", "1")]).await;
    let id = world.open_activity(10).await;
    let wrong = clock.env().map(|(name, path)| (name.to_owned(), path.to_str().unwrap().to_owned()));
    world.settings.extend(wrong);
    let mut receipts = Vec::new();
    for (offset, user, relayed) in [(-AN_HOUR, "ann", "bob"), (AN_HOUR, "cid", "dan")] {
        clock.set_off(offset);
        let now = Timestamp::now().as_ms();
        let reply = ONCE.ran(&world, "signup", &signup_event("POST", id, user)).await;
        assert_eq!(reply["status"], 202, "{reply}");
        let signed_up_at: Timestamp = reply["body"]["signedUpAt"].as_str().unwrap().parse().unwrap();
        assert!(signed_up_at.as_ms().abs_diff(now) < 60_000, "Redis's clock counts: {reply}");
        receipts.push(reply["body"].clone());
        let batch = mq_event(world.drain_signups().await.into_iter().map(|message| message.body));
        let report = ONCE.ran(&world, "consumer", &batch).await;
        assert_eq!((&report["written"], &report["settled"]), (&1.into(), &1.into()), "{report}");

        world.grant(id, &[relayed]).await;
        let event = serde_json::json!({"activityId": id.to_string()});
        eventually("relaying", A_WHILE, async || {
            let report = ONCE.ran(&world, "reconcile", &event).await;
            report["relay"]["sent"] == 1
        })
        .await;
        let batch = mq_event(world.drain_signups().await.into_iter().map(|message| message.body));
        let report = ONCE.ran(&world, "consumer", &batch).await;
        assert_eq!((&report["written"], &report["settled"]), (&1.into(), &1.into()), "{report}");
    }
    world.assert_sound(id, receipts).await;
    assert_eq!(world.active(id).await, Some(4));
    dir.finish(true).unwrap();
}

/// The time in a script, in seconds.
async fn told(world: &World) -> i64 {
    let time = redis::cmd("EVAL").arg("return tonumber(redis.call('TIME')[1])").arg(0).to_owned();
    time.query_async(&mut world.redis.clone()).await.unwrap()
}

fn now_secs() -> i64 {
    i64::try_from(Timestamp::now().as_ms() / 1_000).unwrap()
}

async fn version(world: &World, sale: &Sale<'_>, user: &str) -> u64 {
    let get = redis::cmd("HGET").arg(ActivityKeys::of(sale.id).signups).arg(user).to_owned();
    let receipt: Option<String> = get.query_async(&mut world.redis.clone()).await.unwrap();
    receipt.map_or(0, |receipt| receipt.split(' ').nth(1).unwrap().parse().unwrap())
}

async fn redis_with(clock: &Clock, dir: &Path) -> (Process, String) {
    let program = Redis::program().unwrap();
    let port = free_port().unwrap();
    let mut launch = Launch::new("Redis", &program, dir, &dir.join("redis.log")).args([
        "--bind",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--save",
        "",
    ]);
    for (name, path) in clock.env() {
        launch = launch.env(name, path);
    }
    let mut process = launch.start().unwrap();
    let url = format!("redis://127.0.0.1:{port}/");
    let client = redis::Client::open(url.as_str()).unwrap();
    let probe = async || Ok(client.get_multiplexed_async_connection().await.map(drop)?);
    until_ready(&mut process, A_WHILE, probe).await.unwrap();
    (process, url)
}
