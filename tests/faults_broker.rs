//! The whole way home after each fault of the broker: people go on getting places, and when it is well again everybody
//! ends as a row, checked person by person.

use std::time::{Duration, Instant};

use lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use local::servers::{RabbitMq, RunDir};
use serde_json::json;
use tests::{Proxy, Sale, World, eventually};

/// RabbitMQ 3.10 loses a quorum queue that is younger than this when it is killed.
const GROWN_UP: Duration = Duration::from_secs(6);

#[tokio::test]
async fn a_broker_that_froze_was_killed_in_a_sale_and_stood_still_for_a_whole_one_loses_nobody() {
    let dir = RunDir::create("test").unwrap();
    let mut rabbitmq = RabbitMq::start(dir.path()).await.unwrap();
    let world = World::with(&[("AMQP_URL", rabbitmq.url()), ("PUBLISH_TIMEOUT_MS", "300")]).await;
    let declared = Instant::now();
    let signup = world.signup();

    frozen(&world, &signup, &rabbitmq).await;
    tokio::time::sleep_until((declared + GROWN_UP).into()).await;
    killed(&world, &signup, &mut rabbitmq).await;
    stopped(&world, &signup, &mut rabbitmq).await;
    rabbitmq.kill().await.unwrap();
    dir.finish(true).unwrap();
}

/// Longer than the publisher waits for a confirm (0.3 s here), than reconcile waits for a connection (5 s), and so than
/// anybody waits: a longer freeze is the same.
async fn frozen(world: &World, signup: &signup::App, rabbitmq: &RabbitMq) {
    let sale = Sale::open(world, signup.clone(), 100).await;
    sale.grant("before", 20).await;
    rabbitmq.pause().unwrap();
    sale.grant("frozen", 30).await;
    world.make_due(sale.id).await;
    let report = world.reconciled_only(sale.id).await;
    assert!(report["relay"]["error"].as_str().is_some_and(|error| error.contains("in time")), "{report}");
    assert_eq!(report["compare"]["found"], json!([]), "{report}");
    rabbitmq.resume().unwrap();
    sale.grant("after", 10).await;
    sale.comes_home(60).await;
}

async fn killed(world: &World, signup: &signup::App, rabbitmq: &mut RabbitMq) {
    let sale = Sale::open(world, signup.clone(), 10_000).await;
    until_published(&sale, "early").await;
    let early = world.queued().await;
    rabbitmq.kill().await.unwrap();
    sale.grant("down", 30).await;
    let during = async {
        let mut beat = tokio::time::interval(Duration::from_millis(100));
        for beats in 0_u32.. {
            beat.tick().await;
            sale.grant(&format!("starting-{beats:03}"), 2).await;
        }
    };
    tokio::select! {
        restarted = rabbitmq.restart() => restarted.unwrap(),
        () = during => unreachable!(),
    }
    until_published(&sale, "late").await;
    let is_all_there = || async { world.queued().await > early };
    eventually("what was confirmed before the kill is there again", Duration::from_secs(10), is_all_there).await;
    let granted = world.taken(sale.id).await;
    sale.comes_home(granted).await;
}

async fn stopped(world: &World, signup: &signup::App, rabbitmq: &mut RabbitMq) {
    let sale = Sale::open(world, signup.clone(), 50).await;
    rabbitmq.stop().await.unwrap();
    sale.grant("all", 50).await;
    sale.expect("POST", "too-late", 409).await;
    sale.expect("DELETE", "all-007", 202).await;
    sale.expect("POST", "in-time", 202).await;
    assert_eq!(world.outbox(sale.id).await.len(), 51, "nobody could be told");
    rabbitmq.restart().await.unwrap();
    sale.comes_home(50).await;
}

