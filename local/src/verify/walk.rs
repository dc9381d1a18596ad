//! Walks one activity, first along Redis, then along MySQL, and notes whatever does not fit.
//!
//! Memory is bounded by a page, plus eight bytes for each receipt that has no row.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use shared::domain::{ActivityId, SignupStatus, UserId};
use shared::reservations::StoredReceipt;

use super::compare::{Flaw, compare};
use super::findings::{
    Findings, Malformed, Miscounted, Missing, NAMED, Note, Oversold, Place, SharedPlace, Standing, Twice,
};
use super::stores::{Recorded, Reserved, Rows, Stores};

/// What was counted on the way.
#[derive(Default)]
struct Counted {
    receipts: u64,
    active_receipts: u64,
    rows: u64,
    active_rows: u64,
    highest_sequence: u64,
}

/// Checks one activity and adds to the findings.
pub async fn walk(stores: &mut Stores, id: ActivityId, findings: &mut Findings) -> anyhow::Result<()> {
    let reserved = stores.reserved(id).await?;
    let recorded = stores.recorded(id).await?;
    let is_tombstone = reserved.archived && reserved.receipts == 0;
    let in_redis = !is_tombstone && (reserved.capacity.is_some() || reserved.receipts > 0);
    let archived = is_tombstone || (!in_redis && recorded.as_ref().is_some_and(|recorded| recorded.closed));
    if !in_redis && !archived {
        findings.missing.note(Missing { activity_id: id, from: "Redis" });
    }
    if recorded.is_none() {
        findings.missing.note(Missing { activity_id: id, from: "MySQL" });
    }

    let mut counted = Counted::default();
    if in_redis {
        along_redis(stores, id, &mut counted, findings).await?;
    }
    along_mysql(stores, id, in_redis, &mut counted, findings).await?;
    doubles(stores, id, findings).await?;
    for (user, due_at_ms) in stores.outbox(id, NAMED).await? {
        findings.outbox.first.push(Note { activity_id: id, user, due_at_ms: due_at_ms as u64 });
    }
    findings.outbox.first.truncate(NAMED);
    findings.outbox.count += reserved.outbox;
    if in_redis {
        check_reserved(id, &reserved, &counted, findings);
    }
    if is_tombstone {
        expect_same(id, "taken in Redis, archived", reserved.taken.unwrap_or(0), counted.active_rows, findings);
    }
    if let Some(recorded) = &recorded {
        check_recorded(id, recorded, &counted, findings);
        let capacity = reserved.capacity.unwrap_or(recorded.capacity);
        expect_same(id, "capacity in Redis (counted: in MySQL)", capacity, recorded.capacity, findings);
    }
    findings.activities.push(Standing {
        activity_id: id,
        capacity: reserved.capacity.or(recorded.map(|recorded| recorded.capacity)),
        taken: reserved.taken,
        receipts: counted.active_receipts,
        rows: counted.active_rows,
        outbox: reserved.outbox,
        archived,
    });
    Ok(())
}

