//! One person at the door: clicks, double clicks, lost connections, and trying again.

use std::time::{Duration, Instant};

use anyhow::Context;
use reqwest::header::{HeaderName, RETRY_AFTER};
use reqwest::{Client, Url};
use shared::domain::ActivityId;
use tokio::sync::mpsc;

use super::people::Person;
use super::reply::{Reply, classify};
use super::tally::Event;
use super::{Plan, pause_before};

/// Where people ask. Reports what happens there as events, and closes the channel when it is dropped.
pub struct Door {
    client: Client,
    url: Url,
    activity: ActivityId,
    user_header: HeaderName,
    attempts: u32,
    events: mpsc::Sender<Event>,
}

/// What came of one attempt.
enum Attempt {
    Answered(Reply, Duration),
    Broken(&'static str),
}

impl Door {
    /// The door of the plan's activity.
    pub fn new(plan: &Plan, events: mpsc::Sender<Event>) -> anyhow::Result<Self> {
        let base = plan.base_url.trim_end_matches('/');
        let url = format!("{base}/activities/{}/signups", plan.activity);
        let client = crate::https::client_builder()
            .timeout(Duration::from_secs(plan.timeout_secs))
            .pool_max_idle_per_host(plan.concurrency.max(2) as usize)
            .build()
            .context("making the HTTP client")?;
        Ok(Self {
            client,
            url: url.parse().with_context(|| format!("--base-url: {base} is no URL"))?,
            activity: plan.activity,
            user_header: plan.user_header.parse().context("--user-header is no header name")?,
            attempts: plan.attempts,
            events,
        })
    }

    /// Everything one person does.
    pub async fn visit(&self, person: &Person) {
        if let Some(cut_after) = person.cut_after {
            self.cut(&person.user, cut_after).await;
        }
        if person.double_click {
            tokio::join!(self.click(&person.user), self.click(&person.user));
        } else {
            self.click(&person.user).await;
        }
        self.report(Event::Left).await;
    }

    /// Asks and loses the connection: dropping a request in flight closes its socket. An answer that was faster is lost
    /// all the same.
    async fn cut(&self, user: &str, cut_after: Duration) {
        let lost = tokio::time::timeout(cut_after, self.request(user).send()).await;
        drop(lost);
        self.report(Event::Cut).await;
    }

    /// Asks until there is an answer, at most `attempts` times.
    async fn click(&self, user: &str) {
        let mut reason = String::new();
        for attempt in 0..self.attempts {
            let mut asked_for = None;
            match self.ask(user).await {
                Attempt::Answered(reply, took) => {
                    let later = match &reply {
                        Reply::TryLater { reason, after } => Some((reason.clone(), *after)),
                        _ => None,
                    };
                    self.report(Event::Answered { reply, took }).await;
                    match later {
                        Some(later) => (reason, asked_for) = later,
                        None => return,
                    }
                }
                Attempt::Broken(flaw) => {
                    reason = flaw.to_owned();
                    self.report(Event::Broken(flaw)).await;
                }
            }
            if attempt + 1 < self.attempts {
                tokio::time::sleep(pause_before(attempt, asked_for)).await;
            }
        }
        self.report(Event::GaveUp(reason)).await;
    }

    async fn ask(&self, user: &str) -> Attempt {
        let begun = Instant::now();
        match self.answer(user).await {
            Ok(reply) => Attempt::Answered(reply, begun.elapsed()),
            Err(error) if error.is_timeout() => Attempt::Broken("timed out"),
            Err(error) if error.is_connect() => Attempt::Broken("no connection"),
            Err(_) => Attempt::Broken("connection broke"),
        }
    }

    async fn answer(&self, user: &str) -> reqwest::Result<Reply> {
        let response = self.request(user).send().await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = response.bytes().await?;
        Ok(classify(status, retry_after.as_deref(), &body, self.activity, user))
    }

    fn request(&self, user: &str) -> reqwest::RequestBuilder {
        self.client.post(self.url.clone()).header(&self.user_header, user)
    }

    async fn report(&self, event: Event) {
        // The channel outlives the door unless the sale itself was dropped; then nobody counts any more.
        let _ = self.events.send(event).await;
    }
}
