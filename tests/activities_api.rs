//! The answers of `activities`: creating, changing, showing and listing, and who may.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use serde_json::{Value, json};
use shared::domain::{ActivityId, Timestamp};
use shared::reservations::ActivityKeys;
use tests::{Proxy, Reply, World, ask, call, empty_database, event_for, eventually, one_redis, random_activity_id};

#[tokio::test]
async fn a_put_creates_with_201_and_changes_with_200_in_both_stores() {
    let world = World::new().await;
    let (id, activities) = (random_activity_id(), world.activities());
    let mut wanted = json!({"title": "Frühlings-Wanderung 🌄", "capacity": 100, "opensAt": "2026-12-01T13:00:00+01:00",
        "closesAt": "2026-12-24T18:00:00.5Z", "state": "paused"});
    let created = put(&activities, id, &wanted).await;
    wanted["opensAt"] = json!("2026-12-01T12:00:00.000Z");
    wanted["closesAt"] = json!("2026-12-24T18:00:00.500Z");
    wanted["activityId"] = json!(id.to_string());
    wanted["taken"] = json!(0);
    wanted["remaining"] = json!(100);
    assert_eq!((created.status, created.body), (201, wanted));
    assert_eq!(
        stored(&world, id).await,
        ["100", "2", "2026-12-01 12:00:00.000", "2026-12-24 18:00:00.500", "Frühlings-Wanderung 🌄"]
    );
    assert_eq!(
        in_redis(&world, id).await,
        ["100", "paused", "1796126400000", "1798135200500", "Frühlings-Wanderung 🌄", "0", "0"]
    );

    let changed = put(&activities, id, &json!({"title": "Hike", "capacity": 7})).await;
    let wanted = json!({"title": "Hike", "capacity": 7, "opensAt": null, "closesAt": null, "state": "open",
        "activityId": id.to_string(), "taken": 0, "remaining": 7});
    assert_eq!((changed.status, changed.body), (200, wanted));
    assert_eq!(stored(&world, id).await, ["7", "1", "", "", "Hike"]);
    assert_eq!(in_redis(&world, id).await, ["7", "open", "", "", "Hike", "0", "0"]);
}

#[tokio::test]
async fn a_malformed_activity_is_400_and_leaves_nothing_behind() {
    let world = World::new().await;
    let (id, activities) = (random_activity_id(), world.activities());
    let long_title = json!({"title": "t".repeat(201), "capacity": 1}).to_string();
    #[rustfmt::skip]
    let bodies = [
        "", "x", "[]", r#"["t",1,null,null,"open"]"#, "null", "{}", "{", r#"{"title":"t"}"#, r#"{"capacity":1}"#,
        r#"{"title":"","capacity":1}"#, r#"{"title":"a\nb","capacity":1}"#, r#"{"title":"a\u0000","capacity":1}"#,
        r#"{"title":null,"capacity":1}"#, r#"{"title":7,"capacity":1}"#, &long_title,
        r#"{"title":"t","capacity":-1}"#, r#"{"title":"t","capacity":1.5}"#, r#"{"title":"t","capacity":"1"}"#,
        r#"{"title":"t","capacity":4294967296}"#, r#"{"title":"t","capacity":null}"#, r#"{"title":"t","capacity":1e3}"#,
        r#"{"title":"t","capacity":1,"state":"closed"}"#, r#"{"title":"t","capacity":1,"state":null}"#,
        r#"{"title":"t","capacity":1,"opensAt":"soon"}"#, r#"{"title":"t","capacity":1,"opensAt":1796040000123}"#,
        r#"{"title":"t","capacity":1,"opensAt":"2026-12-01"}"#, r#"{"title":"t","capacity":1,"closesAt":""}"#,
        r#"{"title":"t","capacity":1,"closesAt":"1969-12-31T23:59:59Z"}"#,
        r#"{"title":"t","capacity":1,"opensAt":"2026-12-02T00:00:00Z","closesAt":"2026-12-01T00:00:00Z"}"#,
        r#"{"title":"t","capacity":1,"opensAt":"2026-12-01T00:00:00Z","closesAt":"2026-12-01T00:00:00Z"}"#,
        r#"{"title":"t","capacity":1,"taken":0}"#, r#"{"title":"t","capacity":1,"colour":"red"}"#,
        r#"{"title":"t","title":"u","capacity":1}"#, r#"{"title":"t","capacity":1} {}"#,
    ];
    for body in bodies {
        let reply = ask(&activities, &event_for("PUT", &format!("/activities/{id}"), Some("organiser"), body)).await;
        assert_eq!((reply.status, reply.code()), (400, "bad-request"), "{body}");
    }
    let endless = json!({"title": "t", "capacity": 1, "filler": "x".repeat(8 * 1024)});
    let reply = put(&activities, id, &endless).await;
    assert_eq!((reply.status, reply.code()), (413, "body-too-large"));
    for id in ["-1", "042", "1e3", "18446744073709551616", "{42}", "%34%32", "me"] {
        for method in ["PUT", "GET"] {
            let body = r#"{"title":"t","capacity":1}"#;
            let reply = ask(&activities, &event_for(method, &format!("/activities/{id}"), Some("o"), body)).await;
            assert_eq!((reply.status, reply.code()), (400, "bad-request"), "{method} {id}");
        }
    }
    assert_eq!(world.redis_dump(id).await, [None, None, None]);
    assert_eq!(world.active(id).await, None);
}

