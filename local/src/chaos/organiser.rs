//! The organiser: creates the activities, and adds places to them while people come.
//!
//! Invariant: the organiser asks for one change after the other, each until it is confirmed, so that in the end Redis
//! and MySQL have to agree on the places.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::StatusCode;
use serde_json::json;
use shared::domain::ActivityId;

use super::history::{Clock, Places, Recorder};

/// How many places an activity begins with: few enough to be sold out most of the time.
const PLACES: std::ops::RangeInclusive<u64> = 15..=45;

/// How many are added at a time.
const MORE: std::ops::RangeInclusive<u64> = 1..=2;

/// Between two changes.
const CHANGE_EVERY: Duration = Duration::from_secs(3);

const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How long after the end a change may still wait to be confirmed.
const PATIENCE_MS: u64 = 60_000;

/// Changes places over the API.
pub struct Organiser {
    client: reqwest::Client,
    base_url: String,
    recorder: Arc<Recorder>,
    rng: StdRng,
    places: BTreeMap<ActivityId, u64>,
}

impl Organiser {
    /// Creates these activities, and asks once for a receipt in each, so that the people find functions that have
    /// started.
    pub async fn create(
        base_url: &str,
        seed: u64,
        activities: &[ActivityId],
        recorder: Arc<Recorder>,
    ) -> anyhow::Result<Self> {
        let client = crate::https::client_builder().timeout(ANSWER_WITHIN).build().context("making the HTTP client")?;
        let (rng, places, base_url) = (StdRng::seed_from_u64(seed), BTreeMap::new(), base_url.to_owned());
        let mut organiser = Self { client, base_url, recorder, rng, places };
        for &activity in activities {
            let capacity = organiser.rng.random_range(PLACES);
            organiser.ask_for(activity, capacity, 0);
            let status = organiser.put(activity, capacity).await.context("creating the activities")?;
            if status != StatusCode::CREATED {
                bail!("creating activity {activity}: {status}");
            }
            let receipt = format!("{}/activities/{activity}/signups/me", organiser.base_url);
            let look = organiser.client.get(receipt).header("x-user-id", "passer-by");
            let status = look.send().await.context("waiting for the signup function")?.status();
            if status != StatusCode::NOT_FOUND {
                bail!("the signup function answered {status} to a passer-by, not 404");
            }
        }
        Ok(organiser)
    }

    /// Adds places until `ends_ms`, and gives how often.
    pub async fn add_places(mut self, clock: Clock, ends_ms: u64) -> anyhow::Result<u64> {
        let mut changes = 0;
        loop {
            tokio::time::sleep(CHANGE_EVERY).await;
            if clock.ms() >= ends_ms {
                return Ok(changes);
            }
            let ids: Vec<_> = self.places.keys().copied().collect();
            let Some(&activity) = ids.get(self.rng.random_range(0..ids.len().max(1))) else { return Ok(changes) };
            let capacity = self.places.get(&activity).copied().unwrap_or(0) + self.rng.random_range(MORE);
            self.ask_for(activity, capacity, clock.ms());
            self.insist(activity, capacity, clock, ends_ms + PATIENCE_MS).await?;
            changes += 1;
        }
    }

    /// From now on there may be so many places.
    fn ask_for(&mut self, activity: ActivityId, capacity: u64, began_ms: u64) {
        self.places.insert(activity, capacity);
        self.recorder.note_places(Places { began_ms, activity, capacity });
    }

    async fn insist(&self, activity: ActivityId, capacity: u64, clock: Clock, until_ms: u64) -> anyhow::Result<()> {
        loop {
            let told = match self.put(activity, capacity).await {
                Ok(StatusCode::OK) => return Ok(()),
                Ok(status) if !status.is_server_error() => {
                    bail!("giving activity {activity} {capacity} places was answered with {status}")
                }
                Ok(status) => status.to_string(),
                Err(error) => format!("{error:#}"),
            };
            if clock.ms() >= until_ms {
                bail!("activity {activity} did not get {capacity} places: {told}");
            }
            tokio::time::sleep(TRY_AGAIN_AFTER).await;
        }
    }

    async fn put(&self, activity: ActivityId, capacity: u64) -> reqwest::Result<StatusCode> {
        let body = json!({"title": "Chaos", "capacity": capacity, "opensAt": null, "closesAt": null, "state": "open"});
        let put = self.client.put(format!("{}/activities/{activity}", self.base_url));
        Ok(put.header("x-user-id", "organiser").json(&body).send().await?.status())
    }
}
