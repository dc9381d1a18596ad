//! The reservations in Redis: who holds a place, and which of them MySQL does not know yet.
//!
//! Each verb is one script in `lua/` and one method here. A script runs alone and answers once, so its outcome is one
//! of the variants below; an error is a broken part, and then the outcome is unknown: ask again, and a reservation
//! that did happen is returned as [`Reservation::AlreadySignedUp`].
//!
//! All keys of an activity share the hash tag `{activity:ID}`, so a script touches one slot of a cluster.

mod activities;
mod cluster;
mod connection;
mod mending;
mod rebuilding;
mod receipt;
mod relaying;
mod replies;
mod scripts;

use crate::config::RedisConfig;
use crate::domain::{Activity, ActivityId, Signup, Timestamp, UserId, Version};
use crate::endpoint::SecretsManagerError;
use connection::{Connection, TooFewReplicas};
pub use mending::{Archive, RECEIPTS_PAGE, Restored, Seen, Standing};
pub use rebuilding::{NOTICE_CHUNK, Noticed, Passed, REBUILD_KEY};
pub use receipt::{MalformedReceipt, StoredReceipt};
pub use relaying::{CLAIM_CHUNK, Claimed};
use replies::Reply;
use scripts::{Call, Script, Scripts};

/// The set of the ids of all activities that have been loaded. It tells an unknown activity from a Redis that lost
/// its memory.
pub const ACTIVITIES_KEY: &str = "activities";

/// The most facts that one call of `settle` takes: 2,000 arguments, below the 3,999 that some Redis services allow.
pub const SETTLE_CHUNK: usize = 1_000;

/// The keys of one activity.
#[derive(Clone, Debug)]
pub struct ActivityKeys {
    /// Hash: what the organiser set, `taken`, `sequence`.
    pub activity: String,
    /// Hash: user id → [`StoredReceipt`].
    pub signups: String,
    /// Sorted set: user id, scored by the time in ms from which the relay may pick the note up.
    pub outbox: String,
}

impl ActivityKeys {
    /// The keys of this activity.
    pub fn of(id: ActivityId) -> Self {
        let activity = format!("{{activity:{id}}}");
        Self { signups: format!("{activity}:signups"), outbox: format!("{activity}:outbox"), activity }
    }
}

/// What came of asking for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The place is the user's from now on.
    Reserved(Signup),
    /// It was already. `queued`: its outbox note waits.
    AlreadySignedUp {
        /// The fact as it was established.
        signup: Signup,
        /// Its outbox note waits.
        queued: bool,
    },
    /// No place is left.
    SoldOut,
    /// Sign-ups begin later.
    NotOpen {
        /// From then on.
        opens_at: Timestamp,
    },
    /// The organiser paused the activity.
    Paused,
    /// Sign-ups have ended.
    Closed,
    /// No activity has this id.
    ActivityNotFound,
}

/// What came of giving a place back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// The place is free again.
    Released(Signup),
    /// It was given back before.
    AlreadyCancelled(Signup),
    /// The user never held one.
    NotSignedUp,
    /// The activity ended long ago; MySQL alone knows its sign-ups.
    Archived,
    /// No activity has this id.
    ActivityNotFound,
}

/// What the user holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// This.
    Found {
        /// The latest fact.
        signup: Signup,
        /// Its outbox note waits.
        queued: bool,
    },
    /// Nothing, and never did.
    NotSignedUp,
    /// The activity ended long ago; MySQL alone knows its sign-ups.
    Archived,
    /// No activity has this id.
    ActivityNotFound,
}

/// What came of creating or changing an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Done; this many places are taken.
    Loaded {
        /// Places granted and not given back.
        taken: u64,
    },
    /// Refused: this many places are taken, more than the capacity asked for.
    CapacityBelowTaken {
        /// Places granted and not given back.
        taken: u64,
    },
    /// Refused: the activity ended long ago, and its sign-ups are no longer in Redis.
    Archived,
}

