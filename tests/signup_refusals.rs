//! Requests that `signup` refuses before it asks anybody: the wrong form, the wrong person, the wrong path.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use shared::domain::ActivityId;
use tests::{Reply, World, call, event_for, mq_event, send};

#[tokio::test]
async fn a_malformed_activity_id_is_400() {
    let too_long = "1".repeat(5_000);
    #[rustfmt::skip]
    let ids = [
        "", " ", "-1", "+1", "00", "042", "4 2", "42 ", "1.0", "1e3", "0x2a", "42;", "abc", "me", "null", "*", "..",
        "42%00", "42%0d%0aSET", "%2e%2e", "٤٢", "４２", "42\n", "42\0", "{activity:42}", "activity:42",
        "18446744073709551616", "99999999999999999999", &too_long,
    ];
    let calls = |id: &str| {
        let (places, mine) = (format!("/activities/{id}/signups"), format!("/activities/{id}/signups/me"));
        [("POST", places), ("GET", mine.clone()), ("DELETE", mine)]
            .map(|(method, path)| event_for(method, &path, Some("alice"), ""))
    };
    each_is_refused(400, "bad-request", |id| {
        let encoded: String = id.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
        let of_this_activity = [
            encoded,
            format!("0{id}"),
            format!("+{id}"),
            format!("{{{id}}}"),
            format!("{id}}}:signups"),
            format!("{id}%0a"),
        ];
        of_this_activity.iter().map(String::as_str).chain(ids).flat_map(calls).collect()
    })
    .await;
}

