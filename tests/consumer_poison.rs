//! Messages that can never succeed are put aside, and everything else goes on.

use std::time::Duration;

use consumer::Report;
use serde_json::json;
use shared::broker::PARKED_REASON_HEADER;
use shared::domain::ActivityId;
use tests::{Message, Proxy, World, eventually, message_body, mq_event, users};

fn reason(message: &Message) -> String {
    let headers = message.properties.headers().as_ref().unwrap();
    headers.inner()[PARKED_REASON_HEADER].as_long_string().unwrap().to_string()
}

/// Bodies that are no sign-up and never will be, with a word of the reason.
fn poison(id: ActivityId) -> Vec<(Vec<u8>, &'static str)> {
    let good = String::from_utf8(message_body(id, "eve", 7, 1, "signed-up")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1).into_bytes()
    };
    let activity = format!("\"{id}\"");
    vec![
        (b"".to_vec(), "neither"),
        (b"\x00\xff\xfe binary".to_vec(), "neither"),
        (b"{".to_vec(), "JSON"),
        (b"[1,2,3]".to_vec(), "neither"),
        (b"null".to_vec(), "neither"),
        (with("\"activityId\"", "\"activity\""), "activityId"),
        (with(&activity, "42"), "string"),
        (with(&activity, "\"-42\""), "activity id"),
        (with(&activity, "\"042\""), "activity id"),
        (with(&activity, "\"18446744073709551616\""), "activity id"),
        (with("\"eve\"", "\"\""), "user id"),
        (with("\"eve\"", "\"e ve\""), "user id"),
        (with("\"eve\"", "\"\u{e9}ve\""), "user id"),
        (with("\"eve\"", &format!("\"{}\"", "e".repeat(129))), "user id"),
        (with("\"version\":7", "\"version\":0"), "version"),
        (with("\"version\":7", "\"version\":-7"), "-7"),
        (with("\"version\":7", "\"version\":7.5"), "7.5"),
        (with("\"version\":7", "\"version\":253402300800000"), "version"),
        (with("\"version\":7", "\"version\":18446744073709551615"), "version"),
        (with("\"version\":7", "\"version\":99999999999999999999999999"), "JSON"),
        (with("signed-up", "waiting"), "waiting"),
        (with("2026-11-30T12:00:00.123Z", "yesterday"), "RFC 3339"),
        (format!("alice:{id}:1796040000123").into_bytes(), "user id"),
        (format!("1001:{id}:soon").into_bytes(), "epochMillis"),
        (format!("1001:{id}:0").into_bytes(), "epochMillis"),
        (format!("1001:{id}:1796040000123:x").into_bytes(), "neither"),
    ]
}

#[tokio::test]
async fn poison_of_every_form_is_parked_as_it_came_and_the_good_messages_are_written() {
    let world = World::new().await;
    let id = world.open_activity(100).await;
    let poison = poison(id);
    let good = world.grant(id, &users(poison.len())).await;
    let batch: Vec<_> = poison.iter().zip(&good).flat_map(|((bad, _), good)| [bad, good]).collect();

    let report = world.consume(&world.consumer(), mq_event(batch)).await.unwrap();
    let (bad, good) = (poison.len(), good.len());
    let expected =
        Report { received: bad + good, written: good, parked: bad, settled: good as u64, ..Report::default() };
    assert_eq!(report, expected);
    assert_eq!(world.active(id).await, Some(good as u64));

    let mut parked = world.drain_parked().await;
    assert_eq!(parked.len(), bad);
    for (body, word) in poison {
        let found = parked.iter().position(|message| message.body == body);
        let message = parked.remove(found.unwrap_or_else(|| panic!("not parked: {body:?}")));
        assert!(reason(&message).contains(word), "{:?} {body:?}", reason(&message));
        assert_eq!(*message.properties.delivery_mode(), Some(2));
    }
    assert!(world.drain_signups().await.is_empty());
}

