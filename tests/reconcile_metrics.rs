//! What `reconcile` measures, as the line that CloudWatch reads.

use std::collections::BTreeSet;

use lapin::options::QueueDeleteOptions;
use serde_json::{Map, Value, json};
use shared::domain::{ActivityId, Timestamp};
use shared::metrics::Metric;
use shared::reservations::ActivityKeys;
use tests::{Once, World, call, users};

const ONCE: Once = Once::new(env!("CARGO_BIN_EXE_once"));

/// As Lambda names the function.
const IN_LAMBDA: (&str, &str) = ("AWS_LAMBDA_FUNCTION_NAME", "onrush-reconcile");

/// The values of one run over everything.
async fn measured(world: &World) -> Map<String, Value> {
    measured_by(world, json!({})).await
}

/// The values of one run, which are those that its line declares.
async fn measured_by(world: &World, request: Value) -> Map<String, Value> {
    let mut lines = ONCE.printed(world, "reconcile", &request).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    let line = lines.swap_remove(0);
    let directive = &line["_aws"]["CloudWatchMetrics"][0];
    assert_eq!((&directive["Namespace"], &directive["Dimensions"]), (&json!("Onrush"), &json!([["FunctionName"]])));
    assert_eq!((&line["FunctionName"], &line["level"]), (&json!("onrush-reconcile"), &json!("INFO")));
    let declared = directive["Metrics"].as_array().unwrap().iter().map(|metric| metric["Name"].as_str().unwrap());
    declared.map(|name| (name.to_owned(), line[name].clone())).collect()
}

fn values(values: &[(Metric, u64)]) -> Map<String, Value> {
    values.iter().map(|(metric, value)| (metric.name().to_owned(), json!(value))).collect()
}

#[tokio::test]
async fn a_run_that_finds_nothing_measures_everything_as_zero() {
    let (world, apart) = World::apart(&[IN_LAMBDA]).await;
    world.open_activity(10).await;
    assert_eq!(measured(&world).await, values(&Metric::ALL.map(|metric| (metric, 0))));
    apart.stop().await;
}

#[tokio::test]
async fn what_waits_is_parked_or_differs_is_measured() {
    let (world, apart) = World::apart(&[IN_LAMBDA, ("SIGNUP_QUEUES", "2")]).await;
    let id = world.open_activity(100).await;
    let recorded = world.grant(id, &["ann", "bob", "cid"]).await;
    world.consume(&world.consumer(), tests::mq_event(recorded)).await.unwrap();
    let keys = ActivityKeys::of(id);
    // Two people were lost, of whom MySQL knows.
    let mut lose = redis::pipe();
    lose.hdel(&keys.signups, &["ann", "bob"]).hincr(&keys.activity, "taken", -2);
    lose.exec_async(&mut world.redis.clone()).await.unwrap();
    for _ in 0..3 {
        world.park_by_hand(b"poison").await;
    }
    // Somebody has waited for long, and in each queue is a message, so that nobody is sent again.
    let waiting = world.open_activity(10).await;
    let keys = ActivityKeys::of(waiting);
    let receipt = format!("1 {} 1", Timestamp::now().as_ms() - 400_000);
    let mut write = redis::pipe();
    write.hset(&keys.signups, "dan", receipt).zadd(&keys.outbox, "dan", 1).hset(&keys.activity, "taken", 1);
    write.exec_async(&mut world.redis.clone()).await.unwrap();
    let signup = world.signup();
    for user in users(20) {
        assert_eq!(call(&signup, "POST", id, &user).await.status, 202);
    }

    let mut measured = measured(&world).await;
    let age = measured.remove("OutboxAge").unwrap().as_u64().unwrap();
    assert!((400..460).contains(&age), "{age} s");
    let expected = [(Metric::ParkedMessages, 3), (Metric::Drift, 2), (Metric::FailedSteps, 0), (Metric::Backlog, 20)];
    assert_eq!(measured, values(&expected));
    apart.stop().await;
}

#[tokio::test]
async fn messages_in_a_queue_beyond_the_number_count_once_their_notes_are_overdue() {
    let settings = [IN_LAMBDA, ("SIGNUP_QUEUES", "2"), ("OUTBOX_GRACE_SECS", "1")];
    let (mut world, apart) = World::apart(&settings).await;
    let (id, topology) = (world.open_activity(10).await, world.topology());
    let user = users(100).into_iter().find(|user| topology.shard_of(&user.parse().unwrap()) == 1).unwrap();
    assert_eq!(call(&world.signup(), "POST", id, &user).await.status, 202);
    world.settings.insert("SIGNUP_QUEUES".to_owned(), "1".to_owned());
    world.make_due(id).await;
    assert_eq!(measured(&world).await["Backlog"], 1);
    apart.stop().await;
}

