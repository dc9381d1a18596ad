//! The edge: who is calling, what they ask for, and how an answer looks.

mod caller;
mod problem;

pub use caller::Caller;
pub use problem::Problem;

use lambda_http::{Body, Request, RequestExt, Response};
use serde::Serialize;

use crate::domain::ActivityId;

/// The parts of the path between slashes: `/activities/42/signups` is `["activities", "42", "signups"]`.
pub fn path_segments(request: &Request) -> Vec<&str> {
    let path = request.raw_http_path();
    path.strip_prefix('/').unwrap_or(path).split('/').collect()
}

/// The activity that the path names.
pub fn activity_id(segment: &str) -> Result<ActivityId, Problem> {
    segment.parse().map_err(|error: crate::domain::InvalidActivityId| Problem::bad_request(error.to_string()))
}

/// A JSON reply.
pub fn json(status: u16, body: &impl Serialize) -> Response<Body> {
    respond(status, "application/json", body)
}

fn respond(status: u16, content_type: &'static str, body: &impl Serialize) -> Response<Body> {
    // Cannot fail: every body is a struct of numbers and text.
    let mut response = Response::new(Body::Text(serde_json::to_string(body).unwrap_or_default()));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
