//! Two runs of `reconcile` at once, as when the schedule meets a person, or Lambda starts a run twice: each thing is done
//! once.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use shared::reservations::ActivityKeys;
use tests::{World, call, fact_of, mq_event, users};

use crate::crash_surplus::{ended, it_is_archived, overbooked, the_surplus_is_gone};

async fn two_runs(world: &World, request: &Value) -> [Value; 2] {
    tokio::join!(world.reconciled(request.clone()), world.reconciled(request.clone())).into()
}

fn sum(reports: &[Value; 2], pointer: &str) -> u64 {
    reports.iter().filter_map(|report| report.pointer(pointer)?.as_u64()).sum()
}

#[tokio::test]
async fn two_relays_send_each_note_once() {
    let world = World::new().await;
    let id = world.open_activity(2_500).await;
    let people = users(2_500);
    world.grant(id, &people).await;
    world.make_due(id).await;
    let reports = two_runs(&world, &json!({"activityId": id.to_string()})).await;
    assert_eq!(sum(&reports, "/relay/sent"), 2_500, "{reports:?}");
    let sent: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
    let of: BTreeSet<String> = sent.iter().map(|body| fact_of(body).user_id.to_string()).collect();
    assert_eq!((sent.len(), of), (2_500, people.into_iter().collect()));
    world.consume(&world.consumer(), mq_event(sent)).await.unwrap();
    world.assert_sound(id, []).await;
}

/// Redis lost one half of the people, MySQL the other.
#[tokio::test]
async fn two_comparisons_give_each_side_back_what_it_lost_once() {
    let world = World::new().await;
    let id = world.open_activity(3_000).await;
    let people = users(3_000);
    let bodies = world.grant(id, &people).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let (first, second) = people.split_at(1_500);
    let keys = ActivityKeys::of(id);
    let mut lose = redis::pipe();
    lose.hdel(&keys.signups, first).hset(&keys.activity, "taken", 1_500);
    let _: () = lose.query_async(&mut world.redis.clone()).await.unwrap();
    world.sql(&format!("DELETE FROM user_activity WHERE activity_id = {id} AND user_id >= '{}'", second[0])).await;
    world.sql(&format!("UPDATE activity SET active = 1500 WHERE id = {id}")).await;

    let reports = two_runs(&world, &json!({"activityId": id.to_string()})).await;
    let mended: u64 =
        reports.iter().flat_map(|report| report["compare"]["found"].as_array().unwrap()).fold(0, |n, of| {
            n + of["lostInRedis"]["count"].as_u64().unwrap() + of["lostInMysql"]["count"].as_u64().unwrap()
        });
    assert_eq!(mended, 3_000, "{reports:?}");
    assert_eq!(sum(&reports, "/relay/sent") + sum(&reports, "/relayAgain/sent"), 1_500, "{reports:?}");
    let report = world.pump().await.unwrap();
    assert_eq!((report.received, report.written, report.settled), (1_500, 1_500, 1_500));
    assert_eq!((world.taken(id).await, world.active(id).await), (3_000, Some(3_000)));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn two_rebuilds_bring_an_activity_back_once_with_everybody() {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(2).await;
    let ann = call(&world.signup(), "POST", id, "ann").await.body;
    world.pump().await;
    let bob = call(&world.signup(), "POST", id, "bob").await.body;
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    let (one, other) = tokio::join!(world.reconciled_while_pumping(), world.reconciled_while_pumping());
    let rebuilt = [&one, &other].iter().any(|report| report["rebuild"]["rebuilt"] == json!([id.to_string()]));
    assert!(rebuilt, "{one} {other}");
    world.pump().await;
    assert_eq!((world.taken(id).await, world.active(id).await), (2, Some(2)));
    assert_eq!(call(&world.signup(), "POST", id, "zoe").await.code(), "sold-out");
    world.assert_sound(id, [ann, bob]).await;
    assert_eq!(world.reservations().noted_missing().await.unwrap(), []);
    apart.stop().await;
}

#[tokio::test]
async fn two_replays_bring_each_parked_message_back_once() {
    let world = World::new().await;
    let id = world.open_activity(250).await;
    let bodies = world.grant(id, &users(250)).await;
    futures::future::join_all(bodies.iter().map(|body| world.park_by_hand(body))).await;
    let reports = two_runs(&world, &json!({"replayParked": 1_000})).await;
    assert_eq!(sum(&reports, "/replay/replayed"), 250, "{reports:?}");
    assert_eq!((world.queued().await, world.drain_parked().await.len()), (250, 0));
    let report = world.pump().await.unwrap();
    assert_eq!((report.received, report.written, report.settled), (250, 250, 250));
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn two_releases_cancel_no_more_than_the_surplus() {
    let world = World::new().await;
    let id = overbooked(&world).await;
    let reports = two_runs(&world, &json!({"activityId": id.to_string(), "releaseSurplus": true})).await;
    assert_eq!(sum(&reports, "/surplus/0/released"), 2, "{reports:?}");
    for _ in 0..2 {
        world.pump().await;
        world.make_due(id).await;
        world.reconciled_only(id).await;
    }
    the_surplus_is_gone(&world, id).await;
}

#[tokio::test]
async fn two_runs_archive_an_activity_once() {
    let world = World::new().await;
    let id = ended(&world).await;
    let reports = two_runs(&world, &json!({"activityId": id.to_string()})).await;
    // One may find the other at it, and hold back.
    world.reconciled_only(id).await;
    it_is_archived(&world, id).await;
    assert!(reports.iter().all(|report| !report.to_string().contains("\"error\"")), "{reports:?}");
}
