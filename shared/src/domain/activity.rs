//! An activity: how many places, when, and whether it takes sign-ups now.

use serde::{Deserialize, Serialize};

use super::{ActivityId, Timestamp};

/// The longest title, in characters: the width of the MySQL column.
pub const MAX_TITLE_CHARS: usize = 200;

/// How many people an activity holds.
pub type Capacity = u32;

/// What an organiser sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Activity {
    /// 1 to 200 characters, none of them a control character.
    pub title: String,
    /// Places in all.
    pub capacity: Capacity,
    /// The first instant at which sign-ups are taken; null: at once.
    #[serde(default)]
    pub opens_at: Option<Timestamp>,
    /// The first instant at which they no longer are; null: never.
    #[serde(default)]
    pub closes_at: Option<Timestamp>,
    /// The organiser's switch.
    #[serde(default)]
    pub state: ActivityState,
}

/// The organiser's switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivityState {
    /// Takes sign-ups within its window.
    #[default]
    Open,
    /// Takes none until it is opened again.
    Paused,
}

impl ActivityState {
    /// The number that MySQL keeps: 1 open, 2 paused.
    pub const fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Paused => 2,
        }
    }

    /// The state with this number, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Open),
            2 => Some(Self::Paused),
            _ => None,
        }
    }

    /// The word that Redis and JSON keep.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Paused => "paused",
        }
    }
}

/// An activity as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Occupancy {
    /// What the organiser set.
    #[serde(flatten)]
    pub activity: Activity,
    /// Which activity.
    pub activity_id: ActivityId,
    /// Places granted and not given back.
    pub taken: u64,
    /// Places left.
    pub remaining: u64,
}

impl Occupancy {
    /// The activity with this many of its places taken.
    pub fn new(activity_id: ActivityId, activity: Activity, taken: u64) -> Self {
        let remaining = u64::from(activity.capacity).saturating_sub(taken);
        Self { activity, activity_id, taken, remaining }
    }
}

/// The activity cannot be as described.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidActivity {
    /// The title does not fit.
    #[error("title must have 1 to {MAX_TITLE_CHARS} characters and no control characters")]
    Title,
    /// The window ends before it begins.
    #[error("closesAt must be later than opensAt")]
    Window,
}

impl Activity {
    /// Checks what the types alone cannot: the title's length, the window's order.
    pub fn validate(self) -> Result<Self, InvalidActivity> {
        let length = self.title.chars().count();
        if !(1..=MAX_TITLE_CHARS).contains(&length) || self.title.chars().any(char::is_control) {
            return Err(InvalidActivity::Title);
        }
        match (self.opens_at, self.closes_at) {
            (Some(opens_at), Some(closes_at)) if closes_at <= opens_at => Err(InvalidActivity::Window),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<Activity, serde_json::Error> {
        serde_json::from_str(body)
    }

    #[test]
    fn an_activity_needs_a_title_and_a_capacity_and_defaults_to_open_without_a_window() {
        let activity = parse(r#"{"title":"Spring hike","capacity":100}"#).unwrap().validate().unwrap();
        assert_eq!((activity.opens_at, activity.closes_at, activity.state), (None, None, ActivityState::Open));
        assert!(parse(r#"{"title":"Spring hike"}"#).is_err());
        assert!(parse(r#"{"capacity":1}"#).is_err());
    }

    #[test]
    fn an_unknown_or_repeated_or_ill_typed_field_is_refused() {
        for body in [
            r#"{"title":"t","capacity":1,"taken":0}"#,
            r#"{"title":"t","title":"u","capacity":1}"#,
            r#"{"title":"t","capacity":-1}"#,
            r#"{"title":"t","capacity":1.5}"#,
            r#"{"title":"t","capacity":4294967296}"#,
            r#"{"title":"t","capacity":"1"}"#,
            r#"{"title":"t","capacity":1,"state":"closed"}"#,
            r#"{"title":"t","capacity":1,"opensAt":"soon"}"#,
        ] {
            assert!(parse(body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_title_or_window_that_cannot_be_is_refused() {
        let named = |title: &str| parse(&serde_json::json!({"title": title, "capacity": 1}).to_string()).unwrap();
        assert!(named(&"é".repeat(200)).validate().is_ok());
        for title in ["", "a\nb", &"t".repeat(201)] {
            assert_eq!(named(title).validate(), Err(InvalidActivity::Title));
        }
        let at = Some(Timestamp::now());
        let closed = Activity { opens_at: at, closes_at: at, ..named("t") };
        assert_eq!(closed.validate(), Err(InvalidActivity::Window));
    }
}
