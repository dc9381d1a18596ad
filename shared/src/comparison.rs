//! Redis beside MySQL, person by person: finds what one of them lost, and mends it.
//!
//! It may run while a sale does. Two rules keep it from taking what is on its way for lost. A fact reaches Redis before
//! MySQL, so a row that is newer than the receipt, read after it, means that Redis lost writes. And an outbox note goes
//! only after the commit, so a receipt without a note, read before the row, means that MySQL had it.
//!
//! Memory is bounded by a page, plus eight bytes for each receipt that has no row yet.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use serde::Serialize;
use tokio::time::Instant;

use crate::domain::{ActivityId, Signup, UserId, Version};
use crate::reservations::{Load, Reservations, ReservationsError, Seen, Standing, StoredReceipt};
use crate::store::{ActivityLock, Store, StoreError};

/// How many people of a kind are named; the others are counted.
pub const NAMED: usize = 20;

/// How many activities are read at once.
const RECALL_PAGE: u32 = 1_000;

/// Whether to change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only look.
    Look,
    /// Give each side what it lost.
    Mend,
}

/// People of one kind: how many there are, and the first [`NAMED`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct People {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Vec<UserId>,
}

impl People {
    fn note(&mut self, user_id: &UserId) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(user_id.clone());
        }
    }
}

/// What was found in one activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The activity.
    pub activity_id: ActivityId,
    /// Rows in MySQL, cancelled ones too.
    pub rows: u64,
    /// Receipts in Redis that have no row (yet).
    pub without_row: u64,
    /// Redis has no receipt of them, or an older one than MySQL: it lost writes.
    pub lost_in_redis: People,
    /// MySQL has no row of them, or an older one, and nothing is on its way.
    pub lost_in_mysql: People,
    /// Receipts of another form, which an operator has to look at.
    pub damaged: u64,
    /// Places taken, as Redis kept count.
    pub taken: u64,
    /// People who hold a place, as they were counted one by one.
    pub counted: u64,
    /// The highest place that was granted.
    pub highest_sequence: u64,
    /// Somebody came or went meanwhile, so that the count proves nothing.
    pub busy: bool,
    /// Rows came between the walk along MySQL and the one along Redis, so that their people were not counted.
    pub overtaken: bool,
    /// Receipts and notes written, and counts set, to mend it.
    pub mended: u64,
}

impl Comparison {
    /// Both sides tell the same of everybody, as far as nothing is on its way.
    pub fn is_clean(&self) -> bool {
        self.differences() == 0
    }

    /// People of whom the two sides told different things; or places by which the count of Redis was off, where these are more.
    pub fn differences(&self) -> u64 {
        let places = if self.busy { 0 } else { self.taken.abs_diff(self.counted) };
        places.max(self.lost_in_redis.count + self.lost_in_mysql.count + self.damaged)
    }
}

/// The comparison did not come to its end. What it has mended so far stays.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// MySQL's part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Redis's part.
    #[error(transparent)]
    Reservations(#[from] ReservationsError),
    /// The deadline came first.
    #[error("no time is left for activity {0}; the next run begins again")]
    OutOfTime(ActivityId),
    /// It is not in the record.
    #[error("activity {0} is not in mysql")]
    NotRecorded(ActivityId),
}

/// Compares one activity.
pub async fn compare(
    store: &Store,
    reservations: &Reservations,
    id: ActivityId,
    mode: Mode,
    deadline: Instant,
) -> Result<Comparison, ComparisonError> {
    let before = reservations.standing(id).await?;
    let mut walk = Walk::new(store, reservations, id, mode, deadline, before);
    let with_receipt = walk.along_mysql().await?;
    crate::fail_point!("compare.between-walks");
    let after = reservations.standing(id).await?;
    // As many receipts as rows with one: then nobody is without a row.
    if after.receipts != with_receipt {
        walk.along_redis().await?;
    }
    walk.finish(with_receipt).await
}

/// Compares and mends one activity in which nobody can sign up for now, until everybody was counted.
pub async fn compare_at_rest(
    store: &Store,
    reservations: &Reservations,
    id: ActivityId,
    deadline: Instant,
) -> Result<Comparison, ComparisonError> {
    loop {
        let found = compare(store, reservations, id, Mode::Mend, deadline).await?;
        if !found.overtaken {
            return Ok(found);
        }
    }
}

