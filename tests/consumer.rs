//! The consumer: whatever order, number and company messages come in, the same rows and counts come out.

use consumer::{Report, event::NotAnMqEvent};
use rand::seq::SliceRandom;
use serde_json::json;
use tests::{World, fact_of, message_body, mq_event, random_activity_id, users};

const SIGNED_UP: &str = "signed-up";
const CANCELLED: &str = "cancelled";

#[tokio::test]
async fn a_batch_delivered_three_times_and_shuffled_is_written_once() {
    let world = World::new().await;
    let id = world.open_activity(100).await;
    let mut bodies = world.grant(id, &users(50)).await;
    let consumer = world.consumer();

    let first = world.consume(&consumer, mq_event(&bodies)).await.unwrap();
    assert_eq!(first, Report { received: 50, written: 50, settled: 50, ..Report::default() });
    let rows = world.rows(id).await;
    assert_eq!((rows.len(), world.active(id).await), (50, Some(50)));
    for _ in 0..2 {
        bodies.shuffle(&mut rand::rng());
        let again = world.consume(&consumer, mq_event(&bodies)).await.unwrap();
        assert_eq!(again, Report { received: 50, stale: 50, ..Report::default() });
        assert_eq!((world.rows(id).await, world.active(id).await), (rows.clone(), Some(50)));
    }
}

#[tokio::test]
async fn a_row_says_what_its_message_said() {
    let world = World::new().await;
    let id = world.open_activity(100).await;
    let fact = fact_of(&world.grant(id, &["auth0|5f7c"]).await[0]);
    world.consume(&world.consumer(), mq_event([shared::message::to_json(&fact)])).await.unwrap();
    assert_eq!(world.rows(id).await, [("auth0|5f7c".to_owned(), 1, fact.version.get(), 1)]);
    assert_eq!(world.signup_time(id, "auth0|5f7c").await, fact.signed_up_at.to_string());
}

#[tokio::test]
async fn copies_of_a_message_inside_a_batch_count_once() {
    let world = World::new().await;
    let id = world.open_activity(20).await;
    let mut bodies = world.grant(id, &users(20)).await;
    bodies.extend_from_slice(&bodies.clone());
    bodies.extend_from_slice(&bodies.clone());
    bodies.shuffle(&mut rand::rng());
    let report = world.consume(&world.consumer(), mq_event(&bodies)).await.unwrap();
    assert_eq!(report, Report { received: 80, written: 20, settled: 20, ..Report::default() });
    assert_eq!(world.active(id).await, Some(20));
}

/// Each order of three facts, cut into batches in each way.
#[tokio::test]
async fn a_sign_up_a_cancellation_and_a_new_sign_up_end_the_same_in_every_order() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    let consumer = world.consumer();
    let facts = [(101, 1, SIGNED_UP), (102, 1, CANCELLED), (103, 2, SIGNED_UP)];
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let cuts: [&[usize]; 4] = [&[3], &[1, 2], &[2, 1], &[1, 1, 1]];
    for order in orders {
        for cut in cuts {
            let mut rest = order.as_slice();
            for &size in cut {
                let (batch, left) = rest.split_at(size);
                rest = left;
                let bodies = batch.iter().map(|&fact| {
                    let (version, sequence, status) = facts[fact];
                    message_body(id, "ann", version, sequence, status)
                });
                world.consume(&consumer, mq_event(bodies)).await.unwrap();
                world.active(id).await;
            }
            let end = (world.rows(id).await, world.active(id).await);
            assert_eq!(end, (vec![("ann".to_owned(), 1, 103, 2)], Some(1)), "{order:?} {cut:?}");
            world.forget_rows(id).await;
        }
    }
}

