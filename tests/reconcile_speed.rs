//! A million sign-ups compared: how long it takes, and how much memory.

use std::time::{Duration, Instant};

use serde_json::json;
use shared::domain::{ActivityId, Timestamp};
use shared::reservations::ActivityKeys;
use tests::World;

const PEOPLE: u64 = 1_000_000;

/// What the walk may add to the memory of this process: a few pages of both sides.
const LARGEST_GROWTH_KIB: u64 = 32 * 1_024;

/// Long enough for a slow machine that builds something else meanwhile.
const LIMIT: Duration = Duration::from_secs(240);

#[tokio::test]
async fn a_million_sign_ups_are_compared_in_bounded_memory() {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(2_000_000).await;
    fill(&world, id).await;
    // Nobody has a row of somebody who is still on the way, so the walk goes along Redis too.
    world.grant(id, &["zoe"]).await;

    // Two fell apart.
    world.sql("DELETE FROM user_activity WHERE user_id = 'user-0500000'").await;
    let lost: u64 = redis::cmd("HDEL")
        .arg(ActivityKeys::of(id).signups)
        .arg("user-0700000")
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
    assert_eq!(lost, 1);

    let (before_kib, begun) = (peak_kib(), Instant::now());
    let event = tests::invocation(json!({"activityId": id.to_string(), "dryRun": true}), LIMIT);
    let report = serde_json::to_value(reconcile::handle(&world.reconcile(), event).await.unwrap()).unwrap();
    let (took, growth_kib) = (begun.elapsed(), peak_kib() - before_kib);
    println!("1,000,000 sign-ups compared in {:.1} s with {} MiB more", took.as_secs_f32(), growth_kib / 1_024);
    assert!(growth_kib < LARGEST_GROWTH_KIB, "{growth_kib} KiB");
    let found = &report["compare"]["found"][0];
    assert_eq!(found["lostInMysql"], json!({"count": 1, "first": ["user-0500000"]}), "{report}");
    assert_eq!(found["lostInRedis"], json!({"count": 1, "first": ["user-0700000"]}), "{report}");
    assert_eq!((&found["rows"], &found["counted"]), (&json!(999_999), &json!(1_000_001)));
    apart.stop().await;
}

/// The same million on both sides, written by the servers themselves.
async fn fill(world: &World, id: ActivityId) {
    let version = Timestamp::now().as_ms();
    let keys = ActivityKeys::of(id);
    let write = redis::Script::new(
        "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
           redis.call('HSET', KEYS[1], string.format('user-%07d', n), '1 ' .. ARGV[3] .. ' ' .. n)
         end",
    );
    for first in (1..=PEOPLE).step_by(1_000) {
        let mut call = write.prepare_invoke();
        call.key(&keys.signups).arg(first).arg(first + 999).arg(version);
        let _: () = call.invoke_async(&mut world.redis.clone()).await.unwrap();
    }
    let _: u64 = redis::cmd("HSET")
        .arg(&keys.activity)
        .arg("taken")
        .arg(PEOPLE)
        .arg("sequence")
        .arg(PEOPLE)
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
    let digits = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 \
        UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
    let number = "(a.d + b.d * 10 + c.d * 100 + d.d * 1000 + e.d * 10000 + f.d * 100000 + 1)";
    world
        .sql(&format!(
            "INSERT INTO user_activity SELECT {id}, CONCAT('user-', LPAD({number}, 7, '0')), 1, \
             TIMESTAMPADD(MICROSECOND, {version} * 1000, '1970-01-01'), {number}, {version} \
             FROM {digits} a, {digits} b, {digits} c, {digits} d, {digits} e, {digits} f"
        ))
        .await;
    world.sql(&format!("UPDATE activity SET active = {PEOPLE} WHERE id = {id}")).await;
}

/// The most memory that this process has had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
