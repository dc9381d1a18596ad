//! The whole way home of messages that come more than once, in any order, or with poison among them.

use consumer::Report;
use lapin::options::ExchangeDeleteOptions;
use rand::seq::SliceRandom;
use serde_json::json;
use tests::{Sale, World, mq_event, users};

#[tokio::test]
async fn batches_that_come_three_times_and_shuffled_end_in_the_same_rows() {
    let world = World::new().await;
    // In whatever order facts come, there is room in MySQL for each of them.
    let sale = Sale::open(&world, world.signup(), 60).await;
    let people = users(60);
    // Every third gives the place back, and every ninth takes one again.
    for (n, user) in people.iter().enumerate() {
        sale.expect("POST", user, 202).await;
        if n % 3 == 0 {
            sale.expect("DELETE", user, 202).await;
        }
    }
    for user in people.iter().step_by(9) {
        sale.expect("POST", user, 202).await;
    }
    assert_eq!(world.taken(sale.id).await, 47);

    let bodies: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies.len(), 87);
    let mut copies = [bodies.clone(), bodies.clone(), bodies].concat();
    copies.shuffle(&mut rand::rng());
    let consumer = world.consumer();
    for batch in copies.chunks(25) {
        let report = world.consume(&consumer, mq_event(batch)).await.unwrap();
        assert_eq!((report.surplus, report.parked), (0, 0));
    }
    assert_eq!(world.outbox(sale.id).await.len(), 0, "what lost to a newer fact is settled with it");
    sale.comes_home(47).await;
}

#[tokio::test]
async fn all_orders_of_signing_up_cancelling_and_signing_up_end_in_the_last() {
    let world = World::new().await;
    let consumer = world.consumer();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        // Where the batches begin: one batch, two of both kinds, three.
        for cuts in [&[3][..], &[1, 3], &[2, 3], &[1, 2, 3]] {
            let sale = Sale::open(&world, world.signup(), 1).await;
            for (method, sequence) in [("POST", 1), ("DELETE", 1), ("POST", 2)] {
                assert_eq!(sale.expect(method, "alice", 202).await.body["sequence"], sequence);
            }
            let bodies: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
            let bodies = order.map(|index| &bodies[index]);
            let mut from = 0;
            for to in cuts {
                world.consume(&consumer, mq_event(&bodies[from..*to])).await.unwrap();
                from = *to;
            }
            let rows = world.rows(sale.id).await;
            assert_eq!(rows.len(), 1);
            assert_eq!((rows[0].1, rows[0].3), (1, 2), "{order:?} {cuts:?}");
            let told = shared::message::parse(bodies[order.iter().position(|index| *index == 2).unwrap()]).unwrap();
            assert_eq!(rows[0].2, told.version.get(), "{order:?} {cuts:?}");
            assert_eq!((world.outbox(sale.id).await.len(), world.active(sale.id).await), (0, Some(1)));
            if order == [2, 1, 0] {
                sale.comes_home(1).await;
            }
        }
    }
}

#[tokio::test]
async fn poison_among_good_messages_harms_nobody_and_is_parked_again_when_it_is_replayed() {
    let world = World::new().await;
    let sale = Sale::open(&world, world.signup(), 100).await;
    sale.grant("user", 10).await;
    let id = sale.id.to_string();
    let good = json!({
        "activityId": id, "userId": "eve", "version": 7, "sequence": 1, "status": "signed-up",
        "signedUpAt": "2026-11-30T12:00:00.123Z"
    });
    let bad = |field: &str, value: serde_json::Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string().into_bytes()
    };
    let far_ahead = shared::domain::Timestamp::now().as_ms() + 25 * 60 * 60 * 1_000;
    let poison = [
        b"".to_vec(),
        b"\xff\xfe".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        bad("activityId", json!(42)),
        bad("userId", json!("e ve")),
        bad("version", json!(0)),
        bad("version", json!(far_ahead)),
        bad("status", json!("waiting")),
        bad("signedUpAt", json!("yesterday")),
        format!("alice:{id}:soon").into_bytes(),
    ];
    let mut batch: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
    batch.extend(poison.iter().cloned());
    batch.shuffle(&mut rand::rng());
    let report = world.consume(&world.consumer(), mq_event(&batch)).await.unwrap();
    assert_eq!(report, Report { received: 21, written: 10, parked: 11, settled: 10, ..Report::default() });

    let replay = world.reconciled(json!({"replayParked": 100})).await["replay"].clone();
    assert_eq!(replay, json!({"replayed": 11, "mostReplays": 1, "parkedBefore": 11}));
    let report = world.pump().await.unwrap();
    assert_eq!(report, Report { received: 11, parked: 11, ..Report::default() });
    let mut parked: Vec<_> = world.drain_parked().await.into_iter().map(|message| message.body).collect();
    let mut expected = poison.to_vec();
    parked.sort();
    expected.sort();
    assert_eq!(parked, expected, "byte for byte, once each");
    sale.comes_home(10).await;
}

#[tokio::test]
async fn while_poison_cannot_be_parked_the_batch_comes_again_and_the_good_are_home_already() {
    let world = World::new().await;
    let sale = Sale::open(&world, world.signup(), 10).await;
    sale.grant("user", 5).await;
    let mut batch: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
    batch.insert(2, b"poison".to_vec());
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    let exchange = world.topology().dead_letter_exchange();
    channel.exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();

    let consumer = world.consumer();
    for _ in 0..3 {
        let error = world.consume(&consumer, mq_event(&batch)).await.unwrap_err();
        assert!(error.to_string().contains("could not be parked"), "{error}");
        assert_eq!((world.active(sale.id).await, world.outbox(sale.id).await.len()), (Some(5), 0));
    }
    provision::provision(&world.provision()).await.unwrap();
    let report = world.consume(&consumer, mq_event(&batch)).await.unwrap();
    assert_eq!(report, Report { received: 6, stale: 5, parked: 1, ..Report::default() });
    assert_eq!(world.drain_parked().await[0].body, b"poison");
    sale.comes_home(5).await;
}