#[tokio::test]
async fn a_body_is_400_because_the_token_says_who_and_the_path_says_what() {
    let bodies = ["x", "[]", "null", "0", "{", r#"{"userId":"mallory"}"#, r#"{"activityId":"43"}"#, "\0"];
    each_is_refused(400, "bad-request", |id| {
        let calls = [("POST", format!("/activities/{id}/signups")), ("DELETE", format!("/activities/{id}/signups/me"))];
        let mut events = Vec::new();
        for (method, path) in calls {
            events.extend(bodies.map(|body| event_for(method, &path, Some("alice"), body)));
            let mut encoded = event_for(method, &path, Some("alice"), &STANDARD.encode(r#"{"userId":"mallory"}"#));
            encoded["isBase64Encoded"] = json!(true);
            events.push(encoded);
        }
        events
    })
    .await;
}

#[tokio::test]
async fn an_empty_json_object_counts_as_no_body() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(1).await, world.signup());
    for (body, status) in [(" {} ", 202), ("{}", 200), (" \r\n", 200)] {
        let event = event_for("POST", &format!("/activities/{id}/signups"), Some("alice"), body);
        assert_eq!(send(&signup, &event).await.status, status, "{body:?}");
    }
}

#[tokio::test]
async fn nobody_without_a_usable_verified_claim_gets_in() {
    let too_long = "u".repeat(129);
    let unusable = ["", " ", "a b", "alice\n", "a\0", "\u{7f}", "é", "张伟", &too_long];
    let authorizers = [
        Value::Null,
        json!({"jwt": null}),
        json!({"jwt": {"claims": {}, "scopes": null}}),
        json!({"jwt": {"claims": {"email": "mallory", "username": "mallory", "Sub": "mallory"}, "scopes": null}}),
        json!({"lambda": {"sub": "mallory"}}),
        json!({"iam": {"userId": "mallory"}}),
    ];
    each_is_refused(401, "unauthorized", |id| {
        let calls = [
            ("POST", format!("/activities/{id}/signups?sub=mallory&user=mallory&userId=mallory")),
            ("GET", format!("/activities/{id}/signups/me?sub=mallory")),
            ("DELETE", format!("/activities/{id}/signups/me?sub=mallory")),
        ];
        let mut events = Vec::new();
        for (method, path) in calls {
            events.extend(unusable.map(|sub| event_for(method, &path, Some(sub), "")));
            let mut nobody = event_for(method, &path, None, "");
            for name in ["x-user-id", "authorization", "sub", "x-amzn-oidc-identity"] {
                nobody["headers"][name] = json!("mallory");
            }
            for authorizer in &authorizers {
                nobody["requestContext"]["authorizer"] = authorizer.clone();
                events.push(nobody.clone());
            }
        }
        events
    })
    .await;
}

#[tokio::test]
async fn another_method_is_405_and_the_reply_names_the_ones_there_are() {
    for (path, methods, allow) in [
        ("signups", ["PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "post", "BREW"], "POST"),
        ("signups/me", ["PUT", "PATCH", "POST", "HEAD", "OPTIONS", "get", "BREW"], "DELETE, GET"),
    ] {
        let replies = each_is_refused(405, "method-not-allowed", |id| {
            methods.map(|method| event_for(method, &format!("/activities/{id}/{path}"), Some("alice"), "")).into()
        });
        for reply in replies.await {
            assert_eq!(reply.header("allow"), Some(allow), "{path}");
        }
    }
}

#[tokio::test]
async fn an_unknown_path_is_404() {
    each_is_refused(404, "route-not-found", |id| {
        let paths = [
            String::new(),
            "/".into(),
            "/activities".into(),
            "/activities/".into(),
            format!("/activities/{id}"),
            format!("/activities/{id}/"),
            format!("/activities/{id}/signups/"),
            format!("/activities/{id}/signups/me/"),
            format!("/activities/{id}/signups/you"),
            format!("/activities/{id}/signups/me/too"),
            format!("/activities/{id}/SIGNUPS"),
            format!("/activities/{id}/signups%2Fme"),
            format!("/Activities/{id}/signups"),
            format!("/activities/{id}/{id}/signups"),
            format!("/activities/../activities/{id}/signups"),
            format!("/prod/activities/{id}/signups"),
        ];
        paths.iter().flat_map(|path| ["POST", "GET"].map(|method| event_for(method, path, Some("alice"), ""))).collect()
    })
    .await;
}

#[tokio::test]
async fn a_user_id_may_look_like_anything_that_is_visible_ascii() {
    let world = World::new().await;
    let (id, signup) = (world.open_activity(10).await, world.signup());
    let longest = "u".repeat(128);
    let users =
        ["{activity:42}", "auth0|5f7c", "';DROP/**/TABLE/**/user_activity;--", "*", "%s%n", "\"}", "1:2:3", &longest];
    for user in users {
        let granted = call(&signup, "POST", id, user).await;
        assert_eq!((granted.status, &granted.body["userId"]), (202, &json!(user)), "{granted:?}");
    }
    let mut expected: Vec<_> = users.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(world.outbox(id).await, expected);
    let messages = world.drain_signups().await;
    let report = world.consume(&world.consumer(), mq_event(messages.iter().map(|m| &m.body))).await.unwrap();
    assert_eq!((report.written, report.parked), (users.len(), 0), "{report:?}");
    assert_eq!(world.rows(id).await.iter().map(|row| row.0.clone()).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn another_claim_can_name_the_user() {
    let mut world = World::new().await;
    let id = world.open_activity(1).await;
    world.settings.insert("USER_ID_CLAIM".into(), "username".into());
    let signup = world.signup();
    let mut event = event_for("POST", &format!("/activities/{id}/signups"), Some("not-this"), "");
    assert_eq!(send(&signup, &event).await.code(), "unauthorized");
    event["requestContext"]["authorizer"]["jwt"]["claims"]["username"] = json!("alice");
    assert_eq!(send(&signup, &event).await.body["userId"], "alice");
}

#[tokio::test]
async fn a_header_names_the_user_only_where_a_local_run_says_so() {
    let mut world = World::new().await;
    let id = world.open_activity(1).await;
    let mut event = event_for("POST", &format!("/activities/{id}/signups"), None, "");
    event["headers"]["x-user-id"] = json!("alice");
    assert_eq!(send(&world.signup(), &event).await.code(), "unauthorized");

    world.settings.insert("DEV_USER_HEADER".into(), "x-user-id".into());
    let signup = world.signup();
    let granted = send(&signup, &event).await;
    assert_eq!((granted.status, &granted.body["userId"]), (202, &json!("alice")));
    for header in ["", "a b", "é"] {
        event["headers"]["x-user-id"] = json!(header);
        assert_eq!(send(&signup, &event).await.code(), "unauthorized", "{header:?}");
    }
}

/// Each event gets this refusal from a function that can reach nothing, so none of them has reached Redis; and from one
/// that can, in which nothing changes. The events are about the activity that `events` is given.
async fn each_is_refused(status: u16, code: &str, events: impl FnOnce(ActivityId) -> Vec<Value>) -> Vec<Reply> {
    let mut world = World::new().await;
    let id = world.open_activity(1_000).await;
    let reachable = world.signup();
    assert_eq!(call(&reachable, "POST", id, "holder").await.status, 202);
    world.drain_signups().await;
    let before = world.redis_dump(id).await;

    let settings = world.settings.clone();
    let nowhere = local::servers::free_port().unwrap();
    world.settings.insert("REDIS_URL".into(), format!("redis://127.0.0.1:{nowhere}"));
    world.settings.insert("AMQP_URL".into(), format!("amqp://127.0.0.1:{nowhere}"));
    let isolated = world.signup();
    world.settings = settings;

    let mut replies = Vec::new();
    for event in events(id) {
        for app in [&isolated, &reachable] {
            let reply = send(app, &event).await;
            assert_eq!((reply.status, reply.code()), (status, code), "{event}");
            replies.push(reply);
        }
    }
    assert_eq!(world.redis_dump(id).await, before, "a refused request changed Redis");
    assert!(world.rows(id).await.is_empty(), "a refused request changed MySQL");
    assert!(world.drain_signups().await.is_empty(), "a refused request was published");
    replies
}