#[tokio::test]
async fn an_activity_is_public_and_may_be_kept_for_a_second() {
    let world = World::new().await;
    let id = world.open_activity(10).await;
    assert_eq!(call(&world.signup(), "POST", id, "alice").await.status, 202);
    let shown = show(&world.activities(), id).await;
    let expected = json!({"title": "Spring hike", "capacity": 10, "opensAt": null, "closesAt": null, "state": "open",
        "activityId": id.to_string(), "taken": 1, "remaining": 9});
    assert_eq!((shown.status, &shown.body), (200, &expected));
    assert_eq!(shown.header("cache-control"), Some("max-age=1"));

    let unknown = show(&world.activities(), random_activity_id()).await;
    assert_eq!((unknown.status, unknown.code(), unknown.header("cache-control")), (404, "activity-not-found", None));
}

#[tokio::test]
async fn an_activity_is_shown_with_redis_down_and_with_mysql_down_but_not_without_both() {
    let mut world = World::with(&[("REDIS_URL", &one_redis())]).await;
    let id = world.open_activity(10).await;
    let signup = world.signup();
    for user in ["alice", "bob"] {
        assert_eq!(call(&signup, "POST", id, user).await.status, 202);
    }
    // MySQL knows one of the two.
    let messages = world.drain_signups().await;
    world.consume(&world.consumer(), tests::mq_event([&messages[0].body])).await.unwrap();
    let redis = through_a_proxy(&mut world, "REDIS_URL").await;
    let mysql = through_a_proxy(&mut world, "MYSQL_URL").await;
    let activities = world.activities();
    let taken = async || {
        let shown = show(&activities, id).await;
        assert_eq!((shown.status, shown.header("cache-control")), (200, Some("max-age=1")), "{shown:?}");
        (shown.body["taken"].as_u64().unwrap(), shown.body["remaining"].as_u64().unwrap())
    };
    assert_eq!(taken().await, (2, 8));
    redis.cut();
    assert_eq!(taken().await, (1, 9), "the record answers");
    assert_eq!(show(&activities, random_activity_id()).await.code(), "activity-not-found");
    mysql.cut();
    let shown = show(&activities, id).await;
    assert_eq!((shown.status, shown.code(), shown.header("retry-after")), (503, "unavailable", Some("1")));
    redis.heal();
    assert_eq!(taken().await, (2, 8), "Redis answers");
}

#[tokio::test]
async fn a_page_lists_activities_in_the_order_of_their_numbers_and_says_where_the_next_begins() {
    let world = World::with_own_database().await;
    let activities = world.activities();
    // Their texts would sort otherwise.
    let random = u64::from(rand::random::<u32>());
    let ids = [random, random + 10_000_000_000, 1 << 63, u64::MAX - random].map(ActivityId::new);
    for id in ids {
        assert_eq!(put(&activities, id, &json!({"title": format!("t{id}"), "capacity": 3})).await.status, 201);
    }
    assert_eq!(call(&world.signup(), "POST", ids[1], "alice").await.status, 202);

    let all = list(&activities, "").await;
    assert_eq!((listed(&all), &all.body["next"]), (ids.to_vec(), &Value::Null));
    assert_eq!(all.body["activities"][1], show(&activities, ids[1]).await.body, "counts are those of Redis");
    assert_eq!(all.body["activities"][1]["taken"], 1);

    let mut seen = Vec::new();
    let mut query = "limit=3".to_owned();
    for expected in [3, 1] {
        let page = list(&activities, &query).await;
        assert_eq!(listed(&page).len(), expected);
        seen.extend(listed(&page));
        query = format!("limit=3&after={}", page.body["next"].as_str().unwrap_or_default());
    }
    assert_eq!(seen, ids);
    let exact = list(&activities, "limit=4").await;
    assert_eq!((listed(&exact).len(), &exact.body["next"]), (4, &Value::Null), "no page follows a full last one");
    assert!(listed(&list(&activities, &format!("after={}", u64::MAX)).await).is_empty());
    assert_eq!(list(&activities, "limit=100").await.status, 200);
    for query in ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=", "after=", "after=x", "after=-1", "after=01"]
    {
        let refused = list(&activities, query).await;
        assert_eq!((refused.status, refused.code()), (400, "bad-request"), "{query}");
    }
}