#[tokio::test]
async fn a_sign_up_that_comes_after_its_cancellation_does_not_bring_the_row_back() {
    let world = World::new().await;
    let id = world.open_activity(5).await;
    let consumer = world.consumer();
    let signed_up = world.grant(id, &["ann"]).await.remove(0);
    let cancelled = world.give_back(id, "ann").await;
    let version = fact_of(&cancelled).version.get();

    let first = world.consume(&consumer, mq_event([&cancelled])).await.unwrap();
    assert_eq!(first, Report { received: 1, written: 1, settled: 1, ..Report::default() });
    let late = world.consume(&consumer, mq_event([&signed_up])).await.unwrap();
    assert_eq!(late, Report { received: 1, stale: 1, ..Report::default() });
    assert_eq!(world.rows(id).await, [("ann".to_owned(), 2, version, 1)]);
    assert_eq!(world.active(id).await, Some(0));
}

#[tokio::test]
async fn one_batch_may_be_about_many_activities() {
    let world = World::new().await;
    let (roomy, full, unknown) = (world.open_activity(10).await, world.open_activity(1).await, random_activity_id());
    let consumer = world.consumer();
    world
        .consume(
            &consumer,
            mq_event([message_body(roomy, "old", 1, 1, SIGNED_UP), message_body(full, "old", 1, 1, SIGNED_UP)]),
        )
        .await
        .unwrap();

    let batch = [
        message_body(full, "new", 5, 2, SIGNED_UP),
        message_body(unknown, "new", 5, 1, SIGNED_UP),
        message_body(roomy, "old", 6, 1, CANCELLED),
        message_body(roomy, "new", 5, 2, SIGNED_UP),
        message_body(full, "old", 1, 1, SIGNED_UP),
    ];
    let report = world.consume(&consumer, mq_event(batch)).await.unwrap();
    assert_eq!(report, Report { received: 5, written: 3, stale: 1, surplus: 1, ..Report::default() });
    assert_eq!(world.rows(roomy).await, [("new".to_owned(), 1, 5, 2), ("old".to_owned(), 2, 6, 1)]);
    assert_eq!(world.rows(full).await, [("old".to_owned(), 1, 1, 1)]);
    assert_eq!(world.rows(unknown).await, [("new".to_owned(), 1, 5, 1)]);
    let active = (world.active(roomy).await, world.active(full).await, world.active(unknown).await);
    assert_eq!(active, (Some(1), Some(1), None));
}

#[tokio::test]
async fn an_activity_that_mysql_does_not_know_takes_all_and_is_counted_when_it_comes() {
    let world = World::new().await;
    let id = random_activity_id();
    let bodies = (1..=3).map(|n| message_body(id, &format!("user-{n}"), n, n, SIGNED_UP));
    let cancelled = message_body(id, "user-3", 9, 3, CANCELLED);
    let report = world.consume(&world.consumer(), mq_event(bodies.chain([cancelled]))).await.unwrap();
    assert_eq!(report, Report { received: 4, written: 3, ..Report::default() });
    assert_eq!(world.active(id).await, None);

    let body = r#"{"title": "Spring hike", "capacity": 2}"#;
    let reply = world.activities_call("PUT", &format!("/activities/{id}"), Some("organiser"), body).await;
    assert_eq!((reply.status, world.active(id).await), (201, Some(2)));
}

#[tokio::test]
async fn the_plain_text_of_a_spring_service_is_a_sign_up_that_may_come_again() {
    let world = World::new().await;
    let id = world.open_activity(5).await;
    let consumer = world.consumer();
    let text = format!("1001:{id}:1796040000123");
    let report = world.consume(&consumer, mq_event([&text])).await.unwrap();
    assert_eq!(report, Report { received: 1, written: 1, ..Report::default() });
    assert_eq!(world.rows(id).await, [("1001".to_owned(), 1, 1_796_040_000_123, 0)]);
    assert_eq!(world.signup_time(id, "1001").await, "2026-11-30T12:00:00.123Z");
    let report = world.consume(&consumer, mq_event([&text, &text])).await.unwrap();
    assert_eq!(report, Report { received: 2, stale: 1, ..Report::default() });
    assert_eq!(world.active(id).await, Some(1));
}

