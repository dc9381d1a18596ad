//! The body of a message on the broker: a [`Signup`], the fact that one reservation established.

use serde::{Deserialize, Serialize};

use crate::domain::{ActivityId, InvalidActivityId, InvalidUserId, Signup, SignupStatus, Timestamp, UserId, Version};

/// The `type` property of a message with this body.
pub const MESSAGE_TYPE: &str = "signup.v1";

/// The `content_type` property of a message with this body.
pub const CONTENT_TYPE: &str = "application/json";

/// Writes the body.
pub fn to_json(signup: &Signup) -> Vec<u8> {
    // Cannot fail: the type holds only numbers and text. An empty body would be parked by the consumer, not lost.
    serde_json::to_vec(signup).unwrap_or_default()
}

/// The `type` property of a [`Barrier`].
pub const BARRIER_TYPE: &str = "barrier.v1";

/// A message that says only that it came out of its queue, and so did all that was published there before it. Body:
/// `{"barrier":1796040000123}`, a number that rises from one barrier to the next; the same goes through every queue, and
/// but for queue 0 it says which: `{"barrier":1796040000123,"queue":2}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Barrier(u64);

impl Barrier {
    /// The barrier with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[derive(Serialize, Deserialize)]
struct BarrierBody {
    barrier: Barrier,
    #[serde(default, skip_serializing_if = "is_zero")]
    queue: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(queue: &u16) -> bool {
    *queue == 0
}

/// Writes the body of a barrier on its way through this queue.
pub fn barrier_to_json(barrier: Barrier, queue: u16) -> Vec<u8> {
    // Cannot fail: the type holds two numbers.
    serde_json::to_vec(&BarrierBody { barrier, queue }).unwrap_or_default()
}

/// Reads a body, if it is a barrier's: the queue through which it was sent, and the barrier.
pub fn parse_barrier(body: &[u8]) -> Option<(u16, Barrier)> {
    let body = body.trim_ascii();
    body.starts_with(br#"{"barrier""#)
        .then(|| serde_json::from_slice::<BarrierBody>(body).ok())
        .flatten()
        .map(|body| (body.queue, body.barrier))
}

/// The body is no sign-up, and never will be: the message can only be parked.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Neither JSON nor the plain text of the Spring services.
    #[error("the body is neither a JSON object nor userId:activityId:epochMillis")]
    UnknownForm,
    /// JSON without a field, with an ill-typed one, or with a value out of its range.
    #[error("the JSON is no sign-up: {0}")]
    Json(#[from] serde_json::Error),
    /// The plain text names no activity.
    #[error(transparent)]
    ActivityId(#[from] InvalidActivityId),
    /// The plain text names no user.
    #[error(transparent)]
    UserId(#[from] InvalidUserId),
    /// The plain text has no time, or one that cannot be a version.
    #[error("epochMillis is not a time in milliseconds since 1970")]
    EpochMillis,
}

/// Reads a body: JSON as [`to_json`] writes it, or the plain text `userId:activityId:epochMillis` (numeric ids) that
/// Spring services of this design send, so that producers can move over one by one.
pub fn parse(body: &[u8]) -> Result<Signup, MessageError> {
    let body = body.trim_ascii();
    if body.first() == Some(&b'{') { Ok(serde_json::from_slice(body)?) } else { parse_plain_text(body) }
}

/// A sign-up whose version is its time.
fn parse_plain_text(body: &[u8]) -> Result<Signup, MessageError> {
    let text = std::str::from_utf8(body).map_err(|_| MessageError::UnknownForm)?;
    let mut fields = text.split(':');
    let (Some(user_id), Some(activity_id), Some(epoch_millis), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(MessageError::UnknownForm);
    };
    let numeric = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !numeric(user_id) {
        return Err(InvalidUserId.into());
    }
    let ms: u64 = Some(epoch_millis)
        .filter(|text| numeric(text))
        .and_then(|text| text.parse().ok())
        .ok_or(MessageError::EpochMillis)?;
    Ok(Signup {
        activity_id: activity_id.parse::<ActivityId>()?,
        user_id: user_id.parse::<UserId>()?,
        version: Version::new(ms).map_err(|_| MessageError::EpochMillis)?,
        sequence: 0,
        status: SignupStatus::SignedUp,
        signed_up_at: Timestamp::from_ms(ms).map_err(|_| MessageError::EpochMillis)?,
    })
}

/// The `message_id` property: the fact's identity, so that copies of one fact can be told from new ones.
pub fn message_id(signup: &Signup) -> String {
    format!("{}/{}/{}", signup.activity_id, signup.user_id, signup.version)
}

/// The W3C trace context of a message, as its `traceparent` header carries it.
#[derive(Clone, Debug)]
pub struct TraceParent(String);

impl TraceParent {
    /// Translates the X-Ray header of a Lambda invocation
    /// (`Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1`), or gives none where it has
    /// another form.
    pub fn from_x_ray(header: &str) -> Option<Self> {
        let field = |name: &str| header.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
        let (time, unique) = field("Root")?.strip_prefix("1-")?.split_once('-')?;
        let parent = field("Parent")?;
        let sampled = field("Sampled").is_some_and(|flag| flag == "1");
        let hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (hex(time, 8) && hex(unique, 24) && hex(parent, 16))
            .then(|| Self(format!("00-{time}{unique}-{parent}-{:02x}", u8::from(sampled)).to_ascii_lowercase()))
    }

    /// The header's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"activityId":"42","userId":"alice","version":1796040000123,"sequence":57,"status":"signed-up","signedUpAt":"2026-11-30T12:00:00.123Z"}"#;

    #[test]
    fn the_body_reads_back_as_it_was_written() {
        let signup = parse(BODY.as_bytes()).unwrap();
        assert_eq!(signup.version.get(), 1_796_040_000_123);
        assert_eq!(String::from_utf8(to_json(&signup)).unwrap(), BODY);
    }

    #[test]
    fn a_barrier_reads_back_as_it_was_written_and_a_sign_up_is_none() {
        let barrier = Barrier::new(1_796_040_000_123);
        for (queue, expected) in [(0, r#"{"barrier":1796040000123}"#), (2, r#"{"barrier":1796040000123,"queue":2}"#)] {
            let body = barrier_to_json(barrier, queue);
            assert_eq!(body, expected.as_bytes());
            assert_eq!(parse_barrier(&body), Some((queue, barrier)));
        }
        for other in [BODY, r#"{"barrier":"x"}"#, r#"{"barrier":-1}"#, r#"{"barrier":1,"queue":-1}"#, "", "1:2:3"] {
            assert_eq!(parse_barrier(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_field_from_a_newer_producer_is_ignored() {
        assert!(parse(BODY.replace('{', r#"{"colour":"red","#).as_bytes()).is_ok());
    }

    #[test]
    fn a_json_body_that_is_no_sign_up_is_refused() {
        for (from, to) in [
            (r#""42""#, "42"),
            (r#""42""#, r#""-1""#),
            (r#""alice""#, r#""al ice""#),
            (r#""alice""#, "null"),
            ("1796040000123", "0"),
            ("1796040000123", "253402300800000"),
            ("1796040000123", "-5"),
            ("57", "1.5"),
            ("signed-up", "maybe"),
            ("2026-11-30T12:00:00.123Z", "yesterday"),
            (r#""sequence":57,"#, ""),
            ("Z\"}", "Z\""),
        ] {
            let body = BODY.replacen(from, to, 1);
            assert_ne!(body, BODY);
            assert!(parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn the_plain_text_of_the_spring_services_is_a_sign_up_whose_version_is_its_time() {
        let signup = parse(b"1001:42:1796040000123\n").unwrap();
        assert_eq!(signup.user_id.as_str(), "1001");
        assert_eq!(signup.activity_id.get(), 42);
        assert_eq!(signup.version.get(), 1_796_040_000_123);
        assert_eq!(signup.signed_up_at.to_string(), "2026-11-30T12:00:00.123Z");
        assert_eq!((signup.sequence, signup.status), (0, SignupStatus::SignedUp));
    }

    #[test]
    fn plain_text_of_another_form_is_refused() {
        for body in
            ["", ":", "1:2", "1:2:3:4", "alice:42:1", "1:x:1", "1:42:", "1:42:-1", "1:42:0", "1:+42:5", "\u{ff}"]
        {
            assert!(parse(body.as_bytes()).is_err(), "{body:?}");
        }
        assert!(parse(b"\xff\xfe").is_err());
        assert!(parse(b"1:42:99999999999999999999").is_err());
    }

    #[test]
    fn an_x_ray_header_becomes_a_traceparent() {
        let header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
        let trace = TraceParent::from_x_ray(header).unwrap();
        assert_eq!(trace.as_str(), "00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-01");
        for header in ["", "Root=1-5759e988-bd86", "Root=2-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8"] {
            assert!(TraceParent::from_x_ray(header).is_none(), "{header}");
        }
    }
}
