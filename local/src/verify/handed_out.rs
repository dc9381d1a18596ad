//! The receipts that people were handed, held against what Redis and MySQL say now.
//!
//! This catches what the two cannot tell by themselves: a place that both of them forgot. The receipts are kept in
//! memory, about 200 bytes each.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use anyhow::Context;
use shared::domain::{ActivityId, Receipt, UserId};
use shared::reservations::StoredReceipt;

use super::compare::{Flaw, compare, compare_handed_out, live_sequences};
use super::findings::{Findings, Place, Twice};
use super::stores::{PAGE, Stores};

/// Receipts by activity and person.
#[derive(Clone, Debug, Default)]
pub struct HandedOut(BTreeMap<ActivityId, BTreeMap<UserId, Vec<Receipt>>>);

impl FromIterator<Receipt> for HandedOut {
    fn from_iter<I: IntoIterator<Item = Receipt>>(receipts: I) -> Self {
        let mut handed_out = Self::default();
        for receipt in receipts {
            let people = handed_out.0.entry(receipt.activity_id).or_default();
            people.entry(receipt.user_id.clone()).or_default().push(receipt);
        }
        handed_out
    }
}

impl HandedOut {
    /// Reads the file that a sale wrote: one receipt a line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let parse = |(number, line): (usize, std::io::Result<String>)| {
            serde_json::from_str::<Receipt>(&line?)
                .with_context(|| format!("{}, line {}: no receipt", path.display(), number + 1))
        };
        std::io::BufReader::new(file).lines().enumerate().map(parse).collect()
    }

    /// Holds each receipt of the activities against the stores, and adds what does not fit and is not yet known.
    pub(super) async fn check(
        &self,
        stores: &mut Stores,
        activity: Option<ActivityId>,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        for (id, people) in self.0.iter().filter(|(id, _)| activity.is_none_or(|only| only == **id)) {
            let everyone: Vec<&UserId> = people.keys().collect();
            for users in everyone.chunks(PAGE) {
                let rows = stores.rows_of(*id, users).await?;
                let receipts = stores.receipts_of(*id, users).await?;
                for (user, receipt) in users.iter().zip(receipts) {
                    // What cannot be read was found on the walk.
                    let row = rows.get(*user).and_then(|row| row.as_ref().ok());
                    let receipt = receipt.and_then(|text| text.parse::<StoredReceipt>().ok());
                    if let Some(receipts) = people.get(*user) {
                        judge(*id, user, receipts, receipt.as_ref(), row, findings);
                    }
                }
            }
        }
        Ok(())
    }
}

/// One person: what they were handed, the receipt in Redis, the row in MySQL.
fn judge(
    id: ActivityId,
    user: &UserId,
    handed_out: &[Receipt],
    receipt: Option<&StoredReceipt>,
    row: Option<&StoredReceipt>,
    findings: &mut Findings,
) {
    let sequences = live_sequences(handed_out);
    let Some(&latest) = sequences.last() else { return };
    if sequences.len() > 1 {
        findings.twice.note(Twice { activity_id: id, user_id: user.clone(), sequences });
    }
    let known = compare(receipt, row);
    let list = match compare_handed_out(latest, row) {
        Some(Flaw::Lost) if known != Some(Flaw::Lost) => &mut findings.lost,
        Some(Flaw::Differing) if known != Some(Flaw::Differing) => &mut findings.differing,
        _ => return,
    };
    let text = |side: Option<&StoredReceipt>| side.map(StoredReceipt::to_string);
    list.note(Place {
        activity_id: id,
        user_id: user.clone(),
        redis: text(receipt),
        mysql: text(row),
        handed_out: Some(latest),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed(sequences: &[u64]) -> Vec<Receipt> {
        let receipt = |sequence: &u64| {
            serde_json::from_value(serde_json::json!({
                "activityId": "42", "userId": "alice", "sequence": sequence, "status": "queued",
                "signedUpAt": "2026-11-30T12:00:00.123Z",
            }))
            .unwrap()
        };
        sequences.iter().map(receipt).collect()
    }

    /// (lost, differing, twice)
    fn found(sequences: &[u64], receipt: Option<&str>, row: Option<&str>) -> (u64, u64, u64) {
        let mut findings = Findings::default();
        let stored = |text: Option<&str>| text.map(|text| text.parse::<StoredReceipt>().unwrap());
        let user = "alice".parse().unwrap();
        let (receipt, row) = (stored(receipt), stored(row));
        judge(ActivityId::new(42), &user, &handed(sequences), receipt.as_ref(), row.as_ref(), &mut findings);
        (findings.lost.count, findings.differing.count, findings.twice.count)
    }

    #[test]
    fn a_place_that_redis_and_mysql_both_forgot_is_lost() {
        assert_eq!(found(&[57], None, None), (1, 0, 0));
        assert_eq!(found(&[57], Some("1 1000 57"), Some("1 1000 57")), (0, 0, 0));
    }

    #[test]
    fn a_person_who_is_lost_already_is_not_lost_again() {
        assert_eq!(found(&[57], Some("1 1000 57"), None), (0, 0, 0));
        assert_eq!(found(&[57], Some("1 1000 57"), Some("1 1000 58")), (0, 0, 0));
    }

    #[test]
    fn another_place_than_the_one_handed_out_differs() {
        assert_eq!(found(&[57], Some("1 1000 58"), Some("1 1000 58")), (0, 1, 0));
    }

    #[test]
    fn two_places_handed_to_one_person_show_as_twice() {
        assert_eq!(found(&[57, 58], Some("1 1000 58"), Some("1 1000 58")), (0, 0, 1));
    }

    #[test]
    fn a_file_of_receipts_reads_back_and_a_broken_line_is_named() {
        let path = std::env::temp_dir().join(format!("onrush-receipts-{}", std::process::id()));
        let lines: Vec<String> =
            handed(&[57, 58]).iter().map(|receipt| serde_json::to_string(receipt).unwrap()).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let read = HandedOut::read(&path).unwrap();
        std::fs::write(&path, format!("{}\nhello\n", lines[0])).unwrap();
        let error = HandedOut::read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.0[&ActivityId::new(42)].values().next().unwrap().len(), 2);
        assert!(error.to_string().ends_with("line 2: no receipt"), "{error}");
    }
}
