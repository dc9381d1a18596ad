//! The record in MySQL (8.0 or newer; MariaDB 10.6 or newer): which sign-ups there are, and never more than fit.
//!
//! Sign-ups come as facts with a version, and the highest version of a user stays, so writing a fact twice, late or
//! out of order ends in the same row. `activity.active` counts the active rows and moves in the same transaction as
//! they do; it never passes the capacity.

mod activities;
mod admission;
mod error;
mod signups;
mod statements;
mod upsert;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Params, Pool, PoolConstraints, PoolOpts};
use tokio::time::timeout;

pub use activities::{ActivityLock, Put, StoredActivity};
pub use error::{StoreError, is_login_refused};
pub use signups::ROWS_PAGE;
pub use upsert::Upserted;

use crate::config::{MysqlConfig, Secret};
use crate::endpoint::Endpoint;

/// The most rows that one call of [`Store::upsert`] takes: one statement, one transaction.
pub const UPSERT_CHUNK: usize = 1_000;

/// The longest that one question or change may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long a start waits for a connection.
const WARM_UP_WAIT: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections of one execution environment: it serves few invocations at once, and the server has few to give.
const MAX_CONNECTIONS: usize = 4;

/// What every session needs: times in UTC; row locks without gaps, so that writers of different users do not meet; an
/// end to the wait for a lock (50 s by default) while there is time to try again; and no silent cutting of values.
const SESSION_SETUP: [&str; 4] = [
    "SET time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION innodb_lock_wait_timeout = 2",
    "SET sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
];

/// The record. Clones share the connections.
#[derive(Clone)]
pub struct Store {
    endpoint: Endpoint,
    pools: Arc<Mutex<Option<Pools>>>,
}

/// The connections that one login opened.
#[derive(Clone)]
struct Pools {
    url: Secret,
    work: Pool,
    /// For locks alone: one who holds a lock, or waits for one, must not keep the connections from those who work.
    locks: Pool,
}

impl Store {
    /// Prepares the client. It connects when first used, so a function starts also while MySQL is down.
    pub fn new(config: &MysqlConfig) -> Self {
        Self { endpoint: config.endpoint.clone(), pools: Arc::default() }
    }

    /// Opens the connection ahead of the first request. A server that does not take it in a moment keeps nobody from starting.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        timeout(WARM_UP_WAIT, self.connection()).await.unwrap_or(Err(StoreError::TimedOut)).map(drop)
    }

    async fn connection(&self) -> Result<Conn, StoreError> {
        self.connection_of(|pools| &pools.work).await
    }

    async fn lock_connection(&self) -> Result<Conn, StoreError> {
        self.connection_of(|pools| &pools.locks).await
    }

    async fn connection_of(&self, choose: fn(&Pools) -> &Pool) -> Result<Conn, StoreError> {
        let open = |url| async {
            let pools = self.pools(url)?;
            choose(&pools).get_conn().await.map_err(StoreError::from)
        };
        match timeout(CONNECT_TIMEOUT, self.endpoint.open(open, StoreError::is_login_refused)).await {
            Ok(connected) => connected,
            Err(_) => Err(StoreError::TimedOut),
        }
    }

    /// The connections that this login opened; those of an earlier one are let go.
    fn pools(&self, url: Secret) -> Result<Pools, StoreError> {
        let mut current = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pools) = current.as_ref().filter(|pools| pools.url == url) {
            return Ok(pools.clone());
        }
        // Keeping the session keeps its prepared statements.
        let pool_opts = PoolOpts::default()
            .with_constraints(PoolConstraints::new(1, MAX_CONNECTIONS).unwrap_or_default())
            .with_reset_connection(false);
        let opts = self.endpoint.mysql_options(&url)?;
        let opts = opts.pool_opts(pool_opts).tcp_nodelay(true).setup(SESSION_SETUP.to_vec());
        let pools = Pools { url, work: Pool::new(opts.clone()), locks: Pool::new(opts) };
        Ok(current.insert(pools).clone())
    }

    /// Asks one question.
    async fn select<T: FromRow + Send + 'static>(&self, sql: &str, params: Params) -> Result<Vec<T>, StoreError> {
        let mut connection = self.connection().await?;
        let outcome = match timeout(TIMEOUT, connection.exec(sql, params)).await {
            Ok(rows) => rows.map_err(StoreError::from),
            Err(_) => Err(StoreError::TimedOut),
        };
        if outcome.is_err() {
            abandon(connection);
        }
        outcome
    }
}

/// Closes a connection in an unknown state (a call was cut off, an error broke it) instead of handing it on.
fn abandon(connection: Conn) {
    tokio::spawn(timeout(DISCONNECT_TIMEOUT, connection.disconnect()));
}
