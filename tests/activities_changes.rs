//! Changes of an activity: under load, at once, stopped half-way, and with a part down. Never oversold, never fresh
//! places for an activity that was lost.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use local::servers::{Redis, RunDir};
use serde_json::{Value, json};
use shared::domain::{Activity, ActivityId};
use shared::reservations::{ACTIVITIES_KEY, ActivityKeys};
use tests::{Proxy, Reply, World, ask, call, event_for, mq_event, one_redis, random_activity_id};

#[tokio::test]
async fn a_capacity_below_the_places_taken_is_409_and_changes_nothing() {
    let world = World::new().await;
    let (id, activities) = (world.open_activity(10).await, world.activities());
    sign_up(&world, id, 0..5).await;
    let before = (world.redis_dump(id).await, capacities(&world, id).await);
    for capacity in [0, 4] {
        let refused = put(&activities, id, &json!({"title": "new", "capacity": capacity, "state": "paused"})).await;
        assert_eq!((refused.status, refused.code()), (409, "capacity-below-taken"));
        assert!(refused.body["detail"].as_str().unwrap().contains("5 places taken"), "{refused:?}");
    }
    assert_eq!((world.redis_dump(id).await, capacities(&world, id).await), before);

    let exact = resize(&activities, id, 5).await;
    assert_eq!((exact.status, &exact.body["remaining"]), (200, &json!(0)));
    assert_eq!(capacities(&world, id).await, (5, 5));
    assert_eq!(call(&world.signup(), "POST", id, "late").await.code(), "sold-out");
    assert_eq!(resize(&activities, id, 6).await.status, 200);
    assert_eq!(call(&world.signup(), "POST", id, "late").await.status, 202);
}

#[tokio::test]
async fn resizing_up_and_down_during_a_rush_never_oversells_and_both_stores_agree() {
    let world = World::new().await;
    let (id, activities, signup) = (world.open_activity(10).await, world.activities(), world.signup());
    let over = AtomicBool::new(false);
    let rush = async {
        let users: Vec<_> = (0..400).map(|n| format!("user-{n}")).collect();
        let mut granted = 0;
        for crowd in users.chunks(20) {
            let replies = join_all(crowd.iter().map(|user| call(&signup, "POST", id, user))).await;
            assert!(replies.iter().all(|reply| [202, 409].contains(&reply.status)), "{replies:?}");
            granted += replies.iter().filter(|reply| reply.status == 202).count();
        }
        over.store(true, Ordering::Relaxed);
        granted as u64
    };
    let resizing = async {
        let mut changes = (0, 0);
        for step in 0..10_000 {
            if over.load(Ordering::Relaxed) && changes.0 >= 5 && changes.1 >= 1 {
                break;
            }
            let taken = world.taken(id).await;
            // Nobody cancels, so the third of them is refused as soon as a place is taken.
            let capacity = match step % 3 {
                0 => taken + 30,
                1 => rand::random_range(taken..=taken + 5),
                _ => taken.saturating_sub(5),
            };
            let reply = resize(&activities, id, capacity).await;
            match reply.status {
                200 => {
                    changes.0 += 1;
                    assert!(reply.body["taken"].as_u64().unwrap() <= capacity, "oversold: {reply:?}");
                }
                409 => changes.1 += 1,
                _ => panic!("{reply:?}"),
            }
        }
        changes
    };
    let consumer = world.consumer();
    let consuming = async {
        while !over.load(Ordering::Relaxed) {
            consume_all(&world, &consumer).await;
        }
    };
    let (granted, (resized, refused), ()) = tokio::join!(rush, resizing, consuming);
    consume_all(&world, &consumer).await;

    assert!(resized >= 5 && refused >= 1, "{resized} resized, {refused} refused: not enough of either");
    assert_eq!((world.taken(id).await, world.active(id).await), (granted, Some(granted)));
    let (in_redis, in_mysql) = capacities(&world, id).await;
    assert!(in_redis == in_mysql && granted <= in_redis, "{granted} of {in_redis} and {in_mysql}");
    assert!(world.outbox(id).await.is_empty());
}

#[tokio::test]
async fn changes_at_the_same_time_happen_one_after_the_other() {
    let world = World::new().await;
    let id = random_activity_id();
    let functions = [world.activities(), world.activities(), world.activities()];
    let changes = (0..24).map(|n| {
        let app = &functions[n % functions.len()];
        async move { put(app, id, &json!({"title": format!("title-{n}"), "capacity": 100 + n})).await }
    });
    let replies = join_all(changes).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1, "created once");
    assert!(replies.iter().all(|reply| [200, 201].contains(&reply.status)), "{replies:?}");
    agree(&world, id).await;
}

