//! What MySQL's errors mean for the caller: wait, try again, leave this row out, or call an operator.

use crate::endpoint::SecretsManagerError;

/// The record was not changed, or, after a lost answer to a commit, may have been. Writing again is safe.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another transaction was in the way; the whole transaction can be tried again.
    #[error("mysql rolled the transaction back: {0}")]
    Conflict(#[source] mysql_async::Error),
    /// It cannot be reached, is read-only after a failover, or shuts down.
    #[error("mysql is unavailable: {0}")]
    Unavailable(#[source] mysql_async::Error),
    /// Its login could not be had.
    #[error("mysql's login is not there: {0}")]
    Login(#[from] SecretsManagerError),
    /// No answer in time.
    #[error("mysql did not answer in time")]
    TimedOut,
    /// A value of one of the rows does not fit the table; it never will.
    #[error("mysql refuses the row: {0}")]
    RowRefused(#[source] mysql_async::ServerError),
    /// The schema or a statement is wrong: run `provision`, or look at the versions.
    #[error("mysql does not have the tables that this version needs; run provision ({0})")]
    Schema(#[source] mysql_async::ServerError),
    /// A row holds what Onrush did not write.
    #[error("mysql holds data of another form: {0}")]
    Malformed(&'static str),
}

/// Server errors by number; see "Server Error Message Reference" in the MySQL manual and "MariaDB Error Codes".
mod code {
    pub const CONFLICT: [u16; 2] = [
        1205, // lock wait timeout
        1213, // deadlock
    ];
    pub const ROW_REFUSED: [u16; 9] = [
        1048, // column cannot be null
        1264, // out of range
        1265, // data truncated
        1292, // incorrect datetime
        1366, // incorrect value
        1406, // data too long
        1452, // foreign key
        3819, // check constraint (MySQL)
        4025, // check constraint (MariaDB)
    ];
    pub const SCHEMA: [u16; 7] = [
        1049, // unknown database
        1054, // unknown column
        1064, // syntax
        1136, // column count
        1142, // no privilege on the table
        1146, // no such table
        1364, // a column without a default
    ];
    pub const LOGIN_REFUSED: [u16; 2] = [
        1045, // wrong user or password
        1698, // the same, from plugins that say no more
    ];
    pub const DUPLICATE_KEY: u16 = 1062;
}

impl From<mysql_async::Error> for StoreError {
    fn from(error: mysql_async::Error) -> Self {
        match error {
            mysql_async::Error::Server(refusal) if code::ROW_REFUSED.contains(&refusal.code) => {
                Self::RowRefused(refusal)
            }
            mysql_async::Error::Server(refusal) if code::SCHEMA.contains(&refusal.code) => Self::Schema(refusal),
            mysql_async::Error::Server(ref refusal) if code::CONFLICT.contains(&refusal.code) => Self::Conflict(error),
            // Among them 1040 (too many connections), 1053 (shutting down), 1290, 1792 and 1836 (read-only), and
            // whatever a newer server invents: waiting loses nothing.
            error => Self::Unavailable(error),
        }
    }
}

impl StoreError {
    /// Whether the same call may succeed in a moment.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Unavailable(_) | Self::Login(_) | Self::TimedOut)
    }

    /// Whether the password may have been changed.
    pub(super) fn is_login_refused(&self) -> bool {
        matches!(self, Self::Unavailable(error) if is_login_refused(error))
    }

    /// Whether the connection may be used again.
    pub(super) fn leaves_connection_usable(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::RowRefused(_) | Self::Schema(_))
    }
}

/// Whether MySQL refused the user or the password.
pub fn is_login_refused(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(refusal) if code::LOGIN_REFUSED.contains(&refusal.code))
}

/// Whether a plain insert met a row that is there already.
pub(super) fn is_duplicate_key(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(refusal) if refusal.code == code::DUPLICATE_KEY)
}