#[tokio::test]
async fn what_a_run_did_not_come_to_is_missing_and_the_steps_that_stopped_are_counted() {
    let (mut world, apart) = World::apart(&[IN_LAMBDA]).await;
    let channel = world.amqp().await.create_channel().await.unwrap();
    let parked = world.topology().parked_queue();
    channel.queue_delete(parked.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    let zeros = [(Metric::FailedSteps, 1), (Metric::Backlog, 0), (Metric::OutboxAge, 0), (Metric::Drift, 0)];
    assert_eq!(measured(&world).await, values(&zeros));

    world.settings.insert("AMQP_URL".to_owned(), "amqp://127.0.0.1:1/%2f".to_owned());
    let without_broker = measured(&world).await;
    assert_eq!(without_broker.keys().collect::<Vec<_>>(), ["Drift", "FailedSteps", "OutboxAge"], "{without_broker:?}");
    assert_eq!(without_broker["FailedSteps"], 1, "{without_broker:?}");

    world.settings.insert("MYSQL_URL".to_owned(), "mysql://root@127.0.0.1:1/onrush".to_owned());
    let without_both = measured(&world).await;
    assert_eq!(without_both, values(&[(Metric::FailedSteps, 2), (Metric::OutboxAge, 0)]));
    apart.stop().await;
}

/// A sign-up that was granted so long ago, with a note that is due in so long.
async fn granted_before(world: &World, id: ActivityId, user: &str, secs: u64, due_in_secs: u64) {
    let (keys, now_ms) = (ActivityKeys::of(id), Timestamp::now().as_ms());
    let mut write = redis::pipe();
    write.hset(&keys.signups, user, format!("1 {} 1", now_ms - secs * 1_000)).hincr(&keys.activity, "taken", 1);
    write.zadd(&keys.outbox, user, now_ms + due_in_secs * 1_000);
    write.exec_async(&mut world.redis.clone()).await.unwrap();
}

#[tokio::test]
async fn the_oldest_sign_up_is_not_hidden_by_those_whose_turn_comes_before() {
    let (world, apart) = World::apart(&[IN_LAMBDA]).await;
    let id = world.open_activity(10).await;
    // The relay sent the first and put it off, since then others have come.
    granted_before(&world, id, "ann", 900, 600).await;
    granted_before(&world, id, "bob", 5, 55).await;
    let age = measured(&world).await["OutboxAge"].as_u64().unwrap();
    assert!((900..960).contains(&age), "{age} s");
    let one = measured_by(&world, json!({"activityId": id.to_string()})).await;
    assert_eq!(one.get("OutboxAge"), None, "nobody looked at the others");
    apart.stop().await;
}

#[tokio::test]
async fn without_mysql_the_age_of_the_outbox_is_measured() {
    let (mut world, apart) = World::apart(&[IN_LAMBDA]).await;
    let id = world.open_activity(10).await;
    granted_before(&world, id, "ann", 400, 600).await;
    world.settings.insert("MYSQL_URL".to_owned(), "mysql://root@127.0.0.1:1/onrush".to_owned());
    let measured = measured(&world).await;
    let age = measured["OutboxAge"].as_u64().unwrap();
    assert!((400..460).contains(&age), "{age} s");
    assert_eq!((measured.get("Drift"), &measured["FailedSteps"]), (None, &json!(1)), "nobody looked for drift");
    apart.stop().await;
}

#[tokio::test]
async fn somebody_who_is_found_again_after_the_mending_counts_once() {
    let (world, apart) = World::apart(&[IN_LAMBDA]).await;
    let id = world.open_activity(10).await;
    let recorded = world.grant(id, &["ann", "bob"]).await;
    world.consume(&world.consumer(), tests::mq_event(recorded)).await.unwrap();
    // Bob's receipt waits for an operator; Ann's is put back.
    let mut damage = redis::pipe();
    damage.hset(ActivityKeys::of(id).signups, "bob", "x").hdel(ActivityKeys::of(id).signups, "ann");
    damage.exec_async(&mut world.redis.clone()).await.unwrap();
    let lines = ONCE.printed(&world, "reconcile", &json!({"activityId": id.to_string()})).await;
    assert_eq!(lines[1]["compare"]["found"].as_array().unwrap().len(), 2, "{lines:?}");
    assert_eq!(lines[0]["Drift"], 2, "{lines:?}");
    apart.stop().await;
}

#[tokio::test]
async fn more_holders_than_places_are_drift_until_an_operator_decides() {
    let (world, apart) = World::apart(&[IN_LAMBDA]).await;
    let id = world.open_activity(2).await;
    let recorded = world.grant(id, &["ann", "bob"]).await;
    world.consume(&world.consumer(), tests::mq_event(recorded)).await.unwrap();
    granted_before(&world, id, "cid", 1, 600).await;
    for _ in 0..2 {
        assert_eq!(measured(&world).await["Drift"], 1);
    }
    apart.stop().await;
}

#[tokio::test]
async fn an_activity_that_is_left_alone_is_a_failed_step() {
    let (world, apart) = World::apart(&[IN_LAMBDA]).await;
    let id = world.open_activity(10).await;
    let mut damage = redis::pipe();
    damage.set(ActivityKeys::of(id).activity, "x");
    damage.exec_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(measured(&world).await["FailedSteps"], 1);
    apart.stop().await;
}

#[tokio::test]
async fn a_line_passes_the_filter_of_lambda_also_where_only_errors_are_logged() {
    let (world, apart) = World::apart(&[IN_LAMBDA, ("AWS_LAMBDA_LOG_LEVEL", "ERROR")]).await;
    let line = ONCE.printed(&world, "reconcile", &json!({})).await.swap_remove(0);
    assert_eq!(line["level"], "ERROR");
    let at: Timestamp = line["timestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(line["_aws"]["Timestamp"], at.as_ms());
    apart.stop().await;
}

#[tokio::test]
async fn a_dry_run_and_a_run_outside_lambda_write_no_metrics() {
    let (mut world, apart) = World::apart(&[IN_LAMBDA]).await;
    assert_eq!(ONCE.printed(&world, "reconcile", &json!({"dryRun": true})).await.len(), 1);
    world.settings.remove(IN_LAMBDA.0);
    assert_eq!(ONCE.printed(&world, "reconcile", &json!({})).await.len(), 1);
    apart.stop().await;
}

#[test]
fn no_two_metrics_have_the_same_name() {
    let names: BTreeSet<_> = Metric::ALL.into_iter().map(Metric::name).collect();
    assert_eq!(names.len(), Metric::ALL.len());
}
