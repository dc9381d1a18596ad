//! Points in time, to the millisecond, in UTC.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z, up to the end of the year 9999, so that it fits every MySQL `DATETIME(3)`.
/// Its text is RFC 3339 with three decimals: `2026-11-30T12:00:00.123Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(u64);

/// 9999-12-30T22:00:00.999Z, the last instant that `jiff` counts, in whole milliseconds.
const MAX_MS: u64 = 253_402_207_200_999;

impl Timestamp {
    /// The instant this many milliseconds after 1970, or an error after the year 9999.
    pub const fn from_ms(ms: u64) -> Result<Self, InvalidTimestamp> {
        if ms <= MAX_MS { Ok(Self(ms)) } else { Err(InvalidTimestamp) }
    }

    /// Milliseconds since 1970.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// The clock of this machine.
    pub fn now() -> Self {
        let ms = jiff::Timestamp::now().as_millisecond();
        Self(u64::try_from(ms).unwrap_or(0).min(MAX_MS))
    }

    /// The calendar date and wall time in UTC.
    pub fn to_datetime(self) -> jiff::civil::DateTime {
        jiff::tz::Offset::UTC.to_datetime(self.to_jiff())
    }

    fn to_jiff(self) -> jiff::Timestamp {
        // Cannot fail: the constructor bounds the value.
        jiff::Timestamp::from_millisecond(self.0.cast_signed()).unwrap_or(jiff::Timestamp::MAX)
    }
}

/// The text or number is no point in time that Onrush can keep.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is RFC 3339 text such as 2026-11-30T12:00:00Z, from 1970 to 9999")]
pub struct InvalidTimestamp;

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let instant: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp)?;
        let ms = u64::try_from(instant.as_millisecond()).map_err(|_| InvalidTimestamp)?;
        Self::from_ms(ms)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.to_jiff())
    }
}

impl TryFrom<String> for Timestamp {
    type Error = InvalidTimestamp;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(at: Timestamp) -> Self {
        at.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_reads_and_writes_rfc_3339_with_milliseconds() {
        let at: Timestamp = "2026-11-30T13:00:00.1239+01:00".parse().unwrap();
        assert_eq!(at.to_string(), "2026-11-30T12:00:00.123Z");
        assert_eq!(Timestamp::from_ms(0).unwrap().to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_ms(MAX_MS).unwrap().to_string(), "9999-12-30T22:00:00.999Z");
    }

    #[test]
    fn a_time_outside_1970_to_9999_is_refused() {
        for text in ["", "noon", "2026-11-30", "2026-11-30T12:00:00", "1969-12-31T23:59:59Z", "+10000-01-01T00:00:00Z"]
        {
            assert_eq!(text.parse::<Timestamp>(), Err(InvalidTimestamp), "{text:?}");
        }
        assert_eq!(Timestamp::from_ms(MAX_MS + 1), Err(InvalidTimestamp));
    }
}