#[tokio::test]
async fn a_lower_capacity_waits_for_cancellations_that_are_on_their_way_to_mysql() {
    let world = World::new().await;
    let (id, activities, consumer) = (world.open_activity(3).await, world.activities(), world.consumer());
    sign_up(&world, id, 0..3).await;
    consume_all(&world, &consumer).await;
    assert_eq!(call(&world.signup(), "DELETE", id, "user-0").await.status, 202);

    let early = resize(&activities, id, 2).await;
    assert_eq!((early.status, early.code(), early.header("retry-after")), (503, "unavailable", Some("1")));
    assert_eq!(
        call(&world.signup(), "POST", id, "late").await.code(),
        "sold-out",
        "Redis grants no more than both allow"
    );
    assert_eq!((world.taken(id).await, world.active(id).await), (2, Some(3)));

    consume_all(&world, &consumer).await;
    assert_eq!(resize(&activities, id, 2).await.status, 200);
    assert_eq!(capacities(&world, id).await, (2, 2));
    agree(&world, id).await;
}

#[tokio::test]
async fn a_change_with_mysql_down_is_503_and_changes_nothing_in_redis() {
    let mut world = World::new().await;
    let id = world.open_activity(10).await;
    sign_up(&world, id, 0..3).await;
    let mysql = through_a_proxy(&mut world, "MYSQL_URL").await;
    let activities = world.activities();
    assert_eq!(resize(&activities, id, 11).await.status, 200);
    assert_eq!(resize(&activities, id, 10).await.status, 200);
    let before = world.redis_dump(id).await;

    mysql.cut();
    for capacity in [5, 10, 20] {
        unavailable(&resize(&activities, id, capacity).await);
    }
    let unknown = random_activity_id();
    unavailable(&resize(&activities, unknown, 10).await);
    assert_eq!((world.redis_dump(id).await, world.redis_dump(unknown).await), (before, [None, None, None].into()));
    mysql.heal();
    assert_eq!(resize(&activities, id, 20).await.status, 200);
    assert_eq!(resize(&activities, unknown, 10).await.status, 201);
}

#[tokio::test]
async fn a_change_with_redis_down_cannot_oversell_and_completes_when_it_is_sent_again() {
    let mut world = World::with(&[("REDIS_URL", &one_redis())]).await;
    let id = world.open_activity(10).await;
    let redis = through_a_proxy(&mut world, "REDIS_URL").await;
    let activities = world.activities();
    redis.cut();
    unavailable(&resize(&activities, id, 5).await);
    redis.heal();
    assert_eq!(capacities(&world, id).await, (10, 10), "a lower capacity goes to Redis first");
    redis.cut();
    unavailable(&resize(&activities, id, 20).await);
    redis.heal();
    assert_eq!(capacities(&world, id).await, (10, 20), "a higher capacity goes to MySQL first");
    assert_eq!(resize(&activities, id, 20).await.status, 200);
    agree(&world, id).await;
}

#[tokio::test]
async fn a_creation_that_stopped_before_redis_is_completed_by_the_same_request() {
    let mut world = World::with(&[("REDIS_URL", &one_redis())]).await;
    let _another = world.open_activity(1).await;
    let (redis, id) = (through_a_proxy(&mut world, "REDIS_URL").await, random_activity_id());
    let activities = world.activities();
    redis.cut();
    unavailable(&resize(&activities, id, 10).await);
    assert_eq!((world.active(id).await, world.redis_dump(id).await), (Some(0), vec![None, None, None]));
    redis.heal();
    let completed = resize(&activities, id, 10).await;
    assert_eq!((completed.status, &completed.body["remaining"]), (200, &json!(10)), "{completed:?}");
    assert_eq!(call(&world.signup(), "POST", id, "alice").await.status, 202);
}

#[tokio::test]
async fn a_creation_whose_last_step_got_lost_is_completed_by_the_same_request() {
    let world = World::new().await;
    let (id, activities) = (world.open_activity(10).await, world.activities());
    sign_up(&world, id, 0..3).await;
    // Loaded, but not yet among the known ones.
    let command = redis::cmd("SREM").arg(ACTIVITIES_KEY).arg(id.get()).to_owned();
    let _: () = command.query_async(&mut world.redis.clone()).await.unwrap();
    let completed = resize(&activities, id, 10).await;
    assert_eq!((completed.status, &completed.body["taken"]), (200, &json!(3)));
    let command = redis::cmd("SISMEMBER").arg(ACTIVITIES_KEY).arg(id.get()).to_owned();
    let known: bool = command.query_async(&mut world.redis.clone()).await.unwrap();
    assert!(known);
}

