//! Activities as the record keeps them: what the organiser set, and how many active rows there are.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, TxOpts, Value};
use tokio::time::{sleep, timeout};

use super::statements::{datetime, timestamp};
use super::{Store, StoreError, TIMEOUT, abandon};
use crate::domain::{Activity, ActivityId, ActivityState, Timestamp};

const PAUSE_AFTER_CONFLICT: Duration = Duration::from_millis(20);

/// How long a change waits for another one of the same activity, in seconds.
const LOCK_TIMEOUT_SECS: u64 = 3;

const COLUMNS: &str = "id, title, capacity, state, active, opens_at, closes_at, loaded_at IS NOT NULL, compared_at, \
    archived_at IS NOT NULL";

/// An activity in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredActivity {
    /// Which.
    pub id: ActivityId,
    /// What the organiser set.
    pub activity: Activity,
    /// Active rows. It trails Redis by what is on its way.
    pub active: u32,
    /// Redis has had it: if it is not there now, it was lost.
    pub loaded: bool,
    /// When its sign-ups were last compared with Redis one by one.
    pub compared_at: Option<Timestamp>,
    /// It ended long ago, and Redis no longer has its sign-ups.
    pub archived: bool,
}

/// What came of writing an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Done.
    Written,
    /// Refused: the record holds this many active rows, more than the capacity asked for.
    CapacityBelowActive {
        /// Active rows.
        active: u32,
    },
}

impl Store {
    /// One activity.
    pub async fn activity(&self, id: ActivityId) -> Result<Option<StoredActivity>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM activity WHERE id = ?");
        Ok(self.read(sql, vec![id.get().into()]).await?.pop())
    }

    /// Up to `limit` activities with an id above `after`, in the order of their ids.
    pub async fn activities(&self, after: Option<ActivityId>, limit: u32) -> Result<Vec<StoredActivity>, StoreError> {
        match after {
            Some(after) => {
                let sql = format!("SELECT {COLUMNS} FROM activity WHERE id > ? ORDER BY id LIMIT ?");
                self.read(sql, vec![after.get().into(), limit.into()]).await
            }
            None => {
                let sql = format!("SELECT {COLUMNS} FROM activity ORDER BY id LIMIT ?");
                self.read(sql, vec![limit.into()]).await
            }
        }
    }

    async fn read(&self, sql: String, params: Vec<Value>) -> Result<Vec<StoredActivity>, StoreError> {
        self.select(&sql, params.into()).await?.into_iter().map(stored_activity).collect()
    }

    /// Keeps other changes of this activity out until the lock is released, so that the two steps of a change, in
    /// MySQL and in Redis, cannot mix with another's.
    pub async fn lock_activity(&self, id: ActivityId) -> Result<ActivityLock, StoreError> {
        self.lock(id, format!("onrush.activity.{id}"), LOCK_TIMEOUT_SECS).await?.ok_or(StoreError::TimedOut)
    }

    /// Keeps other comparisons of this activity out, without holding up changes; none where one is under way.
    pub async fn lock_comparison(&self, id: ActivityId) -> Result<Option<ActivityLock>, StoreError> {
        self.lock(id, format!("onrush.compare.{id}"), 0).await
    }

    async fn lock(&self, id: ActivityId, name: String, wait_secs: u64) -> Result<Option<ActivityLock>, StoreError> {
        // From here on the connection is closed unless the lock is released in good order.
        let mut lock = ActivityLock { connection: Some(self.lock_connection().await?), id, name: name.clone() };
        let wait = Duration::from_secs(wait_secs) + TIMEOUT;
        let asked = lock.connection()?.exec_first("SELECT GET_LOCK(?, ?)", (name, wait_secs));
        let granted: Option<Option<i64>> = bounded_by(wait, async { Ok(asked.await?) }).await?;
        Ok((granted == Some(Some(1))).then_some(lock))
    }
}

/// The sole right to change one activity. Dropped without [`ActivityLock::release`], it closes its connection, which
/// releases the lock as well.
pub struct ActivityLock {
    connection: Option<Conn>,
    id: ActivityId,
    name: String,
}