/// Every receipt in Redis must have a row. Those that have one are compared from the other side, where each comes
/// exactly once; a scan may show a receipt twice.
async fn along_redis(
    stores: &mut Stores,
    id: ActivityId,
    counted: &mut Counted,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let hasher = RandomState::new();
    let mut without_row = HashSet::new();
    let mut cursor = 0;
    loop {
        let (next, page) = stores.receipts_page(id, cursor).await?;
        let page: Vec<_> = page.into_iter().map(|(user, text)| (user.parse::<UserId>(), user, text)).collect();
        let users: Vec<&UserId> = page.iter().filter_map(|(parsed, ..)| parsed.as_ref().ok()).collect();
        let rows = stores.rows_of(id, &users).await?;
        for (parsed, user, text) in &page {
            let has_row = parsed.as_ref().is_ok_and(|user| rows.contains_key(user));
            if has_row || !without_row.insert(hasher.hash_one(user)) {
                continue;
            }
            counted.receipts += 1;
            match (parsed, text.parse::<StoredReceipt>()) {
                (Ok(user), Ok(receipt)) => {
                    counted.note_receipt(&receipt);
                    judge(id, user, Some(&receipt), None, findings);
                }
                _ => findings.malformed.note(malformed(id, "Redis", user, text)),
            }
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// Every row in MySQL must say what the receipt says.
async fn along_mysql(
    stores: &mut Stores,
    id: ActivityId,
    in_redis: bool,
    counted: &mut Counted,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let mut after = String::new();
    loop {
        let rows: Rows = stores.rows_after(id, &after).await?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        after = last.as_str().to_owned();
        let users: Vec<&UserId> = rows.iter().map(|(user, _)| user).collect();
        let receipts = if in_redis { stores.receipts_of(id, &users).await? } else { vec![None; users.len()] };
        for ((user, row), text) in rows.iter().zip(receipts) {
            counted.rows += 1;
            counted.receipts += u64::from(text.is_some());
            let receipt = match text.as_deref().map(str::parse::<StoredReceipt>).transpose() {
                Ok(receipt) => receipt,
                Err(_) => {
                    findings.malformed.note(malformed(id, "Redis", user.as_str(), &text.unwrap_or_default()));
                    None
                }
            };
            if let Some(receipt) = &receipt {
                counted.note_receipt(receipt);
            }
            match row {
                Ok(row) => {
                    counted.active_rows += u64::from(row.status == SignupStatus::SignedUp);
                    if in_redis {
                        judge(id, user, receipt.as_ref(), Some(row), findings);
                    }
                }
                Err(text) => findings.malformed.note(malformed(id, "MySQL", user.as_str(), text)),
            }
        }
    }
}

impl Counted {
    fn note_receipt(&mut self, receipt: &StoredReceipt) {
        self.active_receipts += u64::from(receipt.status == SignupStatus::SignedUp);
        self.highest_sequence = self.highest_sequence.max(receipt.sequence);
    }
}

fn judge(
    id: ActivityId,
    user: &UserId,
    receipt: Option<&StoredReceipt>,
    row: Option<&StoredReceipt>,
    findings: &mut Findings,
) {
    let Some(flaw) = compare(receipt, row) else { return };
    let list = match flaw {
        Flaw::Lost => &mut findings.lost,
        Flaw::Unexpected => &mut findings.unexpected,
        Flaw::Differing => &mut findings.differing,
    };
    let text = |side: Option<&StoredReceipt>| side.map(StoredReceipt::to_string);
    list.note(Place {
        activity_id: id,
        user_id: user.clone(),
        redis: text(receipt),
        mysql: text(row),
        handed_out: None,
    });
}

async fn doubles(stores: &mut Stores, id: ActivityId, findings: &mut Findings) -> anyhow::Result<()> {
    for (user, sequences) in stores.users_twice(id).await? {
        let sequences = sequences.split(',').filter_map(|sequence| sequence.parse().ok()).collect();
        findings.twice.note(Twice { activity_id: id, user_id: user.parse()?, sequences });
    }
    for (sequence, users) in stores.places_shared(id).await? {
        findings.shared_places.note(SharedPlace { activity_id: id, sequence, users });
    }
    Ok(())
}

fn check_reserved(id: ActivityId, reserved: &Reserved, counted: &Counted, findings: &mut Findings) {
    let taken = reserved.taken.unwrap_or(0);
    let capacity = reserved.capacity.unwrap_or(0);
    expect_same(id, "taken in Redis", taken, counted.active_receipts, findings);
    expect_same(id, "receipts in Redis", reserved.receipts, counted.receipts, findings);
    expect_within(id, "taken in Redis", capacity, taken, findings);
    expect_within(id, "granted receipts in Redis", capacity, counted.active_receipts, findings);
    let sequence = reserved.sequence.unwrap_or(0);
    if sequence < counted.highest_sequence {
        expect_same(id, "sequence in Redis", sequence, counted.highest_sequence, findings);
    }
}

fn check_recorded(id: ActivityId, recorded: &Recorded, counted: &Counted, findings: &mut Findings) {
    expect_same(id, "activity.active in MySQL", recorded.active, counted.active_rows, findings);
    expect_within(id, "active rows in MySQL", recorded.capacity, counted.active_rows, findings);
}

fn expect_same(id: ActivityId, count: &'static str, kept: u64, counted: u64, findings: &mut Findings) {
    if kept != counted {
        findings.miscounted.note(Miscounted { activity_id: id, count, kept, counted });
    }
}

fn expect_within(id: ActivityId, counted: &'static str, capacity: u64, held: u64, findings: &mut Findings) {
    if held > capacity {
        findings.oversold.note(Oversold { activity_id: id, counted, capacity, held });
    }
}

fn malformed(id: ActivityId, within: &'static str, user: &str, text: &str) -> Malformed {
    Malformed { activity_id: id, within, user: user.to_owned(), text: text.to_owned() }
}
