//! Bringing a disturbed corner to rest, and what must hold there.

use std::time::Duration;

use local::verify::{Findings, HandedOut, Settings, verify};
use redis::AsyncCommands;
use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;

use crate::World;

impl World {
    /// Makes every outbox note of the activity due now, as if its grace were over.
    pub async fn make_due(&self, id: ActivityId) {
        let users = self.outbox(id).await;
        let due: Vec<_> = users.iter().map(|user| (1, user.as_str())).collect();
        if !due.is_empty() {
            let _: u64 = self.redis.clone().zadd_multiple(ActivityKeys::of(id).outbox, &due).await.unwrap();
        }
    }

    /// Runs `reconcile` over one activity.
    pub async fn reconciled_only(&self, id: ActivityId) -> Value {
        self.reconciled(json!({"activityId": id.to_string()})).await
    }

    /// The same over everything, in a corner of its own, while the event source hands the queue to the consumer.
    pub async fn reconciled_while_pumping(&self) -> Value {
        let pump = async {
            loop {
                self.pump().await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            report = self.reconciled(json!({})) => report,
            () = pump => unreachable!("the pump never ends"),
        }
    }

    /// Runs `reconcile`, hands the queue over, and checks every promise person by person; so too for these receipts, as
    /// people got them.
    pub async fn assert_sound(&self, id: ActivityId, receipts: impl IntoIterator<Item = Value>) {
        let findings = self.findings(id, receipts).await;
        assert!(findings.is_clean(), "{findings:#?}");
    }

    /// The same, with what was found.
    pub async fn findings(&self, id: ActivityId, receipts: impl IntoIterator<Item = Value>) -> Findings {
        let report = self.reconciled_only(id).await;
        assert!(!report.to_string().contains("\"error\""), "a step of reconcile stopped: {report}");
        self.pump().await;
        let handed_out: HandedOut =
            receipts.into_iter().map(|receipt| serde_json::from_value(receipt).expect("a receipt")).collect();
        let variables: Vec<_> = self.settings.clone().into_iter().collect();
        let settings = Settings::from_variables(&variables).unwrap();
        verify(&settings, Some(id), &handed_out).await.unwrap()
    }

    /// Everybody with a row, in the order of their ids, and the status of the row: 1 signed up, 2 cancelled.
    pub async fn statuses(&self, id: ActivityId) -> Vec<(String, u8)> {
        self.rows(id).await.into_iter().map(|(user, status, ..)| (user, status)).collect()
    }
}
