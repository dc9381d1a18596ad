//! Redis beside MySQL: reads receipts page by page, and mends what one side lost.

use redis::RedisResult;

use super::connection::one_of_many;
use super::replies::malformed;
use super::{ActivityKeys, Load, OfEach, Reservations, ReservationsError, StoredReceipt};
use crate::domain::{Activity, ActivityId, Signup, UserId, Version};

/// How many receipts one page holds, more or less.
pub const RECEIPTS_PAGE: usize = 1_000;

/// How long receipts are still shown after an activity was archived: a day.
const ARCHIVED_EXPIRE_MS: u64 = 24 * 60 * 60 * 1_000;

/// The counts that Redis keeps of an activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Places in all; none if the activity is not in Redis.
    pub capacity: Option<u32>,
    /// Places granted and not given back.
    pub taken: u64,
    /// Places granted so far.
    pub sequence: u64,
    /// Users with a receipt.
    pub receipts: u64,
    /// Outbox notes.
    pub outbox: u64,
    /// The activity was archived.
    pub archived: bool,
}

/// A user's receipt and whether its outbox note waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// None where the user has none; an error holds text of another form.
    pub receipt: Option<Result<StoredReceipt, String>>,
    /// Its outbox note waits. Read after the receipt: without a note, MySQL had this receipt or a newer one.
    pub noted: bool,
}

/// What came of putting facts back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Receipts written.
    pub restored: u64,
    /// Receipts of another form that were left as they are.
    pub damaged: u64,
}

/// What came of archiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archive {
    /// Done, or it was before.
    Archived,
    /// It has not ended, or not long enough ago.
    NotClosed,
    /// MySQL does not know everything yet.
    NotSettled,
    /// It is not in Redis.
    NotLoaded,
}

type Counts = (Option<u32>, Option<u64>, Option<u64>, Option<u64>);

