//! The people: they sign up, look, give places back and sign up again, at a steady rate, whatever fails meanwhile.
//!
//! Invariants: a person waits for the answer about an activity before asking about it again; a request without a clear
//! answer is sent again by the same person, a few times; at most [`Settings::at_once`] requests are under way, so that
//! the emulator's queue stays short while a function is frozen.

mod beliefs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shared::domain::ActivityId;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior};

use super::history::{Clock, Entry, Operation, Outcome, Pair, Recorder};
use super::reply;
use beliefs::Beliefs;

/// How long a person waits for a reply.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How often a person asks before leaving it open.
const ATTEMPTS: u32 = 4;

/// Between two attempts.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 200..=600;

/// The header that the local functions trust.
const USER_HEADER: &str = "x-user-id";

/// Who comes and how fast.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The same seed brings the same people with the same wishes; what comes of them depends on the time.
    pub seed: u64,
    /// How many people there are.
    pub people: u32,
    /// The activities they want to go to.
    pub activities: Vec<ActivityId>,
    /// How many requests a second there are, unless replies take too long.
    pub rate: u32,
    /// How many requests are under way at most.
    pub at_once: u32,
}

/// Asks and writes down.
#[derive(Clone, Debug)]
pub struct Asker {
    client: reqwest::Client,
    base_url: String,
    clock: Clock,
    recorder: Arc<Recorder>,
}

impl Asker {
    /// Asks the API at this address.
    pub fn new(base_url: &str, clock: Clock, recorder: Arc<Recorder>) -> anyhow::Result<Self> {
        let client = crate::https::client_builder().timeout(PATIENCE).build().context("making the HTTP client")?;
        Ok(Self { client, base_url: base_url.to_owned(), clock, recorder })
    }

    /// Asks once and notes what came back.
    pub async fn ask(&self, operation: Operation, pair: &Pair) -> Outcome {
        let (began_ms, begun) = (self.clock.ms(), Instant::now());
        let (status, outcome) = match self.answer(operation, pair).await {
            Ok((status, body)) => (Some(status), reply::read(operation, status, &body, pair)),
            Err(error) => (None, Outcome::Unknown { why: broken(&error).to_owned() }),
        };
        let took_ms = (begun.elapsed().as_secs_f64() * 100_000.0).round() / 100.0;
        let entry = Entry { began_ms, took_ms, pair: pair.clone(), operation, status, outcome: outcome.clone() };
        self.recorder.note(entry);
        outcome
    }

    async fn answer(&self, operation: Operation, pair: &Pair) -> reqwest::Result<(u16, Vec<u8>)> {
        let signups = format!("{}/activities/{}/signups", self.base_url, pair.activity);
        let request = match operation {
            Operation::SignUp => self.client.post(signups),
            Operation::Cancel => self.client.delete(signups + "/me"),
            Operation::Look => self.client.get(signups + "/me"),
        };
        let response = request.header(USER_HEADER, pair.user.as_str()).send().await?;
        let status = response.status().as_u16();
        Ok((status, response.bytes().await?.to_vec()))
    }
}

fn broken(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "no reply in time"
    } else if error.is_connect() {
        "no connection"
    } else {
        "the connection broke"
    }
}

/// Lets the people come until `ends_ms`, and waits until the last of them has an answer or has given up.
pub async fn come(settings: &Settings, asker: &Asker, ends_ms: u64) -> anyhow::Result<()> {
    let every = Duration::from_secs(1) / settings.rate.max(1);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ticks = Arc::new(Mutex::new(ticks));
    let beliefs = Arc::new(Beliefs::new(settings));
    let mut visitors = JoinSet::new();
    for number in 0..u64::from(settings.at_once) {
        let rng = StdRng::seed_from_u64(settings.seed.wrapping_mul(1_000).wrapping_add(number));
        let visitor = Visitor { asker: asker.clone(), beliefs: beliefs.clone(), ticks: ticks.clone(), rng, ends_ms };
        visitors.spawn(visitor.run());
    }
    while let Some(left) = visitors.join_next().await {
        left.context("a visitor broke off")?;
    }
    Ok(())
}

/// Plays one person after the other.
struct Visitor {
    asker: Asker,
    beliefs: Arc<Beliefs>,
    ticks: Arc<Mutex<Interval>>,
    rng: StdRng,
    ends_ms: u64,
}

impl Visitor {
    async fn run(mut self) {
        loop {
            self.ticks.lock().await.tick().await;
            if self.asker.clock.ms() >= self.ends_ms {
                return;
            }
            if let Some((operation, pair)) = self.beliefs.choose(&mut self.rng) {
                let outcome = self.insist(operation, &pair).await;
                self.beliefs.learn(&pair, &outcome);
            }
        }
    }

    /// Asks until the answer is clear, a few times at most.
    async fn insist(&mut self, operation: Operation, pair: &Pair) -> Outcome {
        let mut outcome = self.asker.ask(operation, pair).await;
        for _ in 1..ATTEMPTS {
            if !outcome.is_open() || self.asker.clock.ms() >= self.ends_ms {
                break;
            }
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(PAUSE_MS))).await;
            outcome = self.asker.ask(operation, pair).await;
        }
        outcome
    }
}