#[tokio::test]
async fn a_message_without_a_readable_body_is_parked_with_what_stands_in_its_place() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    let mut event = mq_event([message_body(id, "ann", 5, 1, "signed-up")]);
    let messages = event["rmqMessagesByQueue"]["activity.signup.queue::/"].as_array_mut().unwrap();
    let odd = [json!({"data": "%%% no base64"}), json!({"redelivered": true}), json!({"data": null}), json!("text")];
    messages.extend_from_slice(&odd);
    let report = world.consume(&world.consumer(), event).await.unwrap();
    assert_eq!(report, Report { received: 5, written: 1, parked: 4, ..Report::default() });
    let parked = world.drain_parked().await;
    let mut bodies: Vec<_> = parked.iter().map(|message| String::from_utf8(message.body.clone()).unwrap()).collect();
    bodies.sort();
    assert_eq!(bodies, ["\"text\"", "%%% no base64", r#"{"data":null}"#, r#"{"redelivered":true}"#]);
    assert!(parked.iter().all(|message| reason(message).contains("base64")));
}

#[tokio::test]
async fn rows_that_mysql_refuses_are_found_by_halving_and_parked_and_the_rest_is_written() {
    let world = World::with_own_database().await;
    world.sql("ALTER TABLE user_activity ADD CONSTRAINT no_guests CHECK (user_id NOT LIKE 'guest-%')").await;
    world.sql("ALTER TABLE user_activity MODIFY user_id VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin").await;
    let id = world.open_activity(1_000).await;
    let too_long = format!("user-00600-{}", "x".repeat(40));
    let mut people = users(997);
    people.extend(["guest-1".to_owned(), "guest-2".to_owned(), too_long.clone()]);
    let bodies = world.grant(id, &people).await;

    let report = world.consume(&world.consumer(), mq_event(&bodies)).await.unwrap();
    assert_eq!(report, Report { received: 1_000, written: 997, parked: 3, settled: 997, ..Report::default() });
    assert_eq!(world.active(id).await, Some(997));
    assert_eq!(world.outbox(id).await, ["guest-1", "guest-2", &too_long]);
    let mut parked = world.drain_parked().await;
    parked.sort_by(|a, b| a.body.cmp(&b.body));
    let mut refused = bodies[997..].to_vec();
    refused.sort();
    assert_eq!(parked.iter().map(|message| message.body.clone()).collect::<Vec<_>>(), refused);
    assert!(parked.iter().all(|message| reason(message).contains("mysql refuses the row")));
}

#[tokio::test]
async fn a_batch_fails_while_poison_cannot_be_parked_and_completes_when_the_broker_is_back() {
    let mut world = World::new().await;
    let id = world.open_activity(10).await;
    let (proxy, url) = Proxy::before(&world.settings["AMQP_URL"]).await;
    world.settings.insert("AMQP_URL".to_owned(), url);
    let consumer = world.consumer();
    let good = world.grant(id, &["ann", "bob"]).await;
    let event = mq_event([&b"poison-1"[..], &good[0], b"poison-2", &good[1], b"poison-3"]);

    proxy.cut();
    for _ in 0..3 {
        let error = world.consume(&consumer, event.clone()).await.unwrap_err();
        assert!(error.to_string().contains("could not be parked"), "{error}");
        assert_eq!((world.rows(id).await.len(), world.active(id).await), (2, Some(2)));
        assert!(world.outbox(id).await.is_empty());
    }
    proxy.heal();
    // The breaker keeps the broker in peace for a moment.
    let (world, consumer) = (&world, &consumer);
    eventually("a run with the broker back", Duration::from_secs(10), || {
        let event = event.clone();
        async move {
            match world.consume(consumer, event).await {
                Ok(report) => report == Report { received: 5, stale: 2, parked: 3, ..Report::default() },
                Err(_) => false,
            }
        }
    })
    .await;
    let mut parked: Vec<_> = world.drain_parked().await.into_iter().map(|message| message.body).collect();
    parked.sort();
    assert_eq!(parked, [b"poison-1", b"poison-2", b"poison-3"]);
}

#[tokio::test]
async fn a_batch_without_poison_needs_no_broker() {
    let mut world = World::new().await;
    let id = world.open_activity(1).await;
    let bodies = world.grant(id, &["ann"]).await;
    let (proxy, url) = Proxy::before(&world.settings["AMQP_URL"]).await;
    proxy.cut();
    world.settings.insert("AMQP_URL".to_owned(), url);
    let consumer = world.consumer();
    consumer.warm_up().await;
    let report = world.consume(&consumer, mq_event(&bodies)).await.unwrap();
    assert_eq!(report, Report { received: 1, written: 1, settled: 1, ..Report::default() });
}

#[tokio::test]
async fn poison_is_parked_once_though_the_batch_comes_again_and_again_while_mysql_is_away() {
    let mut world = World::new().await;
    let id = world.open_activity(1).await;
    let good = world.grant(id, &["ann"]).await;
    let (proxy, url) = Proxy::before(&world.settings["MYSQL_URL"]).await;
    world.settings.insert("MYSQL_URL".to_owned(), url);
    let consumer = world.consumer();
    let event = mq_event([&b"poison"[..], &good[0]]);

    proxy.cut();
    for _ in 0..2 {
        world.consume(&consumer, event.clone()).await.unwrap_err();
    }
    proxy.heal();
    let report = world.consume(&consumer, event).await.unwrap();
    assert_eq!(report, Report { received: 2, written: 1, parked: 1, settled: 1, ..Report::default() });
    assert_eq!(world.drain_parked().await.len(), 1);
}

#[tokio::test]
async fn a_batch_with_poison_fails_where_nothing_was_provisioned() {
    let world = World::unprovisioned(&[]).await;
    let error = world.consume(&world.consumer(), mq_event(["poison"])).await.unwrap_err();
    assert!(error.to_string().contains("could not be parked"), "{error}");
}
