//! Reads sign-ups as the record keeps them, page by page.

use mysql_async::{Params, Value};

use super::statements::{self, timestamp};
use super::{Store, StoreError};
use crate::domain::{ActivityId, Signup, SignupStatus, UserId, Version};

/// How many rows one page holds.
pub const ROWS_PAGE: usize = 1_000;

type Columns = (String, u8, Value, u64, u64);

impl Store {
    /// At most [`ROWS_PAGE`] sign-ups of an activity, cancelled ones too, in the order of the users, after this one.
    pub async fn signups(&self, id: ActivityId, after: Option<&UserId>) -> Result<Vec<Signup>, StoreError> {
        let after = after.map_or("", UserId::as_str);
        let params = Params::Positional(vec![id.get().into(), after.into()]);
        self.read_signups(id, &statements::select_page(ROWS_PAGE), params).await
    }

    /// The sign-ups of these users, as far as there are any. Up to [`ROWS_PAGE`] users a statement.
    pub async fn signups_of(&self, id: ActivityId, users: &[&UserId]) -> Result<Vec<Signup>, StoreError> {
        let mut signups = Vec::with_capacity(users.len());
        for chunk in users.chunks(ROWS_PAGE) {
            let values = std::iter::once(Value::from(id.get())).chain(chunk.iter().map(|user| user.as_str().into()));
            let params = Params::Positional(values.collect());
            signups.extend(self.read_signups(id, &statements::select_users(chunk.len()), params).await?);
        }
        Ok(signups)
    }

    async fn read_signups(&self, id: ActivityId, sql: &str, params: Params) -> Result<Vec<Signup>, StoreError> {
        self.select(sql, params).await?.into_iter().map(|columns| signup(id, columns)).collect()
    }
}

fn signup(activity_id: ActivityId, columns: Columns) -> Result<Signup, StoreError> {
    let (user_id, status, signup_time, sequence, version) = columns;
    Ok(Signup {
        activity_id,
        user_id: user_id.parse().map_err(|_| StoreError::Malformed("a row with an impossible user id"))?,
        version: Version::new(version).map_err(|_| StoreError::Malformed("a row with an impossible version"))?,
        sequence,
        status: SignupStatus::from_code(status).ok_or(StoreError::Malformed("a row with an unknown status"))?,
        signed_up_at: timestamp(&signup_time)?.ok_or(StoreError::Malformed("a row without a time"))?,
    })
}
