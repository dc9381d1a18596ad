//! Writes a batch of facts in one transaction, together with the counts of the activities.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction, TxOpts};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::admission::{Admission, Held, Known, Room, admit};
use super::error::is_duplicate_key;
use super::{Store, StoreError, abandon, statements};
use crate::domain::{Signup, SignupStatus, Version};

/// How often one transaction is tried before the batch is given back to the broker.
const ATTEMPTS: u32 = 6;

/// The longest that one try may take: a connection that died in silence must not use up the invocation.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Half of the longest pause before the second try; it doubles, and the pause taken is a random part of it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Upserted<'a> {
    /// Facts that this call wrote.
    pub written: Vec<&'a Signup>,
    /// Facts that MySQL had already, or newer ones: with the version that it has.
    pub stale: Vec<(&'a Signup, Version)>,
    /// Sign-ups beyond the capacity: not written.
    pub surplus: Vec<&'a Signup>,
}

impl Store {
    /// Writes these facts, at most [`super::UPSERT_CHUNK`] of them, in one transaction. `rows` must hold one fact for
    /// each user and activity, sorted by activity and user. Deadlocks and lost connections are tried again until
    /// `deadline`.
    pub async fn upsert<'a>(&self, rows: &'a [Signup], deadline: Instant) -> Result<Upserted<'a>, StoreError> {
        let mut attempt = 1;
        loop {
            match self.attempt(rows, deadline).await {
                Err(error) if error.is_transient() && attempt < ATTEMPTS => {
                    let pause = (FIRST_PAUSE * 2_u32.pow(attempt)).mul_f64(rand::random());
                    let next = Instant::now() + pause;
                    if next >= deadline {
                        return Err(error);
                    }
                    tracing::warn!(%error, attempt, "mysql will be asked again");
                    sleep_until(next).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn attempt<'a>(&self, rows: &'a [Signup], deadline: Instant) -> Result<Upserted<'a>, StoreError> {
        let deadline = deadline.min(Instant::now() + ATTEMPT_TIMEOUT);
        let connected = timeout_at(deadline, self.connection()).await.map_err(|_| StoreError::TimedOut)?;
        let mut connection = connected?;
        let outcome = timeout_at(deadline, transact(&mut connection, rows)).await.unwrap_or(Err(StoreError::TimedOut));
        if outcome.as_ref().is_err_and(|error| !error.leaves_connection_usable()) {
            abandon(connection);
        }
        outcome
    }
}

async fn transact<'a>(connection: &mut Conn, rows: &'a [Signup]) -> Result<Upserted<'a>, StoreError> {
    if rows.is_empty() {
        return Ok(Upserted::default());
    }
    if rows.iter().all(|row| row.status == SignupStatus::SignedUp) && insert_all_new(connection, rows).await? {
        return Ok(Upserted { written: rows.iter().collect(), ..Upserted::default() });
    }
    loop {
        // Tried again only where an activity was created meanwhile.
        if let Some(upserted) = admit_one_by_one(connection, rows).await? {
            return Ok(upserted);
        }
    }
}

/// The usual case in two statements: every sign-up is of a new user, and all fit. A plain insert proves the first, the
/// guard of the update the second; otherwise nothing is changed. The update also locks the activities, without which
/// no row may be written: another writer may be deciding about the same users.
async fn insert_all_new(connection: &mut Conn, signups: &[Signup]) -> Result<bool, StoreError> {
    let mut transaction = connection.start_transaction(TxOpts::new()).await?;
    let places = places_by_activity(signups);
    let (sql, params) = statements::take_places(&places);
    transaction.exec_drop(sql, params).await?;
    if transaction.affected_rows() != places.len() as u64 {
        transaction.rollback().await?;
        return Ok(false);
    }
    match transaction.exec_drop(statements::insert(signups.len()), statements::row_params(signups)).await {
        Ok(()) => {
            crate::fail_point!("upsert.before-commit");
            transaction.commit().await?;
            Ok(true)
        }
        Err(error) if is_duplicate_key(&error) => {
            transaction.rollback().await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// The careful case: lock the activities, read the rows, decide, write. None, with nothing written, if an activity that
/// was unknown has come in between: these rows need its guard.
async fn admit_one_by_one<'a>(connection: &mut Conn, rows: &'a [Signup]) -> Result<Option<Upserted<'a>>, StoreError> {
    let mut transaction = connection.start_transaction(TxOpts::new()).await?;
    let mut ids: Vec<u64> = rows.iter().map(|row| row.activity_id.get()).collect();
    ids.dedup();
    let known =
        Known { rooms: lock_rooms(&mut transaction, &ids).await?, held: lock_held(&mut transaction, rows).await? };
    let Admission { writes, stale, surplus, active } = admit(rows, &known);
    crate::fail_point!("upsert.before-write");
    if !writes.is_empty() {
        let params = statements::row_params(writes.iter().copied());
        transaction.exec_drop(statements::upsert(writes.len()), params).await?;
    }
    if !active.is_empty() {
        let (sql, params) = statements::set_active(&active);
        transaction.exec_drop(sql, params).await?;
    }
    ids.retain(|id| !known.rooms.contains_key(id));
    if !ids.is_empty() && !lock_rooms(&mut transaction, &ids).await?.is_empty() {
        transaction.rollback().await?;
        return Ok(None);
    }
    crate::fail_point!("upsert.before-commit");
    transaction.commit().await?;
    Ok(Some(Upserted { written: writes, stale, surplus }))
}

async fn lock_rooms(transaction: &mut Transaction<'_>, ids: &[u64]) -> Result<HashMap<u64, Room>, StoreError> {
    let (sql, params) = statements::lock_activities(ids);
    let activities: Vec<(u64, u32, u32)> = transaction.exec(sql, params).await?;
    Ok(activities.into_iter().map(|(id, capacity, active)| (id, Room { capacity, active })).collect())
}

async fn lock_held(
    transaction: &mut Transaction<'_>,
    rows: &[Signup],
) -> Result<HashMap<(u64, String), Held>, StoreError> {
    let (sql, params) = statements::lock_rows(rows);
    let locked: Vec<(u64, String, u8, u64)> = transaction.exec(sql, params).await?;
    let held = locked.into_iter().map(|(activity_id, user_id, status, version)| {
        let status = SignupStatus::from_code(status).ok_or(StoreError::Malformed("a row with an unknown status"))?;
        let version = Version::new(version).map_err(|_| StoreError::Malformed("a row with an impossible version"))?;
        Ok(((activity_id, user_id), Held { status, version }))
    });
    held.collect()
}

/// How many places these sign-ups need.
fn places_by_activity(signups: &[Signup]) -> BTreeMap<u64, u32> {
    let mut places = BTreeMap::new();
    for signup in signups {
        *places.entry(signup.activity_id.get()).or_default() += 1;
    }
    places
}
