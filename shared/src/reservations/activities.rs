//! Reads activities as Redis holds them.

use redis::Value;

use super::replies::malformed;
use super::{ActivityKeys, Reservations, ReservationsError};
use crate::domain::{Activity, ActivityId, ActivityState, Occupancy, Timestamp};

const FIELDS: [&str; 6] = ["title", "capacity", "state", "opens_at_ms", "closes_at_ms", "taken"];

type Fields = (Option<String>, Option<u32>, Option<String>, Option<u64>, Option<u64>, Option<u64>);

impl Reservations {
    /// One activity; none if it is unknown. An activity that Redis lost is an error.
    pub async fn activity(&self, id: ActivityId) -> Result<Option<Occupancy>, ReservationsError> {
        match self.activities(&[id]).await?.pop().flatten() {
            Some(occupancy) => Ok(Some(occupancy)),
            None => self.confirm_unknown(id).await.map(|()| None),
        }
    }

    /// The activities of these ids, in their order; none for one that is not in Redis. One round trip.
    pub async fn activities(&self, ids: &[ActivityId]) -> Result<Vec<Option<Occupancy>>, ReservationsError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for id in ids {
            pipeline.cmd("HMGET").arg(ActivityKeys::of(*id).activity).arg(&FIELDS);
        }
        let replies: Vec<Value> = self.connection.query_all(&mut pipeline).await?;
        ids.iter().zip(replies).map(|(id, fields)| occupancy(*id, fields)).collect()
    }
}

fn occupancy(id: ActivityId, fields: Value) -> Result<Option<Occupancy>, ReservationsError> {
    let fields: Fields =
        redis::from_redis_value(fields).map_err(|error| malformed(id, &format!("an ill-typed field: {error}")))?;
    let (title, capacity, state, opens_at_ms, closes_at_ms, taken) = fields;
    let Some(capacity) = capacity else { return Ok(None) };
    let state = match state.as_deref() {
        Some("open") => ActivityState::Open,
        Some("paused") => ActivityState::Paused,
        _ => return Err(malformed(id, "an activity with an unknown state")),
    };
    let at =
        |ms: Option<u64>| ms.map(Timestamp::from_ms).transpose().map_err(|error| malformed(id, &error.to_string()));
    let activity = Activity {
        title: title.unwrap_or_default(),
        capacity,
        opens_at: at(opens_at_ms)?,
        closes_at: at(closes_at_ms)?,
        state,
    };
    Ok(Some(Occupancy::new(id, activity, taken.unwrap_or_default())))
}