#[tokio::test]
async fn a_page_needs_mysql_and_takes_the_counts_of_the_record_where_redis_is_down() {
    let settings = [("REDIS_URL", one_redis()), ("MYSQL_URL", empty_database().await)];
    let mut world = World::with(&settings.each_ref().map(|(key, value)| (*key, value.as_str()))).await;
    let id = world.open_activity(3).await;
    assert_eq!(call(&world.signup(), "POST", id, "alice").await.status, 202);
    let redis = through_a_proxy(&mut world, "REDIS_URL").await;
    let mysql = through_a_proxy(&mut world, "MYSQL_URL").await;
    let activities = world.activities();
    assert_eq!(list(&activities, "").await.body["activities"][0]["taken"], 1);
    redis.cut();
    assert_eq!(list(&activities, "").await.body["activities"][0]["taken"], 0);
    mysql.cut();
    assert_eq!(list(&activities, "").await.code(), "unavailable");
    mysql.heal();
    redis.heal();
    assert_eq!(list(&activities, "").await.body["activities"][0]["taken"], 1);
}

#[tokio::test]
async fn a_change_needs_the_scope_to_write_and_a_page_the_scope_to_read() {
    let world = World::new().await;
    let (id, activities) = (random_activity_id(), world.activities());
    let body = r#"{"title":"t","capacity":1}"#;
    let path = format!("/activities/{id}");
    for (method, path, scope) in [("PUT", path.as_str(), "activities.write"), ("GET", "/activities", "activities.read")]
    {
        let nobody = ask(&activities, &event_for(method, path, None, body)).await;
        assert_eq!((nobody.status, nobody.code()), (401, "unauthorized"));
        let mut event = event_for(method, path, Some("organiser"), body);
        let other = if method == "PUT" { "activities.read" } else { "activities.write" };
        for scopes in [json!(""), json!(other), json!(format!("{scope}.not")), json!("aws.cognito.signin.user.admin")] {
            event["requestContext"]["authorizer"]["jwt"]["claims"]["scope"] = scopes;
            let refused = ask(&activities, &event).await;
            assert_eq!((refused.status, refused.code()), (403, "forbidden"), "{event}");
            assert!(refused.body["detail"].as_str().unwrap().contains(scope));
        }
        event["requestContext"]["authorizer"]["jwt"]["claims"].as_object_mut().unwrap().remove("scope");
        assert_eq!(ask(&activities, &event).await.status, 403);
        assert_eq!(world.active(id).await.is_some(), method == "GET", "only what was allowed has happened");
        event["requestContext"]["authorizer"]["jwt"]["claims"]["scope"] = json!(format!("openid onrush/{scope}"));
        assert!(ask(&activities, &event).await.status < 300);
    }
}

#[tokio::test]
async fn other_methods_are_405_and_other_paths_404() {
    let world = World::new().await;
    let (id, activities) = (world.open_activity(1).await, world.activities());
    for (path, allow) in [(format!("/activities/{id}"), "GET, PUT"), ("/activities".to_owned(), "GET")] {
        for method in ["POST", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
            let reply = ask(&activities, &event_for(method, &path, Some("organiser"), "")).await;
            assert_eq!((reply.status, reply.code()), (405, "method-not-allowed"), "{method} {path}");
            assert_eq!(reply.header("allow"), Some(allow));
        }
    }
    for path in ["/", "", "/nothing", "/Activities", &format!("/activities/{id}/"), &format!("/activities/{id}/x")] {
        let reply = ask(&activities, &event_for("GET", path, Some("organiser"), "")).await;
        assert_eq!((reply.status, reply.code()), (404, "route-not-found"), "{path}");
    }
}

