//! Who is calling: the claims that the gateway's JWT authorizer verified, never the body, the query or a header.

use lambda_http::request::RequestContext;
use lambda_http::{Request, RequestExt};

use super::Problem;
use crate::config::CallerConfig;
use crate::domain::UserId;

/// A person who is signed in.
#[derive(Debug)]
pub struct Caller {
    /// Who it is.
    pub user_id: UserId,
    scopes: Scopes,
}

#[derive(Debug)]
enum Scopes {
    /// A local run: the header that names the user brings every scope.
    All,
    /// What the access token grants, separated by spaces.
    Granted(String),
}

impl Caller {
    /// The caller of this request, or 401.
    pub fn of(request: &Request, config: &CallerConfig) -> Result<Self, Problem> {
        let (user_id, scopes) = match &config.dev_user_header {
            Some(header) => (dev_user(request, header), Scopes::All),
            None => {
                let claims = claims(request);
                let claim = |name: &str| claims.and_then(|claims| claims.get(name)).cloned();
                (claim(&config.user_id_claim), Scopes::Granted(claim("scope").unwrap_or_default()))
            }
        };
        let user_id = user_id.and_then(|text| UserId::try_from(text).ok()).ok_or_else(Problem::unauthorized)?;
        Ok(Self { user_id, scopes })
    }

    /// 403 unless the access token grants this scope.
    pub fn require_scope(&self, scope: &str) -> Result<(), Problem> {
        let granted = match &self.scopes {
            Scopes::All => true,
            Scopes::Granted(scopes) => scopes.split(' ').any(|granted| names(granted, scope)),
        };
        if granted { Ok(()) } else { Err(Problem::forbidden(scope)) }
    }
}

/// Cognito puts the resource server's name before the scope: `onrush/activities.write`.
fn names(granted: &str, scope: &str) -> bool {
    granted == scope || granted.rsplit_once('/').is_some_and(|(_, name)| name == scope)
}

fn claims(request: &Request) -> Option<&std::collections::HashMap<String, String>> {
    match request.request_context_ref()? {
        RequestContext::ApiGatewayV2(context) => Some(&context.authorizer.as_ref()?.jwt.as_ref()?.claims),
        _ => None,
    }
}

/// A header that comes twice is no answer to who is calling.
fn dev_user(request: &Request, header: &str) -> Option<String> {
    let mut values = request.headers().get_all(header).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(authorizer: serde_json::Value, headers: serde_json::Value) -> Request {
        let event = serde_json::json!({
            "version": "2.0", "routeKey": "$default", "rawPath": "/", "rawQueryString": "user=mallory",
            "headers": headers, "body": "{\"userId\":\"mallory\"}", "isBase64Encoded": false,
            "requestContext": {
                "accountId": "123456789012", "apiId": "api", "domainName": "api.example", "domainPrefix": "api",
                "http": {"method": "POST", "path": "/", "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1",
                    "userAgent": "test"},
                "requestId": "r", "routeKey": "$default", "stage": "$default",
                "time": "30/Nov/2026:12:00:00 +0000", "timeEpoch": 1796040000123_u64,
                "authorizer": authorizer
            }
        });
        lambda_http::request::from_str(&event.to_string()).unwrap()
    }

    fn jwt(claims: serde_json::Value) -> serde_json::Value {
        serde_json::json!({"jwt": {"claims": claims, "scopes": null}})
    }

    fn config(dev_user_header: Option<&str>) -> CallerConfig {
        CallerConfig { user_id_claim: "sub".to_owned(), dev_user_header: dev_user_header.map(str::to_owned) }
    }

    #[test]
    fn the_caller_is_the_verified_claim_and_nothing_else() {
        let spoofed = serde_json::json!({"x-user-id": "mallory"});
        let signed_in = request(jwt(serde_json::json!({"sub": "alice"})), spoofed.clone());
        assert_eq!(Caller::of(&signed_in, &config(None)).unwrap().user_id.as_str(), "alice");
        for authorizer in [serde_json::Value::Null, jwt(serde_json::json!({})), jwt(serde_json::json!({"sub": "a b"}))]
        {
            let refused = Caller::of(&request(authorizer, spoofed.clone()), &config(None)).unwrap_err();
            assert_eq!(refused.status(), 401);
        }
    }

    #[test]
    fn a_local_run_may_trust_one_header_once() {
        let authorizer = serde_json::Value::Null;
        let named = request(authorizer.clone(), serde_json::json!({"x-user-id": "alice"}));
        assert_eq!(Caller::of(&named, &config(Some("x-user-id"))).unwrap().user_id.as_str(), "alice");
        let unnamed = request(authorizer, serde_json::json!({}));
        assert_eq!(Caller::of(&unnamed, &config(Some("x-user-id"))).unwrap_err().status(), 401);
    }

    #[test]
    fn a_scope_counts_only_when_the_token_grants_it() {
        let caller = |scope: &str| {
            let claims = serde_json::json!({"sub": "alice", "scope": scope});
            Caller::of(&request(jwt(claims), serde_json::json!({})), &config(None)).unwrap()
        };
        for scope in ["activities.write", "openid onrush/activities.write"] {
            assert!(caller(scope).require_scope("activities.write").is_ok(), "{scope}");
        }
        for scope in ["", "activities.read", "activities.writer", "activities.write.not"] {
            assert_eq!(caller(scope).require_scope("activities.write").unwrap_err().status(), 403, "{scope}");
        }
    }
}
