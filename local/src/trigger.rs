//! A local event source mapping: it does what Amazon MQ's does for the deployed consumer.
//!
//! Each queue has one of its own. Invariants: one batch at a time; a batch is acknowledged only after the function took it, and put back whole when
//! the function failed; after a failure the next attempt waits, longer each time; a lost broker is looked for again
//! until it is back.

mod event;

use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use event::{event, message};

/// Lambda takes 6 MB per invocation; this leaves room for what surrounds the messages.
const MAX_PAYLOAD_BYTES: usize = 6 * 1024 * 1024 - 4 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE_OF_BROKER: Duration = Duration::from_secs(2);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What an event source mapping is configured with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The broker, `amqp://user:password@host:port/vhost`.
    pub amqp_url: String,
    /// The queue; `SIGNUP_QUEUE` or `activity.signup.queue`.
    pub queue: String,
    /// The most messages of a batch, 1 to 10,000.
    pub batch_size: u16,
    /// How long a batch waits to be filled after its first message.
    pub window: Duration,
    /// The most bytes of an event.
    pub max_payload_bytes: usize,
}

impl Settings {
    /// The deployed settings, for this broker.
    #[must_use]
    pub fn new(amqp_url: &str) -> Self {
        Self {
            amqp_url: amqp_url.to_owned(),
            queue: std::env::var("SIGNUP_QUEUE").unwrap_or_else(|_| "activity.signup.queue".to_owned()),
            batch_size: 10_000,
            window: Duration::from_millis(500),
            max_payload_bytes: MAX_PAYLOAD_BYTES,
        }
    }
}

/// What a trigger has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Batches that the function took.
    pub batches: u64,
    /// Messages in them.
    pub messages: u64,
    /// Batches put back, and attempts in which the broker was away.
    pub failures: u64,
    /// The last of these failures, until a batch succeeds.
    pub problem: Option<String>,
}

/// A running trigger; dropping it stops it at once, and what it held goes back to the queue.
#[derive(Debug)]
pub struct Trigger {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    progress: watch::Receiver<Progress>,
}

impl Trigger {
    /// Starts to hand batches of the queue to `invoke`, which answers whether the function took the event.
    pub fn start<F, Fut>(settings: Settings, invoke: F) -> Self
    where
        F: Fn(Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let (report, progress) = watch::channel(Progress::default());
        let poller = Poller { settings, invoke, report, stopped, pause: FIRST_PAUSE };
        Self { task: tokio::spawn(poller.run()), stop, progress }
    }

    /// What it has done so far, and news of it.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Finishes the batch at hand, then stops.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Poller<F> {
    settings: Settings,
    invoke: F,
    report: watch::Sender<Progress>,
    stopped: watch::Receiver<bool>,
    pause: Duration,
}

/// Messages that make one event.
#[derive(Default)]
struct Batch {
    messages: Vec<Value>,
    bytes: usize,
    last_tag: u64,
}

/// A message on its way into a batch.
struct Pending {
    message: Value,
    bytes: usize,
    tag: u64,
}