/// Makes a lost activity known again, whose sign-ups a comparison has put back: until now nobody could sign up. Whatever
/// was published before the loss must have reached MySQL before that. Tells how many places are taken.
pub async fn launch(
    reservations: &Reservations,
    lock: &mut ActivityLock,
    found: &Comparison,
) -> Result<u64, ComparisonError> {
    let id = found.activity_id;
    let stored = lock.current().await?.ok_or(ComparisonError::NotRecorded(id))?;
    match reservations.launch(id, &stored.activity, found.counted, found.highest_sequence).await? {
        Load::Loaded { taken } | Load::CapacityBelowTaken { taken } => Ok(taken),
        Load::Archived => Ok(found.counted),
    }
}

/// A Redis that lost its memory is told which activities it had, before it learns of any other: otherwise it would take
/// the lost ones for unknown.
pub async fn recall(store: &Store, reservations: &Reservations) -> Result<(), ComparisonError> {
    if !reservations.remembers_nothing().await? {
        return Ok(());
    }
    let (mut lost, mut after) = (Vec::new(), None);
    loop {
        let page = store.activities(after, RECALL_PAGE).await?;
        lost.extend(page.iter().filter(|stored| stored.loaded).map(|stored| stored.id));
        let Some(last) = page.last() else { break };
        after = Some(last.id);
    }
    // All at once: with some of them remembered, the others would be taken for unknown.
    if !lost.is_empty() {
        reservations.remember(&lost).await?;
    }
    Ok(())
}

struct Walk<'a> {
    store: &'a Store,
    reservations: &'a Reservations,
    mode: Mode,
    deadline: Instant,
    before: Standing,
    found: Comparison,
}

impl<'a> Walk<'a> {
    fn new(
        store: &'a Store,
        reservations: &'a Reservations,
        id: ActivityId,
        mode: Mode,
        deadline: Instant,
        before: Standing,
    ) -> Self {
        let found = Comparison {
            activity_id: id,
            rows: 0,
            without_row: 0,
            lost_in_redis: People::default(),
            lost_in_mysql: People::default(),
            damaged: 0,
            taken: before.taken,
            counted: 0,
            highest_sequence: 0,
            busy: false,
            overtaken: false,
            mended: 0,
        };
        Self { store, reservations, mode, deadline, before, found }
    }

    /// Every row, in the order of the key: is its receipt there, and as new? Tells how many have a receipt.
    async fn along_mysql(&mut self) -> Result<u64, ComparisonError> {
        let id = self.found.activity_id;
        let (mut after, mut with_receipt) = (None, 0);
        loop {
            self.check_time()?;
            let rows = self.store.signups(id, after.as_ref()).await?;
            let Some(last) = rows.last() else { return Ok(with_receipt) };
            after = Some(last.user_id.clone());
            let users: Vec<&UserId> = rows.iter().map(|row| &row.user_id).collect();
            let seen = self.reservations.look(id, &users).await?;
            with_receipt += seen.iter().filter(|seen| seen.receipt.is_some()).count() as u64;
            with_receipt += self.take_page(&rows, &seen).await?;
        }
    }

    /// Tells how many rows got a receipt that had none.
    async fn take_page(&mut self, rows: &[Signup], seen: &[Seen]) -> Result<u64, ComparisonError> {
        let (mut lost_in_redis, mut ahead, mut new_receipts) = (Vec::new(), Vec::new(), 0);
        for (row, seen) in rows.iter().zip(seen) {
            self.found.rows += 1;
            match &seen.receipt {
                Some(Err(_)) => self.damaged(row.user_id.as_str(), &seen.receipt),
                Some(Ok(receipt)) if *receipt == StoredReceipt::of(row) => self.count(receipt),
                Some(Ok(receipt)) if receipt.version >= row.version => {
                    self.count(receipt);
                    if !seen.noted {
                        ahead.push((row.user_id.clone(), *receipt));
                    }
                }
                older => {
                    new_receipts += u64::from(older.is_none());
                    self.found.lost_in_redis.note(&row.user_id);
                    self.count(&StoredReceipt::of(row));
                    lost_in_redis.push(row.clone());
                }
            }
        }
        self.resend_unless_recorded(ahead).await?;
        if self.mode == Mode::Look || lost_in_redis.is_empty() {
            return Ok(0);
        }
        crate::fail_point!("compare.before-restore");
        let restored = self.reservations.restore(self.found.activity_id, &lost_in_redis).await?;
        crate::fail_point!("compare.after-restore");
        self.found.mended += restored.restored;
        Ok(new_receipts)
    }