/// The message is the one of the AWS documentation, with a body of ours; the second has no properties at all.
#[tokio::test]
async fn an_event_with_null_or_missing_properties_is_read() {
    let world = World::new().await;
    let id = world.open_activity(5).await;
    let data = |user: &str| {
        mq_event([message_body(id, user, 5, 1, SIGNED_UP)])["rmqMessagesByQueue"]["activity.signup.queue::/"][0]["data"]
            .clone()
    };
    let event = json!({
        "eventSource": "aws:rmq",
        "eventSourceArn": "arn:aws:mq:us-west-2:111122223333:broker:pizzaBroker:b-9bcfa592-423a-4942-879d-eb284b418fc8",
        "rmqMessagesByQueue": {
            "pizzaQueue::/": [{
                "basicProperties": {
                    "contentType": "text/plain",
                    "contentEncoding": null,
                    "headers": {
                        "header1": {"bytes": [118, 97, 108, 117, 101, 49]},
                        "header2": {"bytes": [118, 97, 108, 117, 101, 50]},
                        "numberInHeader": 10
                    },
                    "deliveryMode": null,
                    "priority": null,
                    "correlationId": null,
                    "replyTo": null,
                    "expiration": 60000,
                    "messageId": null,
                    "timestamp": "Jan 1, 1970, 12:33:41 AM",
                    "type": null,
                    "userId": "AIDACKCEVSQ6C2EXAMPLE",
                    "appId": null,
                    "clusterId": null,
                    "bodySize": 80
                },
                "redelivered": false,
                "data": data("ann")
            }],
            "otherQueue::/shop": [{"data": data("bob")}, {"basicProperties": null, "data": data("cid")}],
            "idleQueue::/": []
        }
    });
    let report = world.consume(&world.consumer(), event).await.unwrap();
    assert_eq!(report, Report { received: 3, written: 3, ..Report::default() });
    assert_eq!(world.active(id).await, Some(3));
}

#[tokio::test]
async fn an_event_of_another_source_is_refused_by_name() {
    let world = World::new().await;
    let consumer = world.consumer();
    for event in [json!({}), json!({"Records": []}), json!({"rmqMessagesByQueue": []}), json!(null)] {
        let error = world.consume(&consumer, event).await.unwrap_err();
        assert_eq!(error.to_string(), NotAnMqEvent.to_string());
        assert!(error.to_string().contains("rmqMessagesByQueue"));
    }
    let empty = world.consume(&consumer, json!({"rmqMessagesByQueue": {}})).await.unwrap();
    assert_eq!(empty, Report::default());
}

#[tokio::test]
async fn a_note_stays_while_a_newer_fact_of_the_user_waits() {
    let world = World::new().await;
    let id = world.open_activity(5).await;
    let consumer = world.consumer();
    let signed_up = world.grant(id, &["ann"]).await.remove(0);
    let cancelled = world.give_back(id, "ann").await;

    let older = world.consume(&consumer, mq_event([&signed_up])).await.unwrap();
    assert_eq!(older, Report { received: 1, written: 1, ..Report::default() });
    assert_eq!(world.outbox(id).await, ["ann"]);
    let newer = world.consume(&consumer, mq_event([&cancelled])).await.unwrap();
    assert_eq!(newer, Report { received: 1, written: 1, settled: 1, ..Report::default() });
    assert!(world.outbox(id).await.is_empty());
}

/// MySQL has a version that Redis lost in a failover: the older fact is known there, so nothing waits.
#[tokio::test]
async fn a_note_goes_when_mysql_holds_a_newer_fact_than_the_message() {
    let world = World::new().await;
    let id = world.open_activity(5).await;
    let consumer = world.consumer();
    let signed_up = world.grant(id, &["ann"]).await.remove(0);
    let newer = fact_of(&signed_up).version.get() + 1;
    world.consume(&consumer, mq_event([message_body(id, "ann", newer, 1, SIGNED_UP)])).await.unwrap();
    assert!(world.outbox(id).await.is_empty());
    let late = world.consume(&consumer, mq_event([&signed_up])).await.unwrap();
    assert_eq!(late, Report { received: 1, stale: 1, ..Report::default() });
    assert_eq!(world.rows(id).await, [("ann".to_owned(), 1, newer, 1)]);
}
