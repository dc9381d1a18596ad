//! Reads what a script returned: a list whose first element names the outcome. Anything else is an error, never a
//! default.

use redis::{FromRedisValue, Value, from_redis_value};

use super::{ReservationsError, StoredReceipt};
use crate::domain::{ActivityId, Signup, Timestamp, UserId};

/// What a script returned.
pub(super) struct Reply {
    outcome: String,
    rest: Vec<Value>,
}

impl Reply {
    pub(super) fn new(id: ActivityId, value: Value) -> Result<Self, ReservationsError> {
        let Value::Array(elements) = value else {
            return Err(malformed(id, "a script returned no list"));
        };
        let mut elements = elements.into_iter();
        let outcome = elements.next().and_then(|outcome| from_redis_value(outcome).ok());
        let outcome = outcome.ok_or_else(|| malformed(id, "a script returned no outcome"))?;
        Ok(Self { outcome, rest: elements.collect() })
    }

    pub(super) fn outcome(&self) -> &str {
        &self.outcome
    }

    pub(super) fn unknown(&self, id: ActivityId) -> ReservationsError {
        malformed(id, &format!("a script returned the unknown outcome {:?}", self.outcome))
    }

    /// The receipt that follows the outcome, and whether its outbox note waits.
    pub(super) fn signup(&self, id: ActivityId, user_id: &UserId) -> Result<(Signup, bool), ReservationsError> {
        let receipt: StoredReceipt = self
            .element::<String>(id, 0)?
            .parse()
            .map_err(|error: super::MalformedReceipt| malformed(id, &error.to_string()))?;
        Ok((receipt.into_signup(id, user_id.clone()), self.element(id, 1)?))
    }

    /// The number that follows the outcome.
    pub(super) fn count(&self, id: ActivityId) -> Result<u64, ReservationsError> {
        self.element(id, 0)
    }

    /// The number that follows the first.
    pub(super) fn second_count(&self, id: ActivityId) -> Result<u64, ReservationsError> {
        self.element(id, 1)
    }

    /// The time in ms that follows the outcome.
    pub(super) fn timestamp(&self, id: ActivityId) -> Result<Timestamp, ReservationsError> {
        Timestamp::from_ms(self.element(id, 0)?).map_err(|error| malformed(id, &error.to_string()))
    }

    /// The pairs of texts that follow the first `skipped` values.
    pub(super) fn pairs_after(
        self,
        id: ActivityId,
        skipped: usize,
    ) -> Result<Vec<(String, String)>, ReservationsError> {
        super::relaying::pairs(id, self.rest.into_iter().skip(skipped))
    }

    pub(super) fn element<T: FromRedisValue>(&self, id: ActivityId, index: usize) -> Result<T, ReservationsError> {
        let element = self.rest.get(index).cloned().and_then(|value| from_redis_value(value).ok());
        element.ok_or_else(|| malformed(id, &format!("{:?} came without its values", self.outcome)))
    }
}

pub(super) fn malformed(id: ActivityId, detail: &str) -> ReservationsError {
    ReservationsError::Malformed { id, detail: detail.to_owned() }
}
