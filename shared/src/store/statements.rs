//! The statements that upsert sign-ups. One statement for many rows: a round trip for each row is a hundred times
//! slower.

use std::collections::BTreeMap;

use mysql_async::{Params, Value};

use super::StoreError;
use crate::domain::{Signup, Timestamp};

const COLUMNS: &str = "activity_id, user_id, status, signup_time, sequence, version";

const SELECT_SIGNUPS: &str = "SELECT user_id, status, signup_time, sequence, version FROM user_activity";

/// Assignments run from left to right, so `version` is last. `VALUES()` is deprecated in MySQL, but the row alias
/// that replaces it does not exist in MariaDB.
const KEEP_THE_HIGHEST_VERSION: &str = " ON DUPLICATE KEY UPDATE \
    status = IF(VALUES(version) > version, VALUES(status), status), \
    signup_time = IF(VALUES(version) > version, VALUES(signup_time), signup_time), \
    sequence = IF(VALUES(version) > version, VALUES(sequence), sequence), \
    version = GREATEST(VALUES(version), version)";

/// Inserts rows that are all new; a row that is there already is an error.
pub(super) fn insert(rows: usize) -> String {
    format!("INSERT INTO user_activity ({COLUMNS}) VALUES {}", repeat("(?,?,?,?,?,?)", rows))
}

/// Inserts rows, or replaces those of a lower version.
pub(super) fn upsert(rows: usize) -> String {
    insert(rows) + KEEP_THE_HIGHEST_VERSION
}

/// The parameters of both.
pub(super) fn row_params<'a>(rows: impl IntoIterator<Item = &'a Signup>) -> Params {
    let values = rows.into_iter().flat_map(|row| {
        [
            row.activity_id.get().into(),
            row.user_id.as_str().into(),
            row.status.code().into(),
            datetime(row.signed_up_at),
            row.sequence.into(),
            row.version.get().into(),
        ]
    });
    Params::Positional(values.collect())
}

/// Takes places under the guard: changes an activity only if all of its new places fit. The number of affected rows
/// tells whether all did.
pub(super) fn take_places(places: &BTreeMap<u64, u32>) -> (String, Params) {
    let case = format!("CASE id {} ELSE 0 END", "WHEN ? THEN ? ".repeat(places.len()));
    let sql = format!(
        "UPDATE activity SET active = active + {case} WHERE id IN ({}) AND active + {case} <= capacity",
        repeat("?", places.len())
    );
    let cases = || places.iter().flat_map(|(id, places)| [Value::from(*id), Value::from(*places)]);
    let ids = places.keys().map(|id| Value::from(*id));
    (sql, Params::Positional(cases().chain(ids).chain(cases()).collect()))
}

/// Sets the counts of activities that this transaction has locked.
pub(super) fn set_active(active: &BTreeMap<u64, u32>) -> (String, Params) {
    let sql = format!(
        "UPDATE activity SET active = CASE id {} ELSE active END WHERE id IN ({})",
        "WHEN ? THEN ? ".repeat(active.len()),
        repeat("?", active.len())
    );
    let cases = active.iter().flat_map(|(id, active)| [Value::from(*id), Value::from(*active)]);
    let ids = active.keys().map(|id| Value::from(*id));
    (sql, Params::Positional(cases.chain(ids).collect()))
}

/// Locks the activities of these rows, in the order of their ids.
pub(super) fn lock_activities(ids: &[u64]) -> (String, Params) {
    let sql = format!(
        "SELECT id, capacity, active FROM activity WHERE id IN ({}) ORDER BY id FOR UPDATE",
        repeat("?", ids.len())
    );
    (sql, Params::Positional(ids.iter().map(|id| Value::from(*id)).collect()))
}

/// Locks the rows of these users, and tells what they hold. `rows` are sorted by activity, then user.
pub(super) fn lock_rows(rows: &[Signup]) -> (String, Params) {
    let mut wheres = Vec::new();
    let mut values = Vec::with_capacity(rows.len() + 1);
    for of_one_activity in rows.chunk_by(|a, b| a.activity_id == b.activity_id) {
        wheres.push(format!("(activity_id = ? AND user_id IN ({}))", repeat("?", of_one_activity.len())));
        values.extend(of_one_activity.first().map(|row| Value::from(row.activity_id.get())));
        values.extend(of_one_activity.iter().map(|row| Value::from(row.user_id.as_str())));
    }
    let sql = format!(
        "SELECT activity_id, user_id, status, version FROM user_activity WHERE {} FOR UPDATE",
        wheres.join(" OR ")
    );
    (sql, Params::Positional(values))
}

/// A page of sign-ups of one activity, in the order of the users; the parameters are the activity and the user before.
pub(super) fn select_page(limit: usize) -> String {
    format!("{SELECT_SIGNUPS} WHERE activity_id = ? AND user_id > ? ORDER BY user_id LIMIT {limit}")
}

/// The sign-ups of so many users; the parameters are the activity and the users.
pub(super) fn select_users(users: usize) -> String {
    format!("{SELECT_SIGNUPS} WHERE activity_id = ? AND user_id IN ({})", repeat("?", users))
}

/// A `DATETIME(3)` in UTC.
pub(super) fn datetime(at: Timestamp) -> Value {
    let at = at.to_datetime();
    let part = |part: i8| part.unsigned_abs();
    Value::Date(
        at.year().unsigned_abs(),
        part(at.month()),
        part(at.day()),
        part(at.hour()),
        part(at.minute()),
        part(at.second()),
        u32::from(at.millisecond().unsigned_abs()) * 1_000,
    )
}

/// The time in a nullable `DATETIME(3)` column in UTC.
pub(super) fn timestamp(column: &Value) -> Result<Option<Timestamp>, StoreError> {
    let Value::Date(year, month, day, hour, minute, second, micros) = *column else {
        return if *column == Value::NULL { Ok(None) } else { Err(StoreError::Malformed("a time of another type")) };
    };
    let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
    text.parse().map(Some).map_err(|_| StoreError::Malformed("an impossible time"))
}

fn repeat(item: &str, times: usize) -> String {
    vec![item; times].join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_becomes_a_datetime_in_utc_to_the_millisecond() {
        let at = "2046-11-30T23:59:59.987+00:00".parse().unwrap();
        assert_eq!(datetime(at), Value::Date(2046, 11, 30, 23, 59, 59, 987_000));
        assert_eq!(timestamp(&datetime(at)).unwrap(), Some(at));
        assert_eq!(timestamp(&Value::NULL).unwrap(), None);
        assert!(timestamp(&Value::Date(0, 0, 0, 0, 0, 0, 0)).is_err());
    }
}
