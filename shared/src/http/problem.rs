//! Every refusal, as `application/problem+json` (RFC 9457) with a stable `code`. The mapping from outcomes and errors
//! to statuses is here and nowhere else.

use http::header::{ALLOW, HeaderValue, RETRY_AFTER};
use lambda_http::{Body, Response};
use serde::Serialize;

use super::respond;
use crate::comparison::ComparisonError;
use crate::domain::{ActivityId, Timestamp};
use crate::reservations::ReservationsError;
use crate::store::StoreError;

/// Seconds after which a client may ask again when a part is down.
const RETRY_AFTER_FAILURE_SECS: u16 = 1;

/// Seconds after which a client may ask again when the organiser paused the activity.
const RETRY_AFTER_PAUSE_SECS: u16 = 5;

/// Seconds after which a client may ask again when Redis lost the activity.
const RETRY_AFTER_REBUILD_SECS: u16 = 5;

/// A refusal.
#[derive(Debug)]
pub struct Problem {
    status: u16,
    code: &'static str,
    title: &'static str,
    detail: String,
    opens_at: Option<Timestamp>,
    retry_after_secs: Option<u16>,
    allow: Option<&'static str>,
}

/// The members of the document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opens_at: Option<Timestamp>,
}

impl Problem {
    fn new(status: u16, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { status, code, title, detail, opens_at: None, retry_after_secs: None, allow: None }
    }

    fn retry_after(self, secs: u16) -> Self {
        Self { retry_after_secs: Some(secs), ..self }
    }