#[tokio::test]
async fn sign_ups_begin_at_the_opening_and_end_at_the_closing() {
    let world = World::new().await;
    let signup = world.signup();
    let now_ms = Timestamp::now().as_ms();
    let [opens_at, closes_at] = [now_ms + 600, now_ms + 1_200].map(|ms| Timestamp::from_ms(ms).unwrap());
    let body = json!({"title": "t", "capacity": 1000, "opensAt": opens_at.to_string(),
        "closesAt": closes_at.to_string()});
    let id = world.put_activity(body).await;

    let refused = call(&signup, "POST", id, "alice").await;
    assert_eq!((refused.code(), &refused.body["opensAt"]), ("not-open", &json!(opens_at.to_string())));
    let granted = async || call(&signup, "POST", id, "alice").await.status == 202;
    eventually("the opening", Duration::from_secs(5), granted).await;
    assert!(signed_up_at(&call(&signup, "GET", id, "alice").await) >= opens_at);

    // Everybody is let in until somebody is told that it has closed; nobody's place is later than that.
    let mut last = String::new();
    for n in 0.. {
        let user = format!("user-{n}");
        match call(&signup, "POST", id, &user).await.status {
            202 => last = user,
            410 => break,
            other => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(Timestamp::now() >= closes_at);
    assert!(signed_up_at(&call(&signup, "GET", id, &last).await) < closes_at);
}

#[tokio::test]
async fn pause_and_resume_count_from_the_next_request_on() {
    let world = World::new().await;
    let (signup, activities) = (world.signup(), world.activities());
    let id = world.open_activity(100).await;
    for n in 0..5 {
        let user = format!("user-{n}");
        let paused = put(&activities, id, &json!({"title": "t", "capacity": 100, "state": "paused"})).await;
        assert_eq!((paused.status, &paused.body["state"], &paused.body["taken"]), (200, &json!("paused"), &json!(n)));
        assert_eq!(call(&signup, "POST", id, &user).await.code(), "paused");
        assert_eq!(put(&activities, id, &json!({"title": "t", "capacity": 100})).await.body["state"], "open");
        assert_eq!(call(&signup, "POST", id, &user).await.status, 202);
    }
}

async fn put(app: &activities::App, id: ActivityId, body: &Value) -> Reply {
    ask(app, &event_for("PUT", &format!("/activities/{id}"), Some("organiser"), &body.to_string())).await
}

async fn show(app: &activities::App, id: ActivityId) -> Reply {
    ask(app, &event_for("GET", &format!("/activities/{id}"), None, "")).await
}

async fn list(app: &activities::App, query: &str) -> Reply {
    ask(app, &event_for("GET", &format!("/activities?{query}"), Some("organiser"), "")).await
}

fn listed(page: &Reply) -> Vec<ActivityId> {
    let activities = page.body["activities"].as_array().unwrap();
    activities.iter().map(|activity| activity["activityId"].as_str().unwrap().parse().unwrap()).collect()
}

fn signed_up_at(reply: &Reply) -> Timestamp {
    reply.body["signedUpAt"].as_str().unwrap().parse().unwrap()
}

async fn through_a_proxy(world: &mut World, setting: &str) -> Proxy {
    let (proxy, url) = Proxy::before(&world.settings[setting]).await;
    world.settings.insert(setting.to_owned(), url);
    proxy
}

/// What MySQL keeps of an activity: capacity, state, window, title.
async fn stored(world: &World, id: ActivityId) -> [String; 5] {
    let sql = "SELECT CAST(capacity AS CHAR), CAST(state AS CHAR), COALESCE(CAST(opens_at AS CHAR), ''), \
        COALESCE(CAST(closes_at AS CHAR), ''), title FROM activity WHERE id = ?";
    let row: (String, String, String, String, String) =
        world.mysql.get_conn().await.unwrap().exec_first(sql, (id.get(),)).await.unwrap().unwrap();
    row.into()
}

/// What Redis keeps of it, and the counts.
async fn in_redis(world: &World, id: ActivityId) -> [String; 7] {
    let fields = ["capacity", "state", "opens_at_ms", "closes_at_ms", "title", "taken", "sequence"];
    let mut command = redis::cmd("HMGET");
    let values: Vec<Option<String>> =
        command.arg(ActivityKeys::of(id).activity).arg(&fields).query_async(&mut world.redis.clone()).await.unwrap();
    values.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().try_into().unwrap()
}
