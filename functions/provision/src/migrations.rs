//! Applies the migrations in `shared/migrations`: append-only files, one statement each.

use std::time::Duration;

use mysql_async::Pool;
use mysql_async::prelude::Queryable;
use refinery::Migration;
use refinery::error::Kind;
use shared::config::MysqlConfig;
use shared::endpoint::SecretsManagerError;
use shared::store::is_login_refused;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);

/// How long a run waits for another one, in seconds.
const LOCK_TIMEOUT_SECS: u64 = 50;

mod embedded {
    refinery::embed_migrations!("../../shared/migrations");
}

/// The tables are not in place.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// It cannot be reached, or refused.
    #[error("mysql is unavailable: {0}")]
    Unavailable(#[from] mysql_async::Error),
    /// Its login could not be had.
    #[error("mysql's login is not there: {0}")]
    Login(#[from] SecretsManagerError),
    /// One of them failed, or the database was migrated by other files.
    #[error("the migrations were not applied: {0}")]
    Refused(#[from] refinery::Error),
    /// Another run holds the lock, or a statement hangs.
    #[error("mysql did not apply the migrations within {} s", TIMEOUT.as_secs())]
    TimedOut,
}

impl MigrationError {
    fn is_login_refused(&self) -> bool {
        matches!(self, Self::Unavailable(error) if is_login_refused(error))
    }
}

/// Applies what is missing, and tells which.
pub(crate) async fn migrate(config: &MysqlConfig) -> Result<Vec<String>, MigrationError> {
    timeout(TIMEOUT, apply(config)).await.map_err(|_| MigrationError::TimedOut)?
}

async fn apply(config: &MysqlConfig) -> Result<Vec<String>, MigrationError> {
    let open = |url| async move {
        let pool = Pool::new(config.endpoint.mysql_options(&url)?);
        let connection = pool.get_conn().await?;
        Ok((pool, connection))
    };
    // The lock is held until its connection closes, at the end of this run.
    let (mut pool, mut lock) = config.endpoint.open(open, MigrationError::is_login_refused).await?;
    let locked: Option<Option<i64>> =
        lock.exec_first("SELECT GET_LOCK('onrush.migrations', ?)", (LOCK_TIMEOUT_SECS,)).await?;
    if locked != Some(Some(1)) {
        return Err(MigrationError::TimedOut);
    }
    let runner = embedded::migrations::runner();
    let newest = runner.get_migrations().iter().map(Migration::version).max();
    let applied = runner.run_async(&mut pool).await;
    lock.disconnect().await?;
    pool.disconnect().await?;
    match applied {
        Ok(report) => Ok(report.applied_migrations().iter().map(ToString::to_string).collect()),
        // This is what a failed deployment goes back to. Migrations only add, so it gets along with what came later; an
        // error here would keep it from going back.
        Err(error) if matches!(error.kind(), Kind::MissingVersion(theirs) if Some(theirs.version()) > newest) => {
            tracing::warn!(%error, "the tables are of a later version");
            Ok(Vec::new())
        }
        Err(error) => Err(error.into()),
    }
}
