//! The reservations in Redis: who holds a place, and which of them MySQL does not know yet.
//!
//! Each verb is one script in `lua/` and one method here. A script runs alone and answers once, so its outcome is one
//! of the variants below; an error is a broken part, and then the outcome is unknown: ask again, and a reservation
//! that did happen is returned as [`Reservation::AlreadySignedUp`].
//!
//! All keys of an activity share the hash tag `{activity:ID}`, so a script touches one slot of a cluster.

mod activities;
mod connection;
mod receipt;
mod replies;

use redis::{Script, ScriptInvocation};

use crate::config::RedisConfig;
use crate::domain::{Activity, ActivityId, Signup, Timestamp, UserId, Version};
use connection::Connection;
pub use receipt::{MalformedReceipt, StoredReceipt};
use replies::Reply;

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
}

/// Redis gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    /// It cannot be reached, is not ready, or refuses for now. What was asked may or may not have happened.
    #[error("redis is unavailable: {0}")]
    Unavailable(#[source] redis::RedisError),
    /// No answer within `REDIS_TIMEOUT_MS`. What was asked may or may not have happened.
    #[error("redis did not answer within {} ms", .0.as_millis())]
    TimedOut(std::time::Duration),
    /// The activity was loaded once and is gone, or nothing ever was: Redis lost its memory.
    #[error("activity {0} is not in redis, though it may exist: it has to be loaded from mysql")]
    NotLoaded(ActivityId),
    /// A key holds what Onrush did not write. Nothing was changed.
    #[error("redis holds data of another form at activity {id}: {detail}")]
    Malformed {
        /// The activity.
        id: ActivityId,
        /// What was found.
        detail: String,
    },
}

/// The reservations of all activities.
#[derive(Clone)]
pub struct Reservations {
    connection: Connection,
    scripts: std::sync::Arc<Scripts>,
    grace_ms: u64,
}

struct Scripts {
    reserve: Script,
    release: Script,
    find: Script,
    settle: Script,
    load: Script,
}

impl Reservations {
    /// Prepares the client. It connects when first used, or by [`Reservations::warm_up`], so a function starts also
    /// while Redis is down. Needs a Tokio runtime.
    pub fn new(config: &RedisConfig) -> Result<Self, ReservationsError> {
        let scripts = Scripts {
            reserve: Script::new(include_str!("../../lua/reserve.lua")),
            release: Script::new(include_str!("../../lua/release.lua")),
            find: Script::new(include_str!("../../lua/find.lua")),
            settle: Script::new(include_str!("../../lua/settle.lua")),
            load: Script::new(include_str!("../../lua/load.lua")),
        };
        let grace_ms = u64::try_from(config.outbox_grace.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { connection: Connection::new(config)?, scripts: scripts.into(), grace_ms })
    }

    /// Opens the connection ahead of the first request.
    pub async fn warm_up(&self) -> Result<(), ReservationsError> {
        self.connection.query::<()>(&redis::cmd("PING")).await
    }

    /// Takes one place for the user (`reserve.lua`): one round trip.
    pub async fn reserve(&self, id: ActivityId, user_id: &UserId) -> Result<Reservation, ReservationsError> {
        let mut call = user_call(&self.scripts.reserve, id, user_id);
        let reply = self.run(id, call.arg(self.grace_ms)).await?;
        match reply.outcome() {
            "reserved" => Ok(Reservation::Reserved(reply.signup(id, user_id)?.0)),
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
        let reply = self.run(id, call.arg(self.grace_ms)).await?;
        match reply.outcome() {
            "released" => Ok(Release::Released(reply.signup(id, user_id)?.0)),
            "already-cancelled" => Ok(Release::AlreadyCancelled(reply.signup(id, user_id)?.0)),
            "not-signed-up" => Ok(Release::NotSignedUp),
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
            let mut call = self.scripts.settle.prepare_invoke();
            call.key(&keys.signups).key(&keys.outbox);
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

    /// Changes what the organiser of an activity set (`load.lua`), or creates the activity where it is `new`: one that
    /// Redis lost must not come back with fresh places. Its id joins the known ones.
    pub async fn load(&self, id: ActivityId, activity: &Activity, new: bool) -> Result<Load, ReservationsError> {
        let ms_or_empty = |at: Option<Timestamp>| at.map_or_else(String::new, |at| at.as_ms().to_string());
        let mut call = self.scripts.load.prepare_invoke();
        call.key(ActivityKeys::of(id).activity)
            .arg(activity.capacity)
            .arg(activity.state.as_str())
            .arg(ms_or_empty(activity.opens_at))
            .arg(ms_or_empty(activity.closes_at))
            .arg(&activity.title)
            .arg(if new { "create" } else { "change" });
        let reply = self.run(id, &call).await?;
        match reply.outcome() {
            "loaded" => {
                self.remember(&[id]).await?;
                Ok(Load::Loaded { taken: reply.count(id)? })
            }
            "capacity-below-taken" => Ok(Load::CapacityBelowTaken { taken: reply.count(id)? }),
            "activity-not-found" => Err(ReservationsError::NotLoaded(id)),
            _ => Err(reply.unknown(id)),
        }
    }

    /// Whether Redis knows no activity at all: it is new, or it lost its memory.
    pub async fn remembers_nothing(&self) -> Result<bool, ReservationsError> {
        let known: bool = self.connection.query(redis::cmd("EXISTS").arg(ACTIVITIES_KEY)).await?;
        Ok(!known)
    }

    /// Adds ids to the known ones: an activity among them that is not in Redis was lost.
    pub async fn remember(&self, ids: &[ActivityId]) -> Result<(), ReservationsError> {
        let ids: Vec<u64> = ids.iter().map(|id| id.get()).collect();
        self.connection.query(redis::cmd("SADD").arg(ACTIVITIES_KEY).arg(ids)).await
    }

    async fn run(&self, id: ActivityId, call: &ScriptInvocation<'_>) -> Result<Reply, ReservationsError> {
        let value = self.connection.invoke(call).await.map_err(|error| error.at(id))?;
        Reply::new(id, value)
    }

    /// An activity that is not in Redis is unknown only if Redis remembers others and never loaded this one.
    async fn confirm_unknown(&self, id: ActivityId) -> Result<(), ReservationsError> {
        let mut known = redis::pipe();
        known.sismember(ACTIVITIES_KEY, id.get()).scard(ACTIVITIES_KEY);
        let (is_known, known_count): (bool, u64) = self.connection.query_pipeline(&known).await?;
        if is_known || known_count == 0 { Err(ReservationsError::NotLoaded(id)) } else { Ok(()) }
    }
}

/// A script about one user: the three keys of the activity, then the user id.
fn user_call<'a>(script: &'a Script, id: ActivityId, user_id: &UserId) -> ScriptInvocation<'a> {
    let keys = ActivityKeys::of(id);
    let mut call = script.prepare_invoke();
    call.key(keys.activity).key(keys.signups).key(keys.outbox).arg(user_id.as_str());
    call
}
