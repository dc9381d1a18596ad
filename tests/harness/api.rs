//! API Gateway events in, replies out.

use lambda_http::{Body, Request, Response};
use serde_json::{Value, json};
use shared::domain::ActivityId;

/// What a caller sees.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: lambda_http::http::HeaderMap,
    /// The body, which is JSON in every reply.
    pub body: Value,
}

impl Reply {
    /// Reads a function's response.
    pub fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let body = serde_json::from_slice(&body).expect("every reply is JSON");
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The stable code of a refusal; checks that it is a problem document that agrees with the status.
    pub fn code(&self) -> &str {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.body["status"], self.status, "{self:?}");
        let code = self.body["code"].as_str().unwrap();
        assert_eq!(self.body["type"], format!("urn:onrush:problem:{code}"));
        assert!(self.body["title"].is_string() && self.body["detail"].is_string(), "{self:?}");
        code
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// The HTTP API event (payload 2.0) as API Gateway sends it, with a verified token of `user`, or none.
pub fn event_for(method: &str, path: &str, user: Option<&str>, body: &str) -> Value {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut event = json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {"content-type": "application/json", "host": "api.example"},
        "requestContext": {
            "accountId": "123456789012", "apiId": "api", "domainName": "api.example", "domainPrefix": "api",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1",
                "userAgent": "test"},
            "requestId": "request", "routeKey": "$default", "stage": "$default",
            "time": "30/Nov/2026:12:00:00 +0000", "timeEpoch": 1_796_040_000_123_u64
        },
        "isBase64Encoded": false
    });
    if !query.is_empty() {
        let parameters = query.split('&').filter_map(|pair| pair.split_once('='));
        event["queryStringParameters"] = parameters.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    }
    if let Some(user) = user {
        let scope = "activities.read activities.write";
        event["requestContext"]["authorizer"] =
            json!({"jwt": {"claims": {"sub": user, "scope": scope}, "scopes": null}});
    }
    if !body.is_empty() {
        event["body"] = json!(body);
    }
    event
}

/// The request that the runtime hands to a function.
pub fn request_of(event: &Value) -> Request {
    lambda_http::request::from_str(&event.to_string()).unwrap()
}

/// The event of a call about sign-ups: `POST` to the collection, anything else to `me`.
pub fn signup_event(method: &str, id: ActivityId, user: &str) -> Value {
    let me = if method == "POST" { "" } else { "/me" };
    event_for(method, &format!("/activities/{id}/signups{me}"), Some(user), "")
}

/// A call about sign-ups.
pub async fn call(app: &signup::App, method: &str, id: ActivityId, user: &str) -> Reply {
    send(app, &signup_event(method, id, user)).await
}

/// What `signup` answers to this event.
pub async fn send(app: &signup::App, event: &Value) -> Reply {
    Reply::of(signup::handle(app, request_of(event)).await)
}

/// What `activities` answers to this event.
pub async fn ask(app: &activities::App, event: &Value) -> Reply {
    Reply::of(activities::handle(app, request_of(event)).await)
}