impl Reservations {
    /// The counts of these activities, in their order; an error in the place of one whose keys hold data of another form.
    /// One round trip.
    pub async fn standings(&self, ids: &[ActivityId]) -> Result<Vec<OfEach<Standing>>, ReservationsError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for id in ids {
            let keys = ActivityKeys::of(*id);
            pipeline.cmd("HMGET").arg(keys.activity).arg(&["capacity", "taken", "sequence", "archived_at_ms"]);
            pipeline.hlen(keys.signups).zcard(keys.outbox);
        }
        let replies: Vec<RedisResult<redis::Value>> = self.connection.query_each(&mut pipeline).await?;
        let mut replies = replies.into_iter();
        let mut next = |id| match replies.next() {
            Some(reply) => one_of_many(id, reply),
            None => Ok(Err(malformed(id, "fewer answers than questions"))),
        };
        let mut standings = Vec::with_capacity(ids.len());
        for id in ids {
            let (counts, receipts, outbox) = (next(*id)?, next(*id)?, next(*id)?);
            let read = |counts, receipts, outbox| {
                standing(counts, receipts, outbox).map_err(|error| malformed(*id, &error.to_string()))
            };
            standings.push(counts.and_then(|counts| read(counts, receipts?, outbox?)));
        }
        Ok(standings)
    }

    /// The counts of one activity.
    pub async fn standing(&self, id: ActivityId) -> Result<Standing, ReservationsError> {
        self.standings(&[id]).await?.pop().unwrap_or_else(|| Ok(Standing::default()))
    }

    /// A page of users with what Redis holds of them, and the cursor of the next page; 0 begins and ends. A user may
    /// come more than once.
    pub async fn receipts(&self, id: ActivityId, cursor: u64) -> Result<(u64, Vec<(String, Seen)>), ReservationsError> {
        let keys = ActivityKeys::of(id);
        let mut scan = redis::cmd("HSCAN");
        scan.arg(&keys.signups).arg(cursor).arg("COUNT").arg(RECEIPTS_PAGE);
        let (cursor, flat): (u64, Vec<redis::Value>) = self.connection.query(&scan).await?;
        let texts = super::relaying::pairs::<Vec<u8>>(id, flat)?;
        let texts: Vec<(String, String)> =
            texts.into_iter().map(|(user, receipt)| (lossy(user), lossy(receipt))).collect();
        let noted = self.noted(&keys, texts.iter().map(|(user, _)| user.as_str())).await?;
        let page = texts.into_iter().zip(noted).map(|((user, text), noted)| {
            let receipt = Some(text.parse().map_err(|_| text));
            (user, Seen { receipt, noted })
        });
        Ok((cursor, page.collect()))
    }

    /// What Redis holds of these users, in their order.
    pub async fn look(&self, id: ActivityId, users: &[&UserId]) -> Result<Vec<Seen>, ReservationsError> {
        if users.is_empty() {
            return Ok(Vec::new());
        }
        let keys = ActivityKeys::of(id);
        let mut get = redis::cmd("HMGET");
        get.arg(&keys.signups);
        for user in users {
            get.arg(user.as_str());
        }
        let texts: Vec<Option<Vec<u8>>> = self.connection.query(&get).await?;
        let noted = self.noted(&keys, users.iter().map(|user| user.as_str())).await?;
        let seen = texts.into_iter().zip(noted).map(|(text, noted)| {
            let receipt = text.map(lossy).map(|text| text.parse().map_err(|_| text));
            Seen { receipt, noted }
        });
        Ok(seen.collect())
    }

    /// Whether the outbox notes of these users wait.
    async fn noted(
        &self,
        keys: &ActivityKeys,
        users: impl Iterator<Item = &str>,
    ) -> Result<Vec<bool>, ReservationsError> {
        let mut scores = redis::cmd("ZMSCORE");
        scores.arg(&keys.outbox);
        let mut count = 0;
        for user in users {
            scores.arg(user);
            count += 1;
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let scores: Vec<Option<f64>> = self.connection.query(&scores).await?;
        Ok(scores.into_iter().map(|score| score.is_some()).collect())
    }

    /// A page of the users whose outbox notes wait, and the cursor of the next page; 0 begins and ends.
    pub async fn waiting(&self, id: ActivityId, cursor: u64) -> Result<(u64, Vec<UserId>), ReservationsError> {
        let mut scan = redis::cmd("ZSCAN");
        scan.arg(ActivityKeys::of(id).outbox).arg(cursor).arg("COUNT").arg(RECEIPTS_PAGE);
        let (cursor, flat): (u64, Vec<redis::Value>) = self.connection.query(&scan).await?;
        let pairs = super::relaying::pairs::<String>(id, flat)?;
        Ok((cursor, pairs.into_iter().filter_map(|(user, _)| user.parse().ok()).collect()))
    }

    /// Puts facts that MySQL holds back into Redis, where it lost them or holds older ones (`restore.lua`).
    pub async fn restore(&self, id: ActivityId, rows: &[Signup]) -> Result<Restored, ReservationsError> {
        let mut sum = Restored::default();
        for chunk in rows.chunks(super::SETTLE_CHUNK) {
            let mut call = super::all_keys_call(&self.scripts.restore, id);
            for row in chunk {
                call.arg(row.user_id.as_str()).arg(StoredReceipt::of(row).to_string());
            }
            let reply = self.run(id, &call).await?;
            if reply.outcome() != "restored" {
                return Err(reply.unknown(id));
            }
            sum.restored += reply.count(id)?;
            sum.damaged += reply.second_count(id)?;
        }
        Ok(sum)
    }

    /// Notes facts again that MySQL lacks (`resend.lua`), each with the version that MySQL holds, if any.
    pub async fn resend(&self, id: ActivityId, facts: &[(UserId, Option<Version>)]) -> Result<u64, ReservationsError> {
        let keys = ActivityKeys::of(id);
        let mut resent = 0;
        for chunk in facts.chunks(super::SETTLE_CHUNK) {
            let mut call = self.scripts.resend.on([&keys.signups, &keys.outbox]);
            for (user_id, recorded) in chunk {
                call.arg(user_id.as_str()).arg(recorded.map_or(0, Version::get));
            }
            let reply = self.run(id, &call).await?;
            match reply.outcome() {
                "resent" => resent += reply.count(id)?,
                _ => return Err(reply.unknown(id)),
            }
        }
        Ok(resent)
    }

    /// Sets `taken` to what was counted (`recount.lua`), unless the activity has changed since `before`. Tells whether
    /// it did.
    pub async fn recount(&self, id: ActivityId, before: Standing, counted: u64) -> Result<bool, ReservationsError> {
        let mut call = self.scripts.recount.on([&ActivityKeys::of(id).activity]);
        call.arg(before.taken).arg(before.sequence).arg(counted);
        let reply = self.run(id, &call).await?;
        match reply.outcome() {
            "recounted" => Ok(true),
            "changed" => Ok(false),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Makes an activity known whose sign-ups are there (`load.lua`); its id must be among the known ones already.
    pub async fn launch(
        &self,
        id: ActivityId,
        activity: &Activity,
        taken: u64,
        sequence: u64,
    ) -> Result<Load, ReservationsError> {
        let mut call = self.load_call(id, activity, "launch");
        call.arg(taken).arg(sequence);
        self.loaded(id, &call).await
    }

    /// Cancels a sign-up that is one too many (`withdraw.lua`), on an operator's word. Tells whether it did.
    pub async fn withdraw(&self, signup: &Signup) -> Result<bool, ReservationsError> {
        let id = signup.activity_id;
        let mut call = super::all_keys_call(&self.scripts.withdraw, id);
        call.arg(signup.user_id.as_str()).arg(signup.version.get());
        let reply = self.run(id, &call).await?;
        match reply.outcome() {
            "withdrawn" => Ok(true),
            "changed" => Ok(false),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Lets the sign-ups of an activity expire that ended `retention` ago (`archive.lua`).
    pub async fn archive(&self, id: ActivityId, retention: std::time::Duration) -> Result<Archive, ReservationsError> {
        let mut call = super::all_keys_call(&self.scripts.archive, id);
        call.arg(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX)).arg(ARCHIVED_EXPIRE_MS);
        let reply = self.run(id, &call).await?;
        match reply.outcome() {
            "archived" => Ok(Archive::Archived),
            "not-closed" => Ok(Archive::NotClosed),
            "not-settled" => Ok(Archive::NotSettled),
            "activity-not-found" => Ok(Archive::NotLoaded),
            _ => Err(reply.unknown(id)),
        }
    }
}

fn standing(
    counts: redis::Value,
    receipts: redis::Value,
    outbox: redis::Value,
) -> Result<Standing, redis::ParsingError> {
    let (capacity, taken, sequence, archived): Counts = redis::from_redis_value(counts)?;
    Ok(Standing {
        capacity,
        taken: taken.unwrap_or_default(),
        sequence: sequence.unwrap_or_default(),
        receipts: redis::from_redis_value(receipts)?,
        outbox: redis::from_redis_value(outbox)?,
        archived: archived.is_some(),
    })
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