impl<F, Fut> Poller<F>
where
    F: Fn(Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    async fn run(mut self) {
        while !*self.stopped.borrow() {
            if let Err(error) = self.poll().await {
                self.failed(&error.context("the broker is away"), LONGEST_PAUSE_OF_BROKER).await;
            }
        }
    }

    /// Takes batches until somebody stops us or the connection breaks.
    async fn poll(&mut self) -> anyhow::Result<()> {
        let uri: AMQPUri = self.settings.amqp_url.parse().map_err(anyhow::Error::msg)?;
        let connect = tokio::time::timeout(CONNECT_LIMIT, subscribe(&self.settings));
        let (connection, channel, mut deliveries) = connect.await.context("no answer in time")??;
        let mut left_over = None;
        loop {
            let mut stopped = self.stopped.clone();
            let batch = tokio::select! {
                batch = self.collect(&channel, &mut deliveries, &mut left_over) => batch?,
                _ = stopped.wait_for(|stop| *stop) => break,
            };
            let (count, last_tag) = (batch.messages.len() as u64, batch.last_tag);
            match (self.invoke)(event(&self.settings.queue, &uri.vhost, batch.messages)).await {
                Ok(()) => {
                    channel.basic_ack(last_tag, BasicAckOptions { multiple: true }).await?;
                    self.succeeded(count);
                }
                Err(error) => {
                    channel.basic_nack(last_tag, BasicNackOptions { multiple: true, requeue: true }).await?;
                    let error = error.context(format!("a batch of {count} was put back"));
                    self.failed(&error, LONGEST_PAUSE).await;
                }
            }
        }
        connection.close(200, "stopped".into()).await?;
        Ok(())
    }

    /// Waits for a first message, then for more until the batch is full or its window has passed.
    async fn collect(
        &self,
        channel: &Channel,
        deliveries: &mut Consumer,
        left_over: &mut Option<Pending>,
    ) -> anyhow::Result<Batch> {
        let mut batch = Batch::default();
        let mut window_ends = None;
        while batch.messages.len() < usize::from(self.settings.batch_size) {
            let pending = match (left_over.take(), window_ends) {
                (Some(pending), _) => pending,
                (None, None) => Pending::of(&next(deliveries).await?)?,
                (None, Some(end)) => match tokio::time::timeout_at(end, next(deliveries)).await {
                    Ok(delivery) => Pending::of(&delivery?)?,
                    Err(_) => break,
                },
            };
            if pending.bytes > self.settings.max_payload_bytes {
                // As in AWS, a message too large for any event is not delivered.
                channel.basic_reject(pending.tag, BasicRejectOptions { requeue: false }).await?;
                continue;
            }
            if batch.bytes + pending.bytes > self.settings.max_payload_bytes {
                *left_over = Some(pending);
                break;
            }
            window_ends.get_or_insert_with(|| Instant::now() + self.settings.window);
            batch.push(pending);
        }
        Ok(batch)
    }

    fn succeeded(&mut self, messages: u64) {
        self.pause = FIRST_PAUSE;
        self.report.send_modify(|progress| {
            progress.batches += 1;
            progress.messages += messages;
            progress.problem = None;
        });
    }

    /// Notes the failure and waits before the next attempt, longer each time.
    async fn failed(&mut self, error: &anyhow::Error, longest: Duration) {
        let pause = self.pause.min(longest);
        self.pause = (pause * 2).min(longest);
        self.report.send_modify(|progress| {
            progress.failures += 1;
            progress.problem = Some(format!("{error:#}; next attempt in {:.1} s", pause.as_secs_f32()));
        });
        let _ = tokio::time::timeout(pause, self.stopped.wait_for(|stop| *stop)).await;
    }
}

impl Batch {
    fn push(&mut self, pending: Pending) {
        self.bytes += pending.bytes;
        self.last_tag = pending.tag;
        self.messages.push(pending.message);
    }
}

impl Pending {
    fn of(delivery: &Delivery) -> anyhow::Result<Self> {
        let message = message(&delivery.properties, delivery.redelivered, &delivery.data);
        let bytes = serde_json::to_string(&message)?.len() + 1;
        Ok(Self { message, bytes, tag: delivery.delivery_tag })
    }
}

async fn next(deliveries: &mut Consumer) -> anyhow::Result<Delivery> {
    match deliveries.next().await {
        Some(delivery) => Ok(delivery?),
        None => bail!("the broker ended the subscription"),
    }
}

/// A connection of its own, with a batch's worth of messages in advance.
async fn subscribe(settings: &Settings) -> anyhow::Result<(Connection, Channel, Consumer)> {
    let connection = Connection::connect(&settings.amqp_url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(settings.batch_size, BasicQosOptions::default()).await?;
    let (queue, options) = (settings.queue.as_str(), BasicConsumeOptions::default());
    let deliveries = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
    Ok((connection, channel, deliveries))
}