impl ActivityLock {
    /// The activity as it is now.
    pub async fn current(&mut self) -> Result<Option<StoredActivity>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM activity WHERE id = ?");
        let id = self.id.get();
        let row: Result<Option<Row>, _> = bounded(self.connection()?.exec_first(sql, (id,))).await;
        self.checked(row)?.map(stored_activity).transpose()
    }

    /// Creates or changes the activity, unless it has more active rows than the capacity. A transaction that was in
    /// the way, of a consumer, ends soon, so this one is tried again.
    pub async fn put(&mut self, activity: &Activity) -> Result<Put, StoreError> {
        let id = self.id;
        let connection = self.connection()?;
        let until_done = async {
            loop {
                match put(connection, id, activity).await {
                    Err(StoreError::Conflict(error)) => tracing::warn!(%error, %id, "the activity is written again"),
                    outcome => return outcome,
                }
                sleep(PAUSE_AFTER_CONFLICT).await;
            }
        };
        let outcome = bounded_by(TIMEOUT, until_done).await;
        self.checked(outcome)
    }

    /// Notes that Redis has the activity.
    pub async fn mark_loaded(&mut self) -> Result<(), StoreError> {
        self.mark("UPDATE activity SET loaded_at = CURRENT_TIMESTAMP(3) WHERE id = ? AND loaded_at IS NULL").await
    }

    /// Notes that its sign-ups were compared with Redis one by one.
    pub async fn mark_compared(&mut self) -> Result<(), StoreError> {
        self.mark(
            "UPDATE activity SET compared_at = CURRENT_TIMESTAMP(3), updated_at = updated_at WHERE id = ? \
            AND archived_at IS NULL",
        )
        .await
    }

    /// Notes that Redis no longer has its sign-ups.
    pub async fn mark_archived(&mut self) -> Result<(), StoreError> {
        self.mark("UPDATE activity SET archived_at = CURRENT_TIMESTAMP(3) WHERE id = ? AND archived_at IS NULL").await
    }

    async fn mark(&mut self, sql: &str) -> Result<(), StoreError> {
        let id = self.id.get();
        let outcome = bounded(self.connection()?.exec_drop(sql, (id,))).await;
        self.checked(outcome)
    }

    /// Lets others in. After a failure that broke the connection the lock has ended with it.
    pub async fn release(mut self) -> Result<(), StoreError> {
        let Some(connection) = self.connection.as_mut() else { return Ok(()) };
        bounded(connection.exec_drop("DO RELEASE_LOCK(?)", (&self.name,))).await?;
        // Only now is the connection fit for others.
        drop(self.connection.take());
        Ok(())
    }

    /// Closes a connection that a failure has left in an unknown state.
    fn checked<T>(&mut self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if outcome.as_ref().is_err_and(|error| !error.leaves_connection_usable())
            && let Some(connection) = self.connection.take()
        {
            abandon(connection);
        }
        outcome
    }

    fn connection(&mut self) -> Result<&mut Conn, StoreError> {
        self.connection.as_mut().ok_or(StoreError::Malformed("the lock was released"))
    }
}

impl Drop for ActivityLock {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            abandon(connection);
        }
    }
}

async fn put(connection: &mut Conn, id: ActivityId, activity: &Activity) -> Result<Put, StoreError> {
    let mut transaction = connection.start_transaction(TxOpts::new()).await?;
    let lock = "SELECT active FROM activity WHERE id = ? FOR UPDATE";
    let mut active: Option<u32> = transaction.exec_first(lock, (id.get(),)).await?;
    if active.is_none() {
        // Rows may have come before their activity, from producers that know it already. A consumer that writes such
        // rows looks for the activity once more before it commits. So with the insert first and then a count that
        // waits for locks, either the consumer finds the activity or its rows are counted.
        let insert = "INSERT INTO activity (id, title, capacity, state, active) VALUES (?, '', 0, 1, 0)";
        transaction.exec_drop(insert, (id.get(),)).await?;
        let count = "SELECT COUNT(*) FROM user_activity WHERE activity_id = ? AND status = 1 LOCK IN SHARE MODE";
        active = transaction.exec_first(count, (id.get(),)).await?;
    }
    let active = active.ok_or(StoreError::Malformed("a count without a number"))?;
    if active > activity.capacity {
        transaction.rollback().await?;
        return Ok(Put::CapacityBelowActive { active });
    }
    let update = "UPDATE activity SET title = ?, capacity = ?, state = ?, active = ?, opens_at = ?, closes_at = ? \
        WHERE id = ?";
    let at = |at: Option<Timestamp>| at.map_or(Value::NULL, datetime);
    let Activity { title, capacity, opens_at, closes_at, state } = activity;
    let params = (title, capacity, state.code(), active, at(*opens_at), at(*closes_at), id.get());
    transaction.exec_drop(update, params).await?;
    transaction.commit().await?;
    Ok(Put::Written)
}

async fn bounded<T>(work: impl Future<Output = Result<T, mysql_async::Error>>) -> Result<T, StoreError> {
    bounded_by(TIMEOUT, async { work.await.map_err(StoreError::from) }).await
}

async fn bounded_by<T>(limit: Duration, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(limit, work).await.unwrap_or(Err(StoreError::TimedOut))
}

fn stored_activity(row: Row) -> Result<StoredActivity, StoreError> {
    type Columns = (u64, String, u32, u8, u32, Value, Value, bool, Value, bool);
    let columns: Result<Columns, _> = mysql_async::from_row_opt(row);
    let (id, title, capacity, state, active, opens_at, closes_at, loaded, compared_at, archived) =
        columns.map_err(|_| StoreError::Malformed("an activity with ill-typed columns"))?;
    let activity = Activity {
        title,
        capacity,
        opens_at: timestamp(&opens_at)?,
        closes_at: timestamp(&closes_at)?,
        state: ActivityState::from_code(state).ok_or(StoreError::Malformed("an activity with an unknown state"))?,
    };
    let compared_at = timestamp(&compared_at)?;
    Ok(StoredActivity { id: ActivityId::new(id), activity, active, loaded, compared_at, archived })
}