    /// Every receipt that has no row: is it on its way?
    async fn along_redis(&mut self) -> Result<(), ComparisonError> {
        let id = self.found.activity_id;
        let hasher = RandomState::new();
        let (mut cursor, mut met) = (0, HashSet::new());
        loop {
            self.check_time()?;
            let (next, page) = self.reservations.receipts(id, cursor).await?;
            let page: Vec<_> = page.into_iter().map(|(user, seen)| (user.parse::<UserId>(), user, seen)).collect();
            let users: Vec<&UserId> = page.iter().filter_map(|(user_id, ..)| user_id.as_ref().ok()).collect();
            let rows = self.store.signups_of(id, &users).await?;
            let with_row: HashSet<&str> = rows.iter().map(|row| row.user_id.as_str()).collect();
            let mut unnoted = Vec::new();
            for (user_id, user, seen) in &page {
                // A scan may show a receipt twice.
                if with_row.contains(user.as_str()) || !met.insert(hasher.hash_one(user)) {
                    continue;
                }
                self.found.without_row += 1;
                match (user_id, &seen.receipt) {
                    (Ok(user_id), Some(Ok(receipt))) => {
                        self.count(receipt);
                        if !seen.noted {
                            unnoted.push((user_id.clone(), *receipt));
                        }
                    }
                    (_, receipt) => self.damaged(user, receipt),
                }
            }
            self.resend_unless_recorded(unnoted).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Receipts without a note that looked newer than their rows: unless a look at the rows after that shows that they
    /// have arrived, MySQL lost them, and they are sent again.
    async fn resend_unless_recorded(&mut self, ahead: Vec<(UserId, StoredReceipt)>) -> Result<(), ComparisonError> {
        if ahead.is_empty() {
            return Ok(());
        }
        let id = self.found.activity_id;
        let users: Vec<&UserId> = ahead.iter().map(|(user_id, _)| user_id).collect();
        let rows = self.store.signups_of(id, &users).await?;
        let rows: HashMap<&str, &Signup> = rows.iter().map(|row| (row.user_id.as_str(), row)).collect();
        let mut lost: Vec<(UserId, Option<Version>)> = Vec::new();
        for (user_id, receipt) in &ahead {
            let row = rows.get(user_id.as_str()).copied();
            let recorded = row.is_some_and(|row| row.version > receipt.version || StoredReceipt::of(row) == *receipt);
            if !recorded {
                self.found.lost_in_mysql.note(user_id);
                lost.push((user_id.clone(), row.map(|row| row.version)));
            }
        }
        if self.mode == Mode::Mend && !lost.is_empty() {
            crate::fail_point!("compare.before-resend");
            self.found.mended += self.reservations.resend(id, &lost).await?;
            crate::fail_point!("compare.after-resend");
        }
        Ok(())
    }

    /// Sets the count of places taken, if nothing has moved since the walk began and each receipt was met.
    async fn finish(mut self, with_receipt: u64) -> Result<Comparison, ComparisonError> {
        let id = self.found.activity_id;
        let after = self.reservations.standing(id).await?;
        let is_same = (after.taken, after.sequence) == (self.before.taken, self.before.sequence);
        // A row that came after the first walk, before the second: it was met by neither.
        self.found.overtaken = after.receipts != with_receipt + self.found.without_row;
        self.found.busy = !is_same || self.found.overtaken || self.found.mended > 0;
        let is_wrong = self.before.capacity.is_some() && !self.found.busy && self.found.counted != self.found.taken;
        if is_wrong && self.found.damaged == 0 && self.mode == Mode::Mend {
            crate::fail_point!("compare.before-recount");
            let recounted = self.reservations.recount(id, self.before, self.found.counted).await?;
            self.found.mended += u64::from(recounted);
        }
        Ok(self.found)
    }

    fn count(&mut self, receipt: &StoredReceipt) {
        self.found.counted += u64::from(receipt.is_active());
        self.found.highest_sequence = self.found.highest_sequence.max(receipt.sequence);
    }

    fn damaged(&mut self, user: &str, receipt: &Option<Result<StoredReceipt, String>>) {
        tracing::error!(activity_id = %self.found.activity_id, user, ?receipt, "a receipt of another form");
        self.found.damaged += 1;
    }

    fn check_time(&self) -> Result<(), ComparisonError> {
        if Instant::now() < self.deadline { Ok(()) } else { Err(ComparisonError::OutOfTime(self.found.activity_id)) }
    }
}
