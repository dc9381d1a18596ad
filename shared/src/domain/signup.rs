//! A sign-up as a fact, and as its owner sees it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ActivityId, Timestamp, UserId};

/// Orders the facts about one user in one activity; the highest is the truth. A hybrid logical clock: the time in ms
/// of the change, or one more than the previous version where that clock stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Version(u64);

impl Version {
    /// The highest version: the end of the year 9999 in ms. A bound keeps a forged message from outranking every later
    /// fact, and keeps the number exact in Lua and JSON.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// A version from its number, 1 to [`Version::MAX`].
    pub const fn new(number: u64) -> Result<Self, InvalidVersion> {
        if number >= 1 && number <= Self::MAX.0 { Ok(Self(number)) } else { Err(InvalidVersion) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The number is no version.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a version is a whole number from 1 to 253402300799999")]
pub struct InvalidVersion;

impl TryFrom<u64> for Version {
    type Error = InvalidVersion;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        Self::new(number)
    }
}

impl From<Version> for u64 {
    fn from(version: Version) -> Self {
        version.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether the user holds a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignupStatus {
    /// The user holds a place.
    SignedUp,
    /// The user gave the place back.
    Cancelled,
}

impl SignupStatus {
    /// The number that Redis and MySQL keep: 1 signed up, 2 cancelled.
    pub const fn code(self) -> u8 {
        match self {
            Self::SignedUp => 1,
            Self::Cancelled => 2,
        }
    }

    /// The status with this number, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::SignedUp),
            2 => Some(Self::Cancelled),
            _ => None,
        }
    }
}

/// A fact: at `version`, this user's sign-up in this activity is `status`. It travels to MySQL as a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signup {
    /// The activity.
    pub activity_id: ActivityId,
    /// The user.
    pub user_id: UserId,
    /// Orders this fact among those of the same user and activity.
    pub version: Version,
    /// Which place of the activity was granted: 1 is the first. 0 where the producer does not count.
    pub sequence: u64,
    /// Whether the user holds a place.
    pub status: SignupStatus,
    /// When the place was granted.
    pub signed_up_at: Timestamp,
}

/// What the owner of a place sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The activity.
    pub activity_id: ActivityId,
    /// The user.
    pub user_id: UserId,
    /// Which place of the activity was granted: 1 is the first.
    pub sequence: u64,
    /// How far it has come.
    pub status: ReceiptStatus,
    /// When the place was granted.
    pub signed_up_at: Timestamp,
}

/// How far a sign-up has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiptStatus {
    /// Granted, not yet in MySQL.
    Queued,
    /// Granted, and in MySQL.
    Confirmed,
    /// Given back.
    Cancelled,
}

impl Receipt {
    /// The receipt of a fact; `queued` while its outbox note waits.
    pub fn of(signup: Signup, queued: bool) -> Self {
        let status = match (signup.status, queued) {
            (SignupStatus::Cancelled, _) => ReceiptStatus::Cancelled,
            (SignupStatus::SignedUp, true) => ReceiptStatus::Queued,
            (SignupStatus::SignedUp, false) => ReceiptStatus::Confirmed,
        };
        let Signup { activity_id, user_id, sequence, signed_up_at, .. } = signup;
        Self { activity_id, user_id, sequence, status, signed_up_at }
    }
}
