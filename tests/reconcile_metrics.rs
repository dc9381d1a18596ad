//! What `reconcile` measures, as the line that CloudWatch reads.

use std::collections::BTreeSet;

use lapin::options::QueueDeleteOptions;
use serde_json::{Map, Value, json};
use shared::domain::Timestamp;
use shared::metrics::Metric;
use shared::reservations::ActivityKeys;
use tests::{Once, World, call, users};

const ONCE: Once = Once::new(env!("CARGO_BIN_EXE_once"));

/// As Lambda names the function.
const IN_LAMBDA: (&str, &str) = ("AWS_LAMBDA_FUNCTION_NAME", "onrush-reconcile");

/// The values of one run, which are those that its line declares.
async fn measured(world: &World) -> Map<String, Value> {
    let mut lines = ONCE.printed(world, "reconcile", &json!({})).await;
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
    assert_eq!(without_broker.keys().collect::<Vec<_>>(), ["Drift", "FailedSteps"], "{without_broker:?}");
    assert_eq!(without_broker["FailedSteps"], 1, "{without_broker:?}");

    world.settings.insert("MYSQL_URL".to_owned(), "mysql://root@127.0.0.1:1/onrush".to_owned());
    let without_both = measured(&world).await;
    assert_eq!(without_both, values(&[(Metric::FailedSteps, 2)]));
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
