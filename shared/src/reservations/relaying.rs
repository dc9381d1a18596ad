//! The outbox, as the relay sees it.

use redis::{FromRedisValue, RedisResult};

use super::connection::one_of_many;
use super::replies::malformed;
use super::{ACTIVITIES_KEY, ActivityKeys, OfEach, Reservations, ReservationsError, StoredReceipt};
use crate::domain::{ActivityId, Signup, Timestamp, UserId, Version};

/// The most notes that one call of [`Reservations::claim`] hands out.
pub const CLAIM_CHUNK: usize = 1_000;

/// How long the relay leaves the note of a parked fact alone: a day.
const PARKED_PAUSE_MS: u64 = 24 * 60 * 60 * 1_000;

/// Overdue notes of one activity.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The facts to send.
    pub signups: Vec<Signup>,
    /// Notes beside receipts of another form: they wait for an operator.
    pub damaged: u64,
    /// How old the oldest of the facts is, in ms.
    pub oldest_ms: u64,
}

impl Reservations {
    /// A page of the ids of all activities that were ever loaded, and the cursor of the next one; 0 begins and ends.
    /// An id may come more than once.
    pub async fn known_ids(&self, cursor: u64) -> Result<(u64, Vec<ActivityId>), ReservationsError> {
        let mut scan = redis::cmd("SSCAN");
        scan.arg(ACTIVITIES_KEY).arg(cursor).arg("COUNT").arg(1_000);
        let (cursor, ids): (u64, Vec<u64>) = self.connection.query(&scan).await?;
        Ok((cursor, ids.into_iter().map(ActivityId::new).collect()))
    }

    /// The time by the clock of Redis; in a cluster, by that of any node.
    pub async fn time(&self) -> Result<Timestamp, ReservationsError> {
        let (secs, micros): (u64, u64) = self.connection.query(&redis::cmd("TIME")).await?;
        let at = Timestamp::from_ms(secs.saturating_mul(1_000).saturating_add(micros / 1_000));
        at.map_err(|error| malformed(ActivityId::new(0), &error.to_string()))
    }

    /// How many notes of each of these activities are due at `now`, in their order; an error in the place of one whose key
    /// holds data of another form. One round trip.
    pub async fn overdue(&self, ids: &[ActivityId], now: Timestamp) -> Result<Vec<OfEach<u64>>, ReservationsError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for id in ids {
            pipeline.zcount(ActivityKeys::of(*id).outbox, "-inf", now.as_ms());
        }
        let counts: Vec<RedisResult<u64>> = self.connection.query_each(&mut pipeline).await?;
        ids.iter().zip(counts).map(|(id, count)| one_of_many(*id, count)).collect()
    }

    /// Hands out overdue notes and puts each off, so that no other run sends it too (`claim.lua`).
    pub async fn claim(&self, id: ActivityId, now: Timestamp) -> Result<Claimed, ReservationsError> {
        let keys = ActivityKeys::of(id);
        let mut call = self.scripts.claim.on([&keys.signups, &keys.outbox]);
        call.arg(now.as_ms()).arg(self.grace_ms).arg(CLAIM_CHUNK);
        let reply = self.run(id, &call).await?;
        if reply.outcome() != "claimed" {
            return Err(reply.unknown(id));
        }
        let now_ms: u64 = reply.element(id, 0)?;
        let mut claimed = Claimed { damaged: reply.second_count(id)?, ..Claimed::default() };
        for (user_id, receipt) in reply.pairs_after(id, 2)? {
            match (user_id.parse::<UserId>(), receipt.parse::<StoredReceipt>()) {
                (Ok(user_id), Ok(receipt)) => {
                    claimed.oldest_ms = claimed.oldest_ms.max(now_ms.saturating_sub(receipt.version.get()));
                    claimed.signups.push(receipt.into_signup(id, user_id));
                }
                _ => claimed.damaged += 1,
            }
        }
        Ok(claimed)
    }

    /// Makes claimed notes due again, at once: their facts could not be sent. What was settled meanwhile stays so.
    pub async fn unclaim(&self, id: ActivityId, users: &[&UserId], now: Timestamp) -> Result<(), ReservationsError> {
        for chunk in users.chunks(CLAIM_CHUNK) {
            let mut add = redis::cmd("ZADD");
            add.arg(ActivityKeys::of(id).outbox).arg("XX").arg("LT");
            for user_id in chunk {
                add.arg(now.as_ms()).arg(user_id.as_str());
            }
            self.connection.query::<()>(&add).await?;
        }
        Ok(())
    }

    /// Lets the relay leave the notes of parked facts alone for a day (`postpone.lua`); an operator replays them.
    pub async fn postpone(&self, id: ActivityId, facts: &[(&UserId, Version)]) -> Result<u64, ReservationsError> {
        let mut postponed = 0;
        for chunk in facts.chunks(super::SETTLE_CHUNK) {
            let keys = ActivityKeys::of(id);
            let mut call = self.scripts.postpone.on([&keys.signups, &keys.outbox]);
            call.arg(PARKED_PAUSE_MS);
            for (user_id, version) in chunk {
                call.arg(user_id.as_str()).arg(version.get());
            }
            let reply = self.run(id, &call).await?;
            match reply.outcome() {
                "postponed" => postponed += reply.count(id)?,
                _ => return Err(reply.unknown(id)),
            }
        }
        Ok(postponed)
    }
}

/// Reads a flat list of pairs.
pub(super) fn pairs<T: FromRedisValue>(
    id: ActivityId,
    flat: impl IntoIterator<Item = redis::Value>,
) -> Result<Vec<(T, T)>, ReservationsError> {
    let mut values = flat.into_iter().map(|value| {
        redis::from_redis_value(value).map_err(|error| malformed(id, &format!("a list of another form: {error}")))
    });
    let mut pairs = Vec::new();
    while let Some(first) = values.next() {
        let second = values.next().unwrap_or_else(|| Err(malformed(id, "a list with an odd end")))?;
        pairs.push((first?, second));
    }
    Ok(pairs)
}