/// People sign up, one after the other, until the message of one of them has arrived.
async fn until_published(sale: &Sale<'_>, name: &str) {
    let (before, round) = (sale.world.queued().await, std::cell::Cell::new(0));
    eventually("a message", Duration::from_secs(15), async || {
        round.set(round.get() + 1);
        sale.grant(&format!("{name}-{:03}", round.get()), 1).await;
        sale.world.queued().await > before
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_was_deleted_in_a_sale_comes_back_with_provision_and_everybody_with_it() {
    let world = World::new().await;
    let sale = Sale::open(&world, world.signup(), 100).await;
    sale.grant("lost", 20).await;
    delete_queue(&world).await;
    sale.grant("returned", 20).await;
    world.make_due(sale.id).await;
    let report = world.reconciled_only(sale.id).await;
    assert_eq!(report["relay"]["missing"], json!([world.topology().queue]), "{report}");
    assert_eq!((&report["relay"]["overdue"], &report["relay"]["sent"]), (&json!(40), &json!(0)), "{report}");
    assert_eq!(world.outbox(sale.id).await.len(), 40);

    provision::provision(&world.provision()).await.unwrap();
    sale.grant("later", 20).await;
    sale.comes_home(60).await;
}

#[tokio::test]
async fn a_queue_that_lost_its_binding_gets_nothing_and_the_relay_says_so_and_sends_all_when_it_is_back() {
    let world = World::new().await;
    unbind(&world).await;
    let sale = Sale::open(&world, world.signup(), 100).await;
    sale.grant("returned", 20).await;
    assert_eq!(world.outbox(sale.id).await.len(), 20);
    for _ in 0..2 {
        // A message that comes back to the sender was not sent, so its note is due again at once.
        world.make_due(sale.id).await;
        let report = world.reconciled_only(sale.id).await;
        let error = report["relay"]["error"].as_str();
        assert!(error.is_some_and(|error| error.contains("no queue takes the message")), "{report}");
        let look = json!({"activityId": sale.id.to_string(), "dryRun": true});
        assert_eq!(world.reconciled(look).await["relay"]["overdue"], 20);
    }
    assert_eq!((world.queued().await, world.active(sale.id).await), (0, Some(0)));
    provision::provision(&world.provision()).await.unwrap();
    let report = world.reconciled_only(sale.id).await;
    assert_eq!(report["relay"]["sent"], 20, "{report}");
    sale.comes_home(20).await;
}

#[tokio::test]
async fn a_full_queue_refuses_messages_and_no_places_and_takes_the_rest_as_it_empties() {
    let world = World::new().await;
    delete_queue(&world).await;
    declare_queue_of(&world, 10).await;
    let sale = Sale::open(&world, world.signup(), 100).await;
    sale.grant("user", 60).await;
    let queued = u64::from(world.queued().await);
    assert!((10..60).contains(&queued), "{queued} messages in a queue for 10");

    // One batch for each queue full at most, and no message is copied while it may wait in the queue.
    let (mut home, mut rounds) = (0, 0);
    while home < 60 {
        let report = world.pump().await.expect("something is in the queue");
        assert_eq!((report.stale, report.surplus, report.parked), (0, 0, 0), "each came once: {report:?}");
        home += report.written;
        rounds += 1;
        assert!(rounds <= 6, "{home} after {rounds} batches");
        world.make_due(sale.id).await;
        let report = world.reconciled_only(sale.id).await;
        assert_eq!(world.outbox(sale.id).await.len(), 60 - home, "{report}");
    }
    sale.comes_home(60).await;
}

#[tokio::test]
async fn a_sale_without_a_connection_to_the_broker_is_relayed_to_the_last_person() {
    let mut world = World::new().await;
    let (proxy, signup) = signup_behind_a_proxy(&mut world).await;
    proxy.cut();
    let sale = Sale::open(&world, signup, 100).await;
    sale.grant("user", 100).await;
    sale.expect("DELETE", "user-042", 202).await;
    sale.expect("POST", "user-042", 202).await;
    assert_eq!((world.queued().await, world.outbox(sale.id).await.len()), (0, 100));
    world.make_due(sale.id).await;
    let report = world.reconciled_only(sale.id).await;
    assert_eq!((&report["relay"]["overdue"], &report["relay"]["sent"]), (&100.into(), &100.into()), "{report}");
    let report = world.pump().await.unwrap();
    assert_eq!((report.written, report.settled), (100, 100));
    sale.comes_home(100).await;
}

#[tokio::test]
async fn a_connection_that_is_cut_in_the_middle_of_a_confirm_sends_one_fact_twice_and_makes_one_row() {
    let mut world = World::new().await;
    let (proxy, signup) = signup_behind_a_proxy(&mut world).await;
    let sale = Sale::open(&world, signup, 10).await;
    sale.grant("before", 1).await;
    proxy.lose_reply_to(b"signup.v1");
    sale.expect("POST", "alice", 202).await;
    assert!(proxy.has_lost_reply());
    sale.expect("POST", "alice", 200).await;
    assert_eq!(world.queued().await, 3, "the message came, the confirm did not, and it was sent again");
    let report = world.pump().await.unwrap();
    assert_eq!((report.received, report.written, report.settled), (3, 2, 2));
    sale.comes_home(2).await;
}

#[tokio::test]
async fn a_confirm_that_never_comes_leaves_a_note_and_a_message_and_makes_one_row() {
    let mut world = World::new().await;
    let (proxy, signup) = signup_behind_a_proxy(&mut world).await;
    let sale = Sale::open(&world, signup, 10).await;
    sale.grant("before", 1).await;
    proxy.lose_reply_to(b"signup.v1");
    let asking = sale.expect("POST", "alice", 202);
    let cutting = async {
        while !proxy.has_lost_reply() {
            tokio::task::yield_now().await;
        }
        proxy.cut();
    };
    tokio::join!(asking, cutting);
    proxy.heal();
    let report = world.pump().await.unwrap();
    assert_eq!((report.written, report.settled), (2, 2));
    sale.comes_home(2).await;
}

/// A function whose connection to the broker the proxy can hurt. Everybody else goes straight.
async fn signup_behind_a_proxy(world: &mut World) -> (Proxy, signup::App) {
    let (proxy, url) = Proxy::before(&world.settings["AMQP_URL"]).await;
    let direct = world.settings.insert("AMQP_URL".into(), url).unwrap();
    let signup = world.signup();
    world.settings.insert("AMQP_URL".into(), direct);
    (proxy, signup)
}

async fn unbind(world: &World) {
    let (connection, topology) = (world.amqp().await, world.topology());
    let channel = connection.create_channel().await.unwrap();
    let [queue, exchange, key] = [&topology.queue, &topology.exchange, &topology.routing_key].map(|name| name.as_str());
    channel.queue_unbind(queue.into(), exchange.into(), key.into(), FieldTable::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
}

async fn delete_queue(world: &World) {
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    let queue = world.topology().queue;
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
}

/// The queue as somebody may have it who limits its length.
async fn declare_queue_of(world: &World, messages: i64) {
    let (connection, topology) = (world.amqp().await, world.topology());
    let channel = connection.create_channel().await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(messages));
    let queue = topology.queue.as_str();
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let (exchange, key) = (topology.exchange.as_str(), topology.routing_key.as_str());
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
}
