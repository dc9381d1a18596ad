//! The comparison: each way in which Redis and MySQL can fall apart is found by name and mended, and nothing that is
//! on its way is taken for lost.

use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tests::{World, call, fact_of, mq_event, users};

async fn reconciled(world: &World, id: ActivityId) -> Value {
    world.reconciled(json!({"activityId": id.to_string()})).await
}

/// Signs these people up, all the way into MySQL.
async fn confirmed(world: &World, id: ActivityId, people: &[impl AsRef<str>]) -> Vec<Vec<u8>> {
    let bodies = world.grant(id, people).await;
    world.consume(&world.consumer(), mq_event(&bodies)).await.unwrap();
    bodies
}

async fn redis(world: &World, command: &[&str]) {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    let _: redis::Value = asked.query_async(&mut world.redis.clone()).await.unwrap();
}

fn first(report: &Value, kind: &str) -> Value {
    report["compare"]["found"][0][kind].clone()
}

fn nothing_found(report: &Value) {
    assert_eq!((&report["compare"]["walked"], &report["compare"]["found"]), (&json!(1), &json!([])), "{report}");
}

#[tokio::test]
async fn two_sides_that_agree_are_left_as_they_are() {
    let world = World::new().await;
    let id = world.open_activity(10).await;
    confirmed(&world, id, &["ann", "bob", "cid"]).await;
    let cancelled = world.give_back(id, "bob").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    let before = (world.redis_dump(id).await, world.rows(id).await);
    nothing_found(&reconciled(&world, id).await);
    assert_eq!((world.redis_dump(id).await, world.rows(id).await), before);
}

#[tokio::test]
async fn what_is_on_its_way_is_not_taken_for_lost() {
    let world = World::new().await;
    let id = world.open_activity(10).await;
    confirmed(&world, id, &["ann", "bob"]).await;
    world.give_back(id, "ann").await;
    world.grant(id, &["cid"]).await;
    let before = (world.redis_dump(id).await, world.rows(id).await);
    nothing_found(&reconciled(&world, id).await);
    assert_eq!((world.redis_dump(id).await, world.rows(id).await), before);
}

#[tokio::test]
async fn a_sign_up_that_redis_lost_comes_back_from_mysql_with_its_place() {
    let world = World::new().await;
    let id = world.open_activity(10).await;
    let bodies = confirmed(&world, id, &["ann", "bob"]).await;
    let keys = ActivityKeys::of(id);
    // As after a failover that lost bob's reservation.
    redis(&world, &["HDEL", &keys.signups, "bob"]).await;
    redis(&world, &["HSET", &keys.activity, "taken", "1", "sequence", "1"]).await;
    let report = reconciled(&world, id).await;
    assert_eq!(first(&report, "lostInRedis"), json!({"count": 1, "first": ["bob"]}));
    assert_eq!(world.taken(id).await, 2);
    let again = call(&world.signup(), "POST", id, "bob").await;
    assert_eq!((again.status, &again.body["sequence"]), (200, &json!(fact_of(&bodies[1]).sequence)));
    assert_eq!(call(&world.signup(), "POST", id, "cid").await.body["sequence"], 3, "no place is numbered twice");
}

#[tokio::test]
async fn a_cancellation_that_redis_lost_comes_back_and_frees_the_place_there_too() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    confirmed(&world, id, &["ann"]).await;
    let keys = ActivityKeys::of(id);
    let old: String =
        redis::cmd("HGET").arg(&keys.signups).arg("ann").query_async(&mut world.redis.clone()).await.unwrap();
    let cancelled = world.give_back(id, "ann").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    // As after a failover that lost the cancellation, and the removal of the note of the sign-up.
    redis(&world, &["HSET", &keys.signups, "ann", &old]).await;
    redis(&world, &["HSET", &keys.activity, "taken", "1"]).await;
    redis(&world, &["ZADD", &keys.outbox, "9999999999999", "ann"]).await;
    let report = reconciled(&world, id).await;
    assert_eq!(first(&report, "lostInRedis"), json!({"count": 1, "first": ["ann"]}));
    assert_eq!((world.taken(id).await, world.outbox(id).await.len()), (0, 0));
    assert_eq!(call(&world.signup(), "GET", id, "ann").await.body["status"], "cancelled");
}

#[tokio::test]
async fn what_mysql_lost_is_sent_again_and_lands_there() {
    let world = World::new().await;
    let id = world.open_activity(10).await;
    confirmed(&world, id, &["ann", "bob", "cid"]).await;
    let cancelled = world.give_back(id, "cid").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    let before = world.rows(id).await;
    // As after MySQL came back from a copy of yesterday: one row is not there, another is older.
    world.sql(&format!("DELETE FROM user_activity WHERE activity_id = {id} AND user_id = 'ann'")).await;
    world
        .sql(&format!(
            "UPDATE user_activity SET status = 1, version = version - 1 WHERE activity_id = {id} AND user_id = 'cid'"
        ))
        .await;
    let report = reconciled(&world, id).await;
    let mut lost: Vec<_> = first(&report, "lostInMysql")["first"].as_array().unwrap().clone();
    lost.sort_by_key(ToString::to_string);
    assert_eq!(lost, [json!("ann"), json!("cid")], "{report}");
    assert_eq!(report["relayAgain"]["sent"], 2, "{report}");
    world.pump().await;
    assert_eq!((world.rows(id).await, world.outbox(id).await.len()), (before, 0));
    nothing_found(&reconciled(&world, id).await);
}

