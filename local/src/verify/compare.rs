//! What the two sides must agree on. Pure: no part of this can fail on a network.

use shared::domain::{Receipt, ReceiptStatus, SignupStatus};
use shared::reservations::StoredReceipt;

/// How one person's receipt in Redis and row in MySQL fall apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Granted, and no active row.
    Lost,
    /// An active row, and not granted.
    Unexpected,
    /// The same status, or cancelled on one side only; something else differs.
    Differing,
}

/// Compares a receipt with the row of the same person.
pub fn compare(receipt: Option<&StoredReceipt>, row: Option<&StoredReceipt>) -> Option<Flaw> {
    match (is_active(receipt), is_active(row)) {
        (true, false) => Some(Flaw::Lost),
        (false, true) => Some(Flaw::Unexpected),
        _ if receipt != row => Some(Flaw::Differing),
        _ => None,
    }
}

fn is_active(side: Option<&StoredReceipt>) -> bool {
    side.is_some_and(|side| side.status == SignupStatus::SignedUp)
}

/// The places that a person was handed and did not give back, as far as these receipts tell; lowest first.
pub fn live_sequences(receipts: &[Receipt]) -> Vec<u64> {
    let cancelled = |sequence: u64| {
        receipts.iter().any(|receipt| receipt.sequence == sequence && receipt.status == ReceiptStatus::Cancelled)
    };
    let mut live: Vec<u64> =
        receipts.iter().map(|receipt| receipt.sequence).filter(|sequence| !cancelled(*sequence)).collect();
    live.sort_unstable();
    live.dedup();
    live
}

/// Compares the place that a person was handed with the row. A row that is cancelled at this place or a later one says
/// that it was given back.
pub fn compare_handed_out(sequence: u64, row: Option<&StoredReceipt>) -> Option<Flaw> {
    match row {
        Some(row) if row.status == SignupStatus::SignedUp => (row.sequence != sequence).then_some(Flaw::Differing),
        Some(row) => (row.sequence < sequence).then_some(Flaw::Lost),
        None => Some(Flaw::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str) -> StoredReceipt {
        text.parse().unwrap()
    }

    fn flaw(receipt: Option<&str>, row: Option<&str>) -> Option<Flaw> {
        compare(receipt.map(stored).as_ref(), row.map(stored).as_ref())
    }

    #[test]
    fn a_receipt_and_a_row_that_say_the_same_are_fine() {
        assert_eq!(flaw(Some("1 1000 57"), Some("1 1000 57")), None);
        assert_eq!(flaw(Some("2 2000 57 1000"), Some("2 2000 57 1000")), None);
        assert_eq!(flaw(None, None), None);
    }

    #[test]
    fn a_granted_receipt_without_an_active_row_is_lost() {
        assert_eq!(flaw(Some("1 1000 57"), None), Some(Flaw::Lost));
        assert_eq!(flaw(Some("1 3000 58 3000"), Some("2 2000 57 1000")), Some(Flaw::Lost));
    }

    #[test]
    fn an_active_row_without_a_granted_receipt_is_unexpected() {
        assert_eq!(flaw(None, Some("1 1000 57")), Some(Flaw::Unexpected));
        assert_eq!(flaw(Some("2 2000 57 1000"), Some("1 1000 57")), Some(Flaw::Unexpected));
    }

    #[test]
    fn another_version_sequence_or_time_differs() {
        for row in ["1 1001 57 1000", "1 1000 58", "1 1000 57 999"] {
            assert_eq!(flaw(Some("1 1000 57"), Some(row)), Some(Flaw::Differing), "{row}");
        }
    }

    #[test]
    fn a_cancelled_sign_up_that_one_side_does_not_know_differs() {
        assert_eq!(flaw(Some("2 2000 57 1000"), None), Some(Flaw::Differing));
        assert_eq!(flaw(None, Some("2 2000 57 1000")), Some(Flaw::Differing));
    }

    fn receipts(seen: &[(u64, &str)]) -> Vec<Receipt> {
        let receipt = |(sequence, status): &(u64, &str)| {
            serde_json::from_value(serde_json::json!({
                "activityId": "42", "userId": "alice", "sequence": sequence, "status": status,
                "signedUpAt": "2026-11-30T12:00:00.123Z",
            }))
            .unwrap()
        };
        seen.iter().map(receipt).collect()
    }

    #[test]
    fn a_place_handed_out_counts_once_until_it_is_given_back() {
        let live = |seen: &[(u64, &str)]| live_sequences(&receipts(seen));
        assert_eq!(live(&[(57, "queued"), (57, "confirmed")]), [57]);
        assert_eq!(live(&[(57, "queued"), (57, "cancelled"), (99, "queued")]), [99]);
        assert_eq!(live(&[(99, "queued"), (57, "queued")]), [57, 99]);
        assert_eq!(live(&[(57, "cancelled")]), [0; 0]);
    }

    #[test]
    fn a_place_handed_out_needs_its_active_row_unless_it_was_given_back() {
        let flaw = |row: Option<&str>| compare_handed_out(57, row.map(stored).as_ref());
        assert_eq!(flaw(Some("1 1000 57")), None);
        assert_eq!(flaw(Some("2 2000 57 1000")), None);
        assert_eq!(flaw(Some("2 4000 99 3000")), None);
        assert_eq!(flaw(None), Some(Flaw::Lost));
        assert_eq!(flaw(Some("2 900 12 800")), Some(Flaw::Lost));
        assert_eq!(flaw(Some("1 1000 99")), Some(Flaw::Differing));
    }
}
