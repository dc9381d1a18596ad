//! The trigger against a real broker, with a closure in the place of the function.
#![allow(clippy::unwrap_used)] // the lint's own exception for tests stops at functions without `#[test]`

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use local::servers::{RabbitMq, RunDir};
use local::trigger::{Progress, Settings, Trigger};
use serde_json::Value;

/// The batches that a trigger handed over, as lists of bodies.
type Batches = Arc<Mutex<Vec<Vec<String>>>>;

#[tokio::test]
async fn a_trigger_hands_over_every_message_whatever_fails_on_the_way() {
    let dir = RunDir::create("test").unwrap();
    let mut rabbitmq = RabbitMq::start(dir.path()).await.unwrap();

    full_and_late_batches(&rabbitmq).await;
    a_failed_batch_comes_again_with_growing_pauses(&rabbitmq).await;
    a_batch_stays_below_the_payload_limit(&rabbitmq).await;
    a_stopped_trigger_takes_nothing_more(&rabbitmq).await;
    a_restarted_broker_is_found_again(&mut rabbitmq).await;

    rabbitmq.kill().await.unwrap();
    drop(rabbitmq);
    dir.finish(true).unwrap();
}

async fn full_and_late_batches(rabbitmq: &RabbitMq) {
    let queue = Queue::new(rabbitmq, "full").await;
    queue.publish(["1", "2", "3", "4", "5"]).await;
    let (batches, trigger) = take(Settings { batch_size: 2, ..queue.settings() });
    done(&trigger, |progress| progress.messages == 5).await;
    assert_eq!(*batches.lock().unwrap(), [vec!["1", "2"], vec!["3", "4"], vec!["5"]]);
    assert_eq!(trigger.progress().borrow().batches, 3);
    trigger.stop().await;
    assert_eq!(queue.left().await, 0);
}

async fn a_failed_batch_comes_again_with_growing_pauses(rabbitmq: &RabbitMq) {
    let queue = Queue::new(rabbitmq, "failing").await;
    queue.publish(["1", "2"]).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (counter, events) = (attempts.clone(), seen.clone());
    let begun = Instant::now();
    let trigger = Trigger::start(queue.settings(), move |event| {
        let attempt = counter.fetch_add(1, Ordering::SeqCst);
        events.lock().unwrap().push(event);
        async move {
            if attempt < 3 {
                bail!("mysql is away");
            }
            Ok(())
        }
    });
    done(&trigger, |progress| progress.failures == 1).await;
    let problem = trigger.progress().borrow().problem.clone().unwrap();
    assert!(problem.contains("a batch of 2 was put back: mysql is away"), "{problem}");
    done(&trigger, |progress| progress.messages == 2).await;
    assert!(begun.elapsed() >= Duration::from_millis(100 + 200 + 400), "{:?}", begun.elapsed());
    let events = seen.lock().unwrap().clone();
    let redelivered: Vec<_> = events.iter().map(|event| messages(event)[0]["redelivered"].clone()).collect();
    assert_eq!(redelivered, [false, true, true, true]);
    assert_eq!(trigger.progress().borrow().problem, None);
    trigger.stop().await;
}

async fn a_batch_stays_below_the_payload_limit(rabbitmq: &RabbitMq) {
    let queue = Queue::new(rabbitmq, "large").await;
    let large = "x".repeat(30_000);
    queue.publish(["1", &large, "2", "3"]).await;
    let (batches, trigger) = take(Settings { max_payload_bytes: 800, ..queue.settings() });
    done(&trigger, |progress| progress.messages == 3).await;
    assert_eq!(*batches.lock().unwrap(), [vec!["1", "2"], vec!["3"]]);
    trigger.stop().await;
    assert_eq!(queue.left().await, 0, "what fits no event is not kept");
}

async fn a_stopped_trigger_takes_nothing_more(rabbitmq: &RabbitMq) {
    let queue = Queue::new(rabbitmq, "stopped").await;
    let (batches, trigger) = take(queue.settings());
    trigger.stop().await;
    queue.publish(["1"]).await;
    assert_eq!(queue.left().await, 1);
    assert!(batches.lock().unwrap().is_empty());
}

async fn a_restarted_broker_is_found_again(rabbitmq: &mut RabbitMq) {
    let queue = Queue::new(rabbitmq, "restarted").await;
    queue.publish(["1"]).await;
    let (batches, trigger) = take(queue.settings());
    done(&trigger, |progress| progress.messages == 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await; // see `RabbitMq::kill`
    rabbitmq.kill().await.unwrap();
    done(&trigger, |progress| progress.failures > 0).await;
    rabbitmq.restart().await.unwrap();
    Queue::connect(rabbitmq, "restarted").await.publish(["2"]).await;
    done(&trigger, |progress| progress.messages == 2).await;
    assert_eq!(*batches.lock().unwrap(), [vec!["1"], vec!["2"]]);
    trigger.stop().await;
}

/// A trigger whose function takes everything.
fn take(settings: Settings) -> (Batches, Trigger) {
    let batches = Batches::default();
    let taken = batches.clone();
    let trigger = Trigger::start(settings, move |event| {
        let bodies = messages(&event).iter().map(body).collect();
        taken.lock().unwrap().push(bodies);
        async { Ok(()) }
    });
    (batches, trigger)
}

fn messages(event: &Value) -> &Vec<Value> {
    let queues = event["rmqMessagesByQueue"].as_object().unwrap();
    queues.values().next().unwrap().as_array().unwrap()
}

fn body(message: &Value) -> String {
    use base64::Engine;
    let data = message["data"].as_str().unwrap();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(data).unwrap()).unwrap()
}

async fn done(trigger: &Trigger, condition: impl FnMut(&Progress) -> bool) {
    let mut progress = trigger.progress();
    tokio::time::timeout(Duration::from_secs(30), progress.wait_for(condition)).await.unwrap().unwrap();
}

/// A quorum queue of this test's own.
struct Queue {
    channel: Channel,
    _connection: Connection,
    name: &'static str,
    url: String,
}

impl Queue {
    async fn new(rabbitmq: &RabbitMq, name: &'static str) -> Self {
        let queue = Self::connect(rabbitmq, name).await;
        queue.declare(false).await;
        queue
    }

    async fn connect(rabbitmq: &RabbitMq, name: &'static str) -> Self {
        let url = rabbitmq.url().to_owned();
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { channel, _connection: connection, name, url }
    }

    /// Gives the number of messages that wait.
    async fn declare(&self, passive: bool) -> u32 {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let options = QueueDeclareOptions { durable: true, passive, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(self.name.into(), options, arguments).await.unwrap().message_count()
    }

    /// The number of messages that wait, as soon as it is steady: a quorum queue counts with delay.
    async fn left(&self) -> u32 {
        let mut last = self.declare(true).await;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = self.declare(true).await;
            if now == last {
                return now;
            }
            last = now;
        }
    }

    async fn publish<'a>(&self, bodies: impl IntoIterator<Item = &'a str>) {
        for body in bodies {
            let properties = BasicProperties::default().with_delivery_mode(2);
            let options = BasicPublishOptions::default();
            let confirm = self.channel.basic_publish("".into(), self.name.into(), options, body.as_bytes(), properties);
            assert!(confirm.await.unwrap().await.unwrap().is_ack());
        }
    }

    fn settings(&self) -> Settings {
        Settings { queue: self.name.to_owned(), window: Duration::from_millis(300), ..Settings::new(&self.url) }
    }
}