    /// 400: the request itself is wrong; sending it again changes nothing.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(400, "bad-request", "The request is malformed", detail)
    }

    /// 401: nobody is signed in.
    pub fn unauthorized() -> Self {
        Self::new(401, "unauthorized", "Sign in first", "The request carries no usable user id.")
    }

    /// 403: signed in, but not for this.
    pub fn forbidden(scope: &str) -> Self {
        Self::new(403, "forbidden", "Not allowed", format!("The access token lacks the scope {scope}."))
    }

    /// 404: no such path.
    pub fn route_not_found() -> Self {
        Self::new(404, "route-not-found", "No such path", "The API has no such path.")
    }

    /// 404: no such activity.
    pub fn activity_not_found(id: ActivityId) -> Self {
        Self::new(404, "activity-not-found", "No such activity", format!("There is no activity {id}."))
    }

    /// 404: the caller holds no sign-up there.
    pub fn not_signed_up(id: ActivityId) -> Self {
        Self::new(404, "not-signed-up", "Not signed up", format!("You are not signed up for activity {id}."))
    }

    /// 405: the path is right, the method is not.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let detail = format!("This path takes {allow}.");
        Self { allow: Some(allow), ..Self::new(405, "method-not-allowed", "Wrong method", detail) }
    }

    /// 409: no place is left.
    pub fn sold_out(id: ActivityId) -> Self {
        Self::new(409, "sold-out", "Sold out", format!("Activity {id} has no place left."))
    }

    /// 409: sign-ups begin later.
    pub fn not_open(id: ActivityId, opens_at: Timestamp) -> Self {
        let detail = format!("Sign-ups for activity {id} open at {opens_at}.");
        Self { opens_at: Some(opens_at), ..Self::new(409, "not-open", "Not open yet", detail) }
    }

    /// 409: the organiser paused the activity.
    pub fn paused(id: ActivityId) -> Self {
        let detail = format!("Sign-ups for activity {id} are paused. Try again in a moment.");
        Self::new(409, "paused", "Paused", detail).retry_after(RETRY_AFTER_PAUSE_SECS)
    }

    /// 409: fewer places were asked for than are taken.
    pub fn capacity_below_taken(id: ActivityId, taken: u64) -> Self {
        let detail = format!("Activity {id} has {taken} places taken; its capacity cannot be lower.");
        Self::new(409, "capacity-below-taken", "Capacity below the places taken", detail)
    }

    /// 410: sign-ups have ended.
    pub fn closed(id: ActivityId) -> Self {
        Self::new(410, "closed", "Closed", format!("Sign-ups for activity {id} have ended."))
    }

    /// 409: the activity ended long ago.
    pub fn archived(id: ActivityId) -> Self {
        let detail = format!("Activity {id} has ended and is archived. Create another one.");
        Self::new(409, "archived", "Archived", detail)
    }

    /// 410: the activity ended long ago; only the record knows who was there.
    pub fn signups_archived(id: ActivityId) -> Self {
        let detail = format!("Activity {id} has ended and its sign-ups are archived. The organiser can look yours up.");
        Self::new(410, "archived", "Archived", detail)
    }

    /// 413: the body is too long to be what this path takes.
    pub fn too_large(limit_bytes: usize) -> Self {
        let detail = format!("The body is longer than {limit_bytes} bytes.");
        Self::new(413, "body-too-large", "The body is too large", detail)
    }

    /// 503: a part is down; what was asked may or may not have happened, and asking again is safe.
    pub fn unavailable() -> Self {
        let detail = "A part of the system does not answer. Ask again: a place that you were given is yours.";
        Self::new(503, "unavailable", "Try again", detail).retry_after(RETRY_AFTER_FAILURE_SECS)
    }

    /// 503: Redis lost the activity, and it is being loaded again from MySQL.
    pub fn rebuilding() -> Self {
        let detail = "The activity is being brought back. Ask again in a moment: a place that you were given is yours.";
        Self::new(503, "unavailable", "Try again", detail).retry_after(RETRY_AFTER_REBUILD_SECS)
    }

    /// 503: MySQL still has to hear of changes before this one can be made.
    pub fn behind() -> Self {
        let detail = "Cancellations are still on their way to the record. Ask again in a moment.";
        Self::new(503, "unavailable", "Try again", detail).retry_after(RETRY_AFTER_FAILURE_SECS)
    }

    /// 500: data that Onrush did not write; asking again changes nothing.
    pub fn internal() -> Self {
        Self::new(500, "internal-error", "Internal error", "This needs an operator. The log says more.")
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The reply.
    pub fn into_response(self) -> Response<Body> {
        let Self { status, code, title, ref detail, opens_at, .. } = self;
        let r#type = format!("urn:onrush:problem:{code}");
        let document = Document { r#type, title, status, detail, code, opens_at };
        let mut response = respond(status, "application/problem+json", &document);
        if let Some(secs) = self.retry_after_secs {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        if let Some(allow) = self.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

impl From<ReservationsError> for Problem {
    fn from(error: ReservationsError) -> Self {
        match &error {
            ReservationsError::Malformed { .. } => {
                tracing::error!(%error, "the reservations are damaged");
                Self::internal()
            }
            ReservationsError::NotLoaded(_) => {
                tracing::warn!(%error, "the activity has to be rebuilt");
                Self::rebuilding()
            }
            ReservationsError::TooFewReplicas { .. }
            | ReservationsError::Unavailable(_)
            | ReservationsError::Login(_)
            | ReservationsError::TimedOut(_) => {
                tracing::warn!(%error, "the reservations do not answer");
                Self::unavailable()
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "the record does not answer");
        match error {
            StoreError::Conflict(_) | StoreError::Unavailable(_) | StoreError::Login(_) | StoreError::TimedOut => {
                Self::unavailable()
            }
            StoreError::RowRefused(_) | StoreError::Schema(_) | StoreError::Malformed(_) => Self::internal(),
        }
    }
}

impl From<ComparisonError> for Problem {
    fn from(error: ComparisonError) -> Self {
        match error {
            ComparisonError::Store(error) => error.into(),
            ComparisonError::Reservations(error) => error.into(),
            error @ (ComparisonError::OutOfTime(_) | ComparisonError::NotRecorded(_)) => {
                tracing::warn!(%error, "the activity is not in redis yet");
                Self::rebuilding()
            }
        }
    }
}
