//! Looks at what is on its way to MySQL, twice a second, whatever is down. Reads only.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;
use tokio::sync::watch;

use super::history::Clock;
use crate::https;
use crate::servers::Servers;

const LOOK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_millis(400);

/// The names on the outbox notes.
pub type Outbox = HashSet<(ActivityId, String)>;

/// What was seen at a moment.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// When we began to look.
    pub at_ms: u64,
    /// Sign-ups that MySQL is not known to hold; nothing while Redis does not answer.
    pub outbox: Option<Arc<Outbox>>,
    /// Messages in all queues, the consumer's batches included; nothing while RabbitMQ does not answer.
    pub backlog: Option<u64>,
}

/// A look in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at_ms: u64,
    /// Outbox notes.
    pub outbox: Option<u64>,
    /// Messages in all queues.
    pub backlog: Option<u64>,
}

/// Keeps looking.
#[derive(Debug)]
pub struct Watcher {
    clock: Clock,
    client: redis::Client,
    connection: Option<MultiplexedConnection>,
    http: reqwest::Client,
    queue_urls: Vec<String>,
    activities: Vec<ActivityId>,
    last: watch::Sender<Look>,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl Watcher {
    /// Watches these servers.
    pub fn new(clock: Clock, servers: &Servers, queues: &[String], activities: &[ActivityId]) -> anyhow::Result<Self> {
        let console = servers.rabbitmq.management_url();
        let http = https::client_builder().tls_certs_only([]).timeout(ANSWER_WITHIN).build()?;
        Ok(Self {
            clock,
            client: redis::Client::open(servers.redis.url()).context("the address of Redis")?,
            connection: None,
            http,
            queue_urls: queues.iter().map(|queue| format!("{console}/api/queues/%2f/{queue}")).collect(),
            activities: activities.to_vec(),
            last: watch::Sender::new(Look::default()),
            samples: Arc::default(),
        })
    }

    /// The last look, and news of it.
    pub fn last(&self) -> watch::Receiver<Look> {
        self.last.subscribe()
    }

    /// Where the samples are gathered.
    pub fn samples(&self) -> Arc<Mutex<Vec<Sample>>> {
        self.samples.clone()
    }

    /// Looks until it is dropped.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let at_ms = self.clock.ms();
            let backlog = backlog(&self.http, &self.queue_urls);
            let outbox =
                tokio::time::timeout(ANSWER_WITHIN, outbox(&self.client, &mut self.connection, &self.activities));
            let (backlog, outbox) = tokio::join!(backlog, outbox);
            if !matches!(outbox, Ok(Ok(_))) {
                self.connection = None;
            }
            let look = Look { at_ms, outbox: outbox.ok().and_then(Result::ok).map(Arc::new), backlog: backlog.ok() };
            let sample =
                Sample { at_ms, outbox: look.outbox.as_ref().map(|notes| notes.len() as u64), backlog: look.backlog };
            self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
            self.last.send_replace(look);
        }
    }
}

async fn outbox(
    client: &redis::Client,
    connection: &mut Option<MultiplexedConnection>,
    activities: &[ActivityId],
) -> redis::RedisResult<Outbox> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(client.get_multiplexed_async_connection().await?),
    };
    let mut pipeline = redis::pipe();
    for activity in activities {
        pipeline.zrange(ActivityKeys::of(*activity).outbox, 0, -1);
    }
    let notes: Vec<Vec<String>> = pipeline.query_async(connection).await?;
    let named = activities.iter().zip(notes).flat_map(|(id, users)| users.into_iter().map(|user| (*id, user)));
    Ok(named.collect())
}

async fn backlog(http: &reqwest::Client, urls: &[String]) -> reqwest::Result<u64> {
    #[derive(Deserialize)]
    struct Queue {
        messages: u64,
    }
    let looks = urls.iter().map(async |url| http.get(url).send().await?.error_for_status()?.json::<Queue>().await);
    Ok(try_join_all(looks).await?.iter().map(|queue| queue.messages).sum())
}

/// Waits until everything that was on its way at `from_ms` has arrived, and gives the time on the clock; nothing if it
/// is not there at `until_ms`.
///
/// Somebody counts as arrived once the note was seen away: a later note of the same person is a later wish.
pub async fn arrived(mut last: watch::Receiver<Look>, clock: Clock, from_ms: u64, until_ms: u64) -> Option<u64> {
    let mut waiting: Option<Outbox> = None;
    let watched = async {
        loop {
            let look = last.borrow_and_update().clone();
            if look.at_ms >= from_ms
                && let Some(now) = &look.outbox
            {
                let left: Outbox = match waiting.take() {
                    None => now.as_ref().clone(),
                    Some(waiting) => waiting.intersection(now).cloned().collect(),
                };
                if left.is_empty() {
                    return Some(look.at_ms);
                }
                waiting = Some(left);
            }
            last.changed().await.ok()?;
        }
    };
    let limit = Duration::from_millis(until_ms.saturating_sub(clock.ms()));
    tokio::time::timeout(limit, watched).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ms: u64, users: Option<&[&str]>) -> Look {
        let note = |user: &&str| (ActivityId::new(1), (*user).to_owned());
        Look { at_ms, outbox: users.map(|users| Arc::new(users.iter().map(note).collect())), backlog: None }
    }

    /// Shows these looks one after the other.
    async fn after(looks: Vec<Look>) -> Option<u64> {
        let (told, last) = watch::channel(Look::default());
        let waited = tokio::spawn(arrived(last, Clock::start(), 100, 1_000));
        for look in looks {
            told.send_replace(look);
            tokio::task::yield_now().await;
        }
        waited.await.unwrap()
    }

    #[tokio::test]
    async fn it_has_healed_when_everyone_who_waited_then_was_seen_away_once() {
        let looks = vec![
            look(50, Some(&["early"])),
            look(150, Some(&["alice", "bob"])),
            look(200, Some(&["bob", "carol"])),
            look(250, None),
            look(300, Some(&["alice", "carol"])),
        ];
        assert_eq!(after(looks).await, Some(300));
    }

    #[tokio::test]
    async fn it_has_not_healed_while_one_of_them_waits() {
        assert_eq!(after(vec![look(150, Some(&["alice"])), look(900, Some(&["alice", "bob"]))]).await, None);
        assert_eq!(after(vec![look(150, None)]).await, None);
    }
}