#[tokio::test]
async fn of_two_facts_with_one_version_the_one_that_people_were_told_last_wins() {
    let world = World::new().await;
    let id = world.open_activity(10).await;
    confirmed(&world, id, &["ann"]).await;
    world.sql(&format!("UPDATE user_activity SET sequence = 99 WHERE activity_id = {id}")).await;
    reconciled(&world, id).await;
    world.pump().await;
    assert_eq!(world.rows(id).await[0].3, 1);
    nothing_found(&reconciled(&world, id).await);
}

#[tokio::test]
async fn a_count_of_places_that_is_wrong_is_set_right() {
    let world = World::new().await;
    let id = world.open_activity(3).await;
    confirmed(&world, id, &["ann", "bob"]).await;
    world.grant(id, &["cid"]).await;
    for wrong in ["2", "5", "0"] {
        redis(&world, &["HSET", &ActivityKeys::of(id).activity, "taken", wrong]).await;
        let report = reconciled(&world, id).await;
        assert_eq!(
            (first(&report, "taken"), first(&report, "counted")),
            (json!(wrong.parse::<u64>().unwrap()), json!(3))
        );
        assert_eq!(world.taken(id).await, 3);
    }
}

#[tokio::test]
async fn a_receipt_of_another_form_is_counted_and_left_to_an_operator() {
    let world = World::new().await;
    let id = world.open_activity(3).await;
    confirmed(&world, id, &["ann", "bob"]).await;
    redis(&world, &["HSET", &ActivityKeys::of(id).signups, "ann", "granted", "cid", "x"]).await;
    let before = world.redis_dump(id).await;
    let report = reconciled(&world, id).await;
    assert_eq!(first(&report, "damaged"), 2, "{report}");
    assert_eq!(world.redis_dump(id).await, before);
}

#[tokio::test]
async fn a_dry_run_finds_the_same_and_changes_nothing() {
    let world = World::with(&[("OUTBOX_GRACE_SECS", "1")]).await;
    let id = world.open_activity(3).await;
    confirmed(&world, id, &["ann", "bob"]).await;
    world.grant(id, &["cid"]).await;
    let keys = ActivityKeys::of(id);
    redis(&world, &["HDEL", &keys.signups, "ann"]).await;
    redis(&world, &["ZADD", &keys.outbox, "XX", "1", "cid"]).await;
    world.sql(&format!("DELETE FROM user_activity WHERE activity_id = {id} AND user_id = 'bob'")).await;
    let before = (world.redis_dump(id).await, world.rows(id).await);
    let report = world.reconciled(json!({"activityId": id.to_string(), "dryRun": true})).await;
    assert_eq!(first(&report, "lostInRedis")["first"], json!(["ann"]), "{report}");
    assert_eq!(first(&report, "lostInMysql")["first"], json!(["bob"]), "{report}");
    assert_eq!((&report["relay"]["overdue"], &report["relay"]["sent"]), (&json!(1), &json!(0)));
    assert_eq!((world.redis_dump(id).await, world.rows(id).await), before);
    assert!(world.drain_signups().await.is_empty());
}

#[tokio::test]
async fn each_minute_counts_are_enough_until_they_disagree_or_an_hour_has_passed() {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(10).await;
    confirmed(&world, id, &["ann", "bob"]).await;
    assert_eq!(world.reconciled(json!({})).await["compare"]["walked"], 1, "never compared before");
    let quiet = world.reconciled(json!({})).await;
    assert_eq!((&quiet["survey"]["activities"], &quiet["compare"]["walked"]), (&json!(1), &json!(0)), "{quiet}");
    // Somebody on the way explains a difference.
    world.grant(id, &["cid"]).await;
    assert_eq!(world.reconciled(json!({})).await["compare"]["walked"], 0);
    // Counts that agree by chance do not hide that MySQL knows somebody else: cid is on the way, and bob lost.
    redis(&world, &["HDEL", &ActivityKeys::of(id).signups, "bob"]).await;
    redis(&world, &["HSET", &ActivityKeys::of(id).activity, "taken", "2"]).await;
    let report = world.reconciled(json!({})).await;
    assert_eq!(
        (&report["survey"]["disagreeing"], first(&report, "lostInRedis")["first"][0].as_str()),
        (&json!(1), Some("bob"))
    );
    assert_eq!(world.reconciled(json!({})).await["compare"]["walked"], 0);
    world.sql("UPDATE activity SET compared_at = compared_at - INTERVAL 2 HOUR").await;
    assert_eq!(world.reconciled(json!({})).await["compare"]["walked"], 1);
    apart.stop().await;
}

#[tokio::test]
async fn a_comparison_during_a_rush_finds_nothing_wrong() {
    let world = World::new().await;
    let id = world.open_activity(400).await;
    let (signup, consumer) = (world.signup(), world.consumer());
    let rush = async {
        for (n, user) in users(300).iter().enumerate() {
            assert_eq!(call(&signup, "POST", id, user).await.status, 202);
            if n % 3 == 0 {
                assert_eq!(call(&signup, "DELETE", id, user).await.status, 202);
            }
            if n % 20 == 19 {
                let bodies: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
                world.consume(&consumer, mq_event(bodies)).await.unwrap();
            }
        }
    };
    let watch = async {
        let mut walks = 0;
        loop {
            let report = reconciled(&world, id).await;
            assert_eq!(report["compare"]["found"], json!([]), "{report}");
            walks += 1;
            if world.taken(id).await == 200 {
                return walks;
            }
        }
    };
    let ((), walks) = tokio::join!(rush, watch);
    assert!(walks > 3, "{walks} walks during the rush");
    world.pump().await;
    nothing_found(&reconciled(&world, id).await);
    assert_eq!((world.active(id).await, world.taken(id).await), (Some(200), 200));
}