#[tokio::test]
async fn an_activity_that_redis_lost_does_not_come_back_with_fresh_places() {
    let world = World::new().await;
    let (id, activities) = (world.open_activity(10).await, world.activities());
    sign_up(&world, id, 0..3).await;
    let command = redis::cmd("DEL").arg(ActivityKeys::of(id).activity).to_owned();
    let _: () = command.query_async(&mut world.redis.clone()).await.unwrap();
    let before = world.redis_dump(id).await;
    for capacity in [5, 10, 20] {
        lost(&resize(&activities, id, capacity).await);
    }
    assert_eq!(world.redis_dump(id).await, before);
}

#[tokio::test]
async fn no_activity_comes_back_with_fresh_places_when_redis_lost_everything() {
    let dir = RunDir::create("test").unwrap();
    let mut redis = Redis::start(dir.path()).await.unwrap();
    let world = World::with(&[("REDIS_URL", redis.url())]).await;
    let (id, activities) = (world.open_activity(10).await, world.activities());
    sign_up(&world, id, 0..3).await;
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    for capacity in [5, 10, 20] {
        lost(&resize(&activities, id, capacity).await);
    }
    assert_eq!(world.redis_dump(id).await, [None, None, None]);
    redis.stop().await.unwrap();
    dir.finish(true).unwrap();
}

/// Publishes are awaited before a place is granted, so at the end of a rush nothing is on its way but what is queued.
async fn consume_all(world: &World, consumer: &consumer::App) {
    let messages = world.drain_signups().await;
    let report = world.consume(consumer, mq_event(messages.iter().map(|message| &message.body))).await.unwrap();
    assert_eq!((report.surplus, report.parked), (0, 0), "{report:?}");
}

async fn sign_up(world: &World, id: ActivityId, numbers: std::ops::Range<u32>) {
    let signup = world.signup();
    for number in numbers {
        assert_eq!(call(&signup, "POST", id, &format!("user-{number}")).await.status, 202);
    }
}

async fn put(app: &activities::App, id: ActivityId, body: &Value) -> Reply {
    ask(app, &event_for("PUT", &format!("/activities/{id}"), Some("organiser"), &body.to_string())).await
}

async fn resize(app: &activities::App, id: ActivityId, capacity: u64) -> Reply {
    put(app, id, &json!({"title": "t", "capacity": capacity})).await
}

fn unavailable(reply: &Reply) {
    assert_eq!((reply.status, reply.code(), reply.header("retry-after")), (503, "unavailable", Some("1")), "{reply:?}");
}

/// Redis lost the activity, and it will be rebuilt.
fn lost(reply: &Reply) {
    assert_eq!((reply.status, reply.code(), reply.header("retry-after")), (503, "unavailable", Some("5")), "{reply:?}");
}

async fn through_a_proxy(world: &mut World, setting: &str) -> Proxy {
    let (proxy, url) = Proxy::before(&world.settings[setting]).await;
    world.settings.insert(setting.to_owned(), url);
    proxy
}

/// The capacity in Redis and in MySQL.
async fn capacities(world: &World, id: ActivityId) -> (u64, u64) {
    let (redis, mysql) = both(world, id).await;
    (redis.capacity.into(), mysql.capacity.into())
}

/// Both stores hold the same activity.
async fn agree(world: &World, id: ActivityId) {
    let (redis, mysql) = both(world, id).await;
    assert_eq!(redis, mysql);
}

async fn both(world: &World, id: ActivityId) -> (Activity, Activity) {
    let redis = world.reservations().activity(id).await.unwrap().unwrap().activity;
    let mysql = world.store().activity(id).await.unwrap().unwrap().activity;
    (redis, mysql)
}

#[tokio::test]
async fn an_activity_created_after_redis_lost_everything_does_not_bring_the_others_back_fresh() {
    let dir = RunDir::create("test").unwrap();
    let mut redis = Redis::start(dir.path()).await.unwrap();
    let world = World::with(&[("REDIS_URL", redis.url())]).await;
    let (id, activities) = (world.open_activity(10).await, world.activities());
    sign_up(&world, id, 0..3).await;
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    world.open_activity(10).await;
    assert_eq!(call(&world.signup(), "POST", id, "late").await.status, 503, "lost, not unknown");
    lost(&resize(&activities, id, 10).await);
    assert_eq!(world.redis_dump(id).await, [None, None, None]);
    redis.stop().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn the_first_creation_of_all_is_completed_by_the_same_request() {
    let dir = RunDir::create("test").unwrap();
    let mut redis = Redis::start(dir.path()).await.unwrap();
    let mut world = World::with(&[("REDIS_URL", redis.url())]).await;
    let (proxy, id) = (through_a_proxy(&mut world, "REDIS_URL").await, random_activity_id());
    let activities = world.activities();
    proxy.cut();
    unavailable(&resize(&activities, id, 10).await);
    proxy.heal();
    assert_eq!(resize(&activities, id, 10).await.status, 200);
    redis.stop().await.unwrap();
    dir.finish(true).unwrap();
}
