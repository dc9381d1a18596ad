//! Rebuilding: what Redis lost comes back from MySQL, but only after everything that was published before has come out
//! of the queue. Until then nobody is told anything wrong.

use std::time::Duration;

use serde_json::json;
use shared::domain::{ActivityId, Timestamp};
use shared::reservations::ActivityKeys;
use tests::{Apart, World, call, fact_of, mq_event};

/// Redis loses everything; `ann` and `bob` are in MySQL, `bob` cancelled; `cid` is on the way there.
async fn lost() -> (World, Apart, ActivityId) {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(3).await;
    let bodies = world.grant(id, &["ann", "bob"]).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let cancelled = world.give_back(id, "bob").await;
    world.consume(&world.consumer(), mq_event([cancelled])).await.unwrap();
    assert_eq!(call(&world.signup(), "POST", id, "cid").await.status, 202);
    flush(&world).await;
    (world, apart, id)
}

async fn flush(world: &World) {
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
}

#[tokio::test]
async fn a_lost_activity_comes_back_with_everybody_who_was_on_the_way_too() {
    let (world, apart, id) = lost().await;
    let report = world.reconciled_while_pumping().await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{report}");
    assert_eq!(world.taken(id).await, 2);
    let signup = world.signup();
    assert_eq!(call(&signup, "POST", id, "ann").await.body["status"], "confirmed");
    assert_eq!(call(&signup, "POST", id, "cid").await.body["sequence"], 3);
    assert_eq!(call(&signup, "GET", id, "bob").await.body["status"], "cancelled");
    assert_eq!(call(&signup, "POST", id, "dan").await.body["sequence"], 4, "the numbers go on");
    assert_eq!(call(&signup, "POST", id, "eve").await.code(), "sold-out");
    world.pump().await;
    assert_eq!((world.active(id).await, world.taken(id).await), (Some(3), 3));
    assert_eq!(world.reconciled(json!({"activityId": id.to_string()})).await["compare"]["found"], json!([]));
    apart.stop().await;
}

#[tokio::test]
async fn until_the_queue_has_run_out_everybody_is_told_to_ask_again() {
    let (world, apart, id) = lost().await;
    let run = world.reconciled(json!({}));
    let watch = async {
        // The barrier is in the queue behind cid.
        tests::eventually("the barrier is sent", Duration::from_secs(10), async || world.queued().await == 2).await;
        let signup = world.signup();
        for user in ["ann", "cid", "zoe"] {
            for method in ["POST", "GET", "DELETE"] {
                let reply = call(&signup, method, id, user).await;
                assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{method} {user}: {reply:?}");
            }
        }
        assert_eq!(world.redis_dump(id).await, [None, None, None]);
        // A batch that is in the consumer's hands counts as queued: only the barrier's own way out frees the rebuild.
        let messages: Vec<_> = world.drain_signups().await.into_iter().map(|message| message.body).collect();
        assert_eq!(world.queued().await, 0);
        assert_eq!(call(&signup, "POST", id, "zoe").await.status, 503);
        world.consume(&world.consumer(), mq_event(messages)).await.unwrap();
    };
    let (report, ()) = tokio::join!(run, watch);
    assert_eq!(report["rebuild"]["rebuilt"], json!([id.to_string()]), "{report}");
    assert_eq!(call(&world.signup(), "POST", id, "cid").await.status, 200);
    apart.stop().await;
}

#[tokio::test]
async fn an_old_barrier_does_not_stand_for_a_new_loss() {
    let (world, apart, id) = lost().await;
    world.reconciled_while_pumping().await;
    assert_eq!(call(&world.signup(), "POST", id, "dan").await.status, 202);
    // Only the activity is lost this time; dan is still in the queue.
    let keys = ActivityKeys::of(id);
    let lost: u64 = redis::cmd("DEL")
        .arg(&[keys.activity, keys.signups, keys.outbox])
        .query_async(&mut world.redis.clone())
        .await
        .unwrap();
    assert_eq!(lost, 3);
    let report = world.reconciled_while_pumping().await;
    assert_eq!(report["rebuild"]["rebuilt"], json!([id.to_string()]), "{report}");
    assert_eq!(call(&world.signup(), "POST", id, "dan").await.status, 200, "dan is back");
    apart.stop().await;
}

#[tokio::test]
async fn receipts_that_are_left_over_keep_their_places_and_their_way_to_mysql() {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(3).await;
    let bodies = world.grant(id, &["ann"]).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let waiting = world.grant(id, &["bob"]).await;
    let lost: u64 =
        redis::cmd("DEL").arg(ActivityKeys::of(id).activity).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(lost, 1);
    world.reconciled_while_pumping().await;
    assert_eq!((world.taken(id).await, world.outbox(id).await), (2, vec!["bob".to_owned()]));
    let again = call(&world.signup(), "POST", id, "bob").await;
    assert_eq!((again.status, &again.body["sequence"]), (200, &json!(fact_of(&waiting[0]).sequence)));
    assert_eq!(call(&world.signup(), "POST", id, "cid").await.body["sequence"], 3);
    apart.stop().await;
}

#[tokio::test]
async fn an_activity_that_nobody_mentions_is_never_unknown_while_others_come_back() {
    let (world, apart) = World::apart(&[]).await;
    let ids = [world.open_activity(1).await, world.open_activity(1).await, world.open_activity(1).await];
    flush(&world).await;
    // By hand, one of them only.
    let run = world.reconciled(json!({"activityId": ids[0].to_string()}));
    let pump = async {
        tests::eventually("the barrier is sent", Duration::from_secs(10), async || world.queued().await == 1).await;
        world.pump().await;
    };
    let (report, ()) = tokio::join!(run, pump);
    assert_eq!(report["rebuild"]["rebuilt"], json!([ids[0].to_string()]), "{report}");
    assert_eq!(call(&world.signup(), "POST", ids[0], "ann").await.status, 202);
    for id in &ids[1..] {
        assert_eq!(call(&world.signup(), "POST", *id, "ann").await.status, 503, "lost, not unknown");
    }
    apart.stop().await;
}

#[tokio::test]
async fn rows_that_came_before_their_activity_hold_their_places_from_its_first_moment() {
    let world = World::new().await;
    let id = tests::random_activity_id();
    let now = Timestamp::now().as_ms();
    let bodies = [format!("1001:{id}:{now}"), format!("1002:{id}:{}", now + 1)];
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let put = |capacity: u32| {
        let body = json!({"title": "t", "capacity": capacity}).to_string();
        let (world, path) = (&world, format!("/activities/{id}"));
        async move { world.activities_call("PUT", &path, Some("organiser"), &body).await }
    };
    assert_eq!(put(1).await.code(), "capacity-below-taken");
    let created = put(3).await;
    assert_eq!((created.status, &created.body["taken"]), (201, &json!(2)), "{created:?}");
    assert_eq!(call(&world.signup(), "POST", id, "1001").await.status, 200);
    assert_eq!(call(&world.signup(), "POST", id, "ann").await.status, 202);
    assert_eq!(call(&world.signup(), "POST", id, "bob").await.code(), "sold-out");
}
