//! The two ids that name a place: whose it is, and where.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An activity: an unsigned 64-bit integer. Its text is decimal, without sign or leading zeros, and it is a string in
/// JSON, since it may pass 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ActivityId(u64);

impl ActivityId {
    /// The activity with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, as MySQL keeps it.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The text is no activity id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an activity id is a whole number from 0 to 18446744073709551615, in decimal, without sign or leading zeros")]
pub struct InvalidActivityId;

impl FromStr for ActivityId {
    type Err = InvalidActivityId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let canonical = text == "0" || !text.starts_with(['0', '+']);
        let number = text.parse().map_err(|_| InvalidActivityId)?;
        if canonical { Ok(Self(number)) } else { Err(InvalidActivityId) }
    }
}

impl fmt::Display for ActivityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for ActivityId {
    type Error = InvalidActivityId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ActivityId> for String {
    fn from(id: ActivityId) -> Self {
        id.to_string()
    }
}

/// The longest user id, in bytes: the width of the MySQL column.
pub const MAX_USER_ID_BYTES: usize = 128;

/// A person: 1 to 128 bytes of visible ASCII (`!` to `~`), as the identity provider names them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserId(String);

impl UserId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is no user id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a user id is 1 to {MAX_USER_ID_BYTES} bytes of visible ASCII")]
pub struct InvalidUserId;

impl TryFrom<String> for UserId {
    type Error = InvalidUserId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let length_fits = (1..=MAX_USER_ID_BYTES).contains(&text.len());
        if length_fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err(InvalidUserId)
        }
    }
}

impl FromStr for UserId {
    type Err = InvalidUserId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<UserId> for String {
    fn from(id: UserId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activity_id_is_canonical_decimal_text() {
        for text in ["0", "42", "18446744073709551615"] {
            assert_eq!(text.parse::<ActivityId>().unwrap().to_string(), text);
        }
        for text in ["", "-1", "+1", "007", "00", "1.0", "1e3", " 1", "18446744073709551616", "٤٢", "a", "1}"] {
            assert_eq!(text.parse::<ActivityId>(), Err(InvalidActivityId), "{text:?}");
        }
    }

    #[test]
    fn a_user_id_is_visible_ascii_of_at_most_128_bytes() {
        for text in ["a", "auth0|5f7c", "{activity:42}", &"u".repeat(128)] {
            assert_eq!(text.parse::<UserId>().unwrap().as_str(), text);
        }
        for text in ["", "a b", "a\n", "\0", "é", "\u{7f}", &"u".repeat(129)] {
            assert_eq!(text.parse::<UserId>(), Err(InvalidUserId), "{text:?}");
        }
    }
}
