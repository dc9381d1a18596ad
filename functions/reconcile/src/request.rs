//! What a run is asked to do: the schedule asks for everything, a person by hand for one thing.

use serde::Deserialize;
use serde_json::Value;
use shared::domain::ActivityId;

/// The most parked messages that one run replays.
pub const LARGEST_REPLAY: u32 = 10_000;

/// What to do. Nothing set: every step, for all activities, as each minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Request {
    /// Only this activity, and its full comparison.
    pub activity_id: Option<ActivityId>,
    /// Only this: so many messages go from the parked queue back to the exchange.
    pub replay_parked: Option<u32>,
    /// Look and report, change nothing.
    pub dry_run: bool,
    /// Cancel the sign-ups of this activity that found no place in the record.
    pub release_surplus: bool,
}

/// The event asks for nothing that this function does. Nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum BadRequest {
    /// Not the fields that there are.
    #[error(
        "the event is malformed ({0}); it is a schedule's, or {{}} with activityId, releaseSurplus, replayParked or dryRun"
    )]
    Malformed(#[from] serde_json::Error),
    /// Releasing is a decision about one activity.
    #[error("releaseSurplus needs an activityId")]
    SurplusOfWhich,
    /// A replay is about the parked queue, not about an activity.
    #[error("replayParked takes 1 to {LARGEST_REPLAY} messages, and stands alone or with dryRun")]
    Replay,
}

impl Request {
    /// Reads an event: EventBridge's (it has a `detail-type`; nothing in it matters), or one sent by hand.
    pub fn parse(event: &Value) -> Result<Self, BadRequest> {
        if event.is_null() || event.get("detail-type").is_some() {
            return Ok(Self::default());
        }
        // A struct may also be read from a list of its fields.
        let fields: serde_json::Map<String, Value> = serde_json::from_value(event.clone())?;
        let request: Self = serde_json::from_value(fields.into())?;
        match request {
            Self { release_surplus: true, activity_id: None, .. } => Err(BadRequest::SurplusOfWhich),
            Self { replay_parked: Some(count), activity_id, .. }
                if activity_id.is_some() || !(1..=LARGEST_REPLAY).contains(&count) =>
            {
                Err(BadRequest::Replay)
            }
            request => Ok(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_schedule_asks_for_everything() {
        let scheduled = json!({"version": "0", "detail-type": "Scheduled Event", "source": "aws.events", "detail": {}});
        for event in [scheduled, json!({}), json!(null)] {
            assert_eq!(Request::parse(&event).unwrap(), Request::default());
        }
    }

    #[test]
    fn a_person_asks_for_one_thing() {
        let request = Request::parse(&json!({"activityId": "42", "releaseSurplus": true, "dryRun": true})).unwrap();
        assert_eq!(request.activity_id, Some("42".parse().unwrap()));
        assert!(request.release_surplus && request.dry_run);
        assert_eq!(Request::parse(&json!({"replayParked": 100})).unwrap().replay_parked, Some(100));
    }

    #[test]
    fn a_slip_of_the_pen_is_refused_before_anything_is_done() {
        for event in [
            json!({"dryrun": true}),
            json!({"activityId": 42}),
            json!({"activityId": "-1"}),
            json!({"releaseSurplus": true}),
            json!({"replayParked": 0}),
            json!({"replayParked": 10_001}),
            json!({"replayParked": "all"}),
            json!({"replayParked": 5, "activityId": "42"}),
            json!([]),
            json!("42"),
        ] {
            assert!(Request::parse(&event).is_err(), "{event}");
        }
    }
}