/// Redis gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    /// It cannot be reached, is not ready, or refuses for now. What was asked may or may not have happened.
    #[error("redis is unavailable: {0}")]
    Unavailable(#[source] redis::RedisError),
    /// Its login could not be had.
    #[error("redis's login is not there: {0}")]
    Login(#[source] SecretsManagerError),
    /// No answer within `REDIS_TIMEOUT_MS`. What was asked may or may not have happened.
    #[error("redis did not answer within {} ms", .0.as_millis())]
    TimedOut(std::time::Duration),
    /// The activity was loaded once and is gone, or nothing ever was: Redis lost its memory.
    #[error("activity {0} is not in redis, though it may exist: it has to be loaded from mysql")]
    NotLoaded(ActivityId),
    /// It was done, but fewer replicas hold it than `REDIS_WAIT_REPLICAS`: a failover now would lose it.
    #[error("{holding} of {wanted} replicas hold the change")]
    TooFewReplicas {
        /// The fact that was established; none for a change of an activity.
        signup: Option<Box<Signup>>,
        /// So many hold it.
        holding: u32,
        /// So many should.
        wanted: u32,
    },
    /// A key holds what Onrush did not write. Nothing was changed.
    #[error("redis holds data of another form at activity {id}: {detail}")]
    Malformed {
        /// The activity.
        id: ActivityId,
        /// What was found.
        detail: String,
    },
}

/// The answer about one of several activities: an error where that one's keys hold data of another form.
pub type OfEach<T> = Result<T, ReservationsError>;

/// The reservations of all activities.
#[derive(Clone)]
pub struct Reservations {
    connection: Connection,
    scripts: std::sync::Arc<Scripts>,
    grace_ms: u64,
}

impl Reservations {
    /// Prepares the client. It connects when first used, or by [`Reservations::warm_up`], so a function starts also
    /// while Redis is down.
    pub fn new(config: &RedisConfig) -> Self {
        let grace_ms = u64::try_from(config.outbox_grace.as_millis()).unwrap_or(u64::MAX);
        Self { connection: Connection::new(config), scripts: Scripts::new().into(), grace_ms }
    }

    /// Opens the connection ahead of the first request.
    pub async fn warm_up(&self) -> Result<(), ReservationsError> {
        self.remembers_nothing().await.map(|_| ())
    }

    /// Takes one place for the user (`reserve.lua`): one round trip.
    pub async fn reserve(&self, id: ActivityId, user_id: &UserId) -> Result<Reservation, ReservationsError> {
        let mut call = user_call(&self.scripts.reserve, id, user_id);
        let (reply, too_few) = self.run_replicated(id, call.arg(self.grace_ms)).await?;
        match reply.outcome() {
            "reserved" => held(reply.signup(id, user_id)?.0, too_few).map(Reservation::Reserved),
            "already-signed-up" => {
                let (signup, queued) = reply.signup(id, user_id)?;
                Ok(Reservation::AlreadySignedUp { signup, queued })
            }
            "sold-out" => Ok(Reservation::SoldOut),
            "not-open" => Ok(Reservation::NotOpen { opens_at: reply.timestamp(id)? }),
            "paused" => Ok(Reservation::Paused),
            "closed" => Ok(Reservation::Closed),
            "activity-not-found" => self.confirm_unknown(id).await.map(|()| Reservation::ActivityNotFound),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Gives the user's place back (`release.lua`): one round trip.
    pub async fn release(&self, id: ActivityId, user_id: &UserId) -> Result<Release, ReservationsError> {
        let mut call = user_call(&self.scripts.release, id, user_id);
        let (reply, too_few) = self.run_replicated(id, call.arg(self.grace_ms)).await?;
        match reply.outcome() {
            "released" => held(reply.signup(id, user_id)?.0, too_few).map(Release::Released),
            "already-cancelled" => Ok(Release::AlreadyCancelled(reply.signup(id, user_id)?.0)),
            "not-signed-up" => Ok(Release::NotSignedUp),
            "archived" => Ok(Release::Archived),
            "activity-not-found" => self.confirm_unknown(id).await.map(|()| Release::ActivityNotFound),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Shows what the user holds (`find.lua`): one round trip.
    pub async fn find(&self, id: ActivityId, user_id: &UserId) -> Result<Lookup, ReservationsError> {
        let reply = self.run(id, &user_call(&self.scripts.find, id, user_id)).await?;
        match reply.outcome() {
            "found" => {
                let (signup, queued) = reply.signup(id, user_id)?;
                Ok(Lookup::Found { signup, queued })
            }
            "not-signed-up" => Ok(Lookup::NotSignedUp),
            "archived" => Ok(Lookup::Archived),
            "activity-not-found" => self.confirm_unknown(id).await.map(|()| Lookup::ActivityNotFound),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Drops the outbox note of each fact that MySQL now holds, unless a newer fact of that user waits (`settle.lua`).
    /// Returns how many were dropped. One round trip for each [`SETTLE_CHUNK`] facts.
    pub async fn settle(&self, id: ActivityId, facts: &[(&UserId, Version)]) -> Result<u64, ReservationsError> {
        let keys = ActivityKeys::of(id);
        let mut settled = 0;
        for chunk in facts.chunks(SETTLE_CHUNK) {
            let mut call = self.scripts.settle.on([&keys.signups, &keys.outbox]);
            for (user_id, version) in chunk {
                call.arg(user_id.as_str()).arg(version.get());
            }
            let reply = self.run(id, &call).await?;
            match reply.outcome() {
                "settled" => {
                    settled += reply.count(id)?;
                    let damaged = reply.second_count(id)?;
                    if damaged > 0 {
                        tracing::error!(activity_id = %id, damaged, "outbox notes stay beside receipts of another form");
                    }
                }
                _ => return Err(reply.unknown(id)),
            }
        }
        Ok(settled)
    }

    /// Changes what the organiser of an activity set (`load.lua`). An activity that is not there is not created: Redis
    /// may have lost it, and it must not come back with fresh places; see [`Reservations::launch`].
    pub async fn load(&self, id: ActivityId, activity: &Activity) -> Result<Load, ReservationsError> {
        self.loaded(id, &self.load_call(id, activity, "change")).await
    }

    fn load_call(&self, id: ActivityId, activity: &Activity, verb: &str) -> Call {
        let ms_or_empty = |at: Option<Timestamp>| at.map_or_else(String::new, |at| at.as_ms().to_string());
        let mut call = self.scripts.load.on([&ActivityKeys::of(id).activity]);
        call.arg(activity.capacity)
            .arg(activity.state.as_str())
            .arg(ms_or_empty(activity.opens_at))
            .arg(ms_or_empty(activity.closes_at))
            .arg(&activity.title)
            .arg(verb);
        call
    }

    async fn loaded(&self, id: ActivityId, call: &Call) -> Result<Load, ReservationsError> {
        let (reply, too_few) = self.run_replicated(id, call).await?;
        match reply.outcome() {
            "loaded" => {
                if let Some(TooFewReplicas { holding, wanted }) = too_few {
                    return Err(ReservationsError::TooFewReplicas { signup: None, holding, wanted });
                }
                Ok(Load::Loaded { taken: reply.count(id)? })
            }
            "capacity-below-taken" => Ok(Load::CapacityBelowTaken { taken: reply.count(id)? }),
            "archived" => Ok(Load::Archived),
            "activity-not-found" => Err(ReservationsError::NotLoaded(id)),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Whether Redis knows no activity at all: it is new, or it lost its memory.
    pub async fn remembers_nothing(&self) -> Result<bool, ReservationsError> {
        let known: bool = self.connection.query(redis::cmd("EXISTS").arg(ACTIVITIES_KEY)).await?;
        Ok(!known)
    }

    /// Whether Redis knows all of these activities.
    pub async fn remembers(&self, ids: &[ActivityId]) -> Result<bool, ReservationsError> {
        for chunk in ids.chunks(NOTICE_CHUNK) {
            let ids: Vec<u64> = chunk.iter().map(|id| id.get()).collect();
            let known: Vec<bool> = self.connection.query(redis::cmd("SMISMEMBER").arg(ACTIVITIES_KEY).arg(ids)).await?;
            if known.contains(&false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds ids to the known ones: an activity among them that is not in Redis was lost.
    pub async fn remember(&self, ids: &[ActivityId]) -> Result<(), ReservationsError> {
        let ids: Vec<u64> = ids.iter().map(|id| id.get()).collect();
        self.connection.query(redis::cmd("SADD").arg(ACTIVITIES_KEY).arg(ids)).await
    }

    async fn run(&self, id: ActivityId, call: &Call) -> Result<Reply, ReservationsError> {
        let value = self.connection.invoke(call).await.map_err(|error| error.at(id))?;
        Reply::new(id, value)
    }

    async fn run_replicated(
        &self,
        id: ActivityId,
        call: &Call,
    ) -> Result<(Reply, Option<TooFewReplicas>), ReservationsError> {
        let (value, too_few) = self.connection.invoke_replicated(call).await.map_err(|error| error.at(id))?;
        Ok((Reply::new(id, value)?, too_few))
    }

    /// An activity that is not in Redis is unknown only if Redis remembers others and never loaded this one.
    async fn confirm_unknown(&self, id: ActivityId) -> Result<(), ReservationsError> {
        let mut known = redis::pipe();
        known.sismember(ACTIVITIES_KEY, id.get()).scard(ACTIVITIES_KEY);
        // In this order: a flush in between leaves it known, or nothing known at all.
        match self.connection.query_all(&mut known).await?.as_slice() {
            [0, known_count] if *known_count > 0 => Ok(()),
            _ => Err(ReservationsError::NotLoaded(id)),
        }
    }
}

/// A fact that was just established, unless too few replicas hold it.
fn held(signup: Signup, too_few: Option<TooFewReplicas>) -> Result<Signup, ReservationsError> {
    match too_few {
        None => Ok(signup),
        Some(TooFewReplicas { holding, wanted }) => {
            Err(ReservationsError::TooFewReplicas { signup: Some(Box::new(signup)), holding, wanted })
        }
    }
}

/// A script about one user: the three keys of the activity, then the user id.
fn user_call(script: &Script, id: ActivityId, user_id: &UserId) -> Call {
    let mut call = all_keys_call(script, id);
    call.arg(user_id.as_str());
    call
}

/// A script about the three keys of the activity.
fn all_keys_call(script: &Script, id: ActivityId) -> Call {
    let keys = ActivityKeys::of(id);
    script.on([&keys.activity, &keys.signups, &keys.outbox])
}
