//! Several queues, as `reconcile` sees them: each is relayed by itself, and a rebuild waits for them all.

use std::time::Duration;

use serde_json::{Value, json};
use shared::domain::{ActivityId, Timestamp};
use shared::reservations::ActivityKeys;
use tests::{Apart, World, call, eventually, invocation, mq_event, users};

/// Longer than a barrier takes on a busy machine; a run that waits for one in vain takes as long.
const SHORT: Duration = Duration::from_secs(20);

/// The first user of each of these queues.
fn one_of_each(world: &World, queues: u16) -> Vec<String> {
    let topology = world.topology();
    let of = |queue| users(1_000).into_iter().find(|user| topology.shard_of(&user.parse().unwrap()) == queue).unwrap();
    (0..queues).map(of).collect()
}

#[tokio::test]
async fn a_queue_with_a_backlog_holds_back_the_notes_of_its_own_users_only() {
    let world = World::with(&[("OUTBOX_GRACE_SECS", "1"), ("SIGNUP_QUEUES", "3")]).await;
    let id = world.open_activity(10).await;
    let people = one_of_each(&world, 3);
    world.grant(id, &people).await;
    world.make_due(id).await;
    // Somebody else waits in queue 1.
    let other = world.open_activity(1).await;
    assert_eq!(call(&world.signup(), "POST", other, &people[1]).await.status, 202);

    let relay = world.reconciled_only(id).await["relay"].clone();
    assert_eq!((&relay["overdue"], &relay["sent"]), (&json!(3), &json!(2)), "{relay}");
    assert_eq!((&relay["backlog"], &relay["backlogs"]), (&json!(1), &json!([0, 1, 0])), "{relay}");
    assert_eq!(world.queued_in_each().await, [1, 1, 1]);

    // Once it has run out, the note that was held back is due at once.
    world.pump_queue(1).await;
    let relay = world.reconciled_only(id).await["relay"].clone();
    assert_eq!((&relay["overdue"], &relay["sent"]), (&json!(1), &json!(1)), "{relay}");
    world.pump().await;
    assert_eq!((world.active(id).await, world.outbox(id).await.len()), (Some(3), 0));
}

/// So many sign-ups whose notes are due; how many of them belong to queue 1.
async fn notes(world: &World, id: ActivityId, count: usize) -> u64 {
    let (keys, now_ms) = (ActivityKeys::of(id), Timestamp::now().as_ms());
    let (topology, people, mut pipeline) = (world.topology(), users(count), redis::pipe());
    for (n, user) in people.iter().enumerate() {
        pipeline.hset(&keys.signups, user, format!("1 {} {}", now_ms - 5_000, n + 1)).ignore();
        pipeline.zadd(&keys.outbox, user, 1).ignore();
    }
    let _: () = pipeline.query_async(&mut world.redis.clone()).await.unwrap();
    people.iter().filter(|user| topology.shard_of(&user.parse().unwrap()) == 1).count() as u64
}

#[tokio::test]
async fn a_thousand_notes_that_are_held_back_do_not_keep_those_behind_them() {
    let world = World::with(&[("OUTBOX_GRACE_SECS", "1"), ("SIGNUP_QUEUES", "2")]).await;
    let id = world.open_activity(5_000).await;
    let of_queue_1 = notes(&world, id, 3_000).await;
    let first = one_of_each(&world, 2).remove(0);
    let other = world.open_activity(1).await;
    assert_eq!(call(&world.signup(), "POST", other, &first).await.status, 202);
    let relay = world.reconciled_only(id).await["relay"].clone();
    assert_eq!((&relay["overdue"], &relay["sent"]), (&json!(3_000), &json!(of_queue_1)), "{relay}");
    assert_eq!(u64::from(world.queued_in_each().await[1]), of_queue_1);
}

#[tokio::test]
async fn notes_of_a_queue_that_nothing_leads_to_do_not_keep_those_of_the_others() {
    let world = World::with(&[("OUTBOX_GRACE_SECS", "1"), ("SIGNUP_QUEUES", "2")]).await;
    let id = world.open_activity(5_000).await;
    let of_queue_1 = notes(&world, id, 3_000).await;
    let (topology, channel) = (world.topology(), world.amqp().await.create_channel().await.unwrap());
    let [queue, exchange, key] = [topology.queue_name(1), topology.exchange.clone(), topology.routing_key_of(1)];
    channel.queue_unbind(queue.into(), exchange.into(), key.as_str().into(), Default::default()).await.unwrap();
    let report = world.reconciled_only(id).await;
    let error = report["relay"]["error"].as_str().unwrap();
    assert!(error.contains(&key) && error.contains("run provision"), "{error}");
    // Of the first thousand notes; a run that met an error ends.
    assert!(world.queued_in_each().await[0] > 400, "{of_queue_1}");
}

/// Redis loses everything; one user of each of the queues is on the way to MySQL.
async fn lost(queues: u16) -> (World, Apart, ActivityId, Vec<String>) {
    let (world, apart) = World::apart(&[("SIGNUP_QUEUES", &queues.to_string())]).await;
    let id = world.open_activity(10).await;
    let bodies = world.grant(id, &["ann"]).await;
    world.consume(&world.consumer(), mq_event(bodies)).await.unwrap();
    let people = one_of_each(&world, queues);
    for user in &people {
        assert_eq!(call(&world.signup(), "POST", id, user).await.status, 202);
    }
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    (world, apart, id, people)
}

/// One run that has no time for more than one wait.
async fn reconciled_in_short(world: &World) -> Value {
    let report = reconcile::handle(&world.reconcile(), invocation(json!({}), SHORT)).await.unwrap();
    serde_json::to_value(report).unwrap()
}

/// The same, while the event sources of these queues are at work.
async fn reconciled_while_pumping(world: &World, queues: &[u16]) -> Value {
    let pump = async {
        loop {
            for queue in queues {
                world.pump_queue(*queue).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        report = reconciled_in_short(world) => report,
        () = pump => unreachable!("the pump never ends"),
    }
}

async fn everybody_is_back(world: &World, id: ActivityId, people: &[String]) {
    assert_eq!(world.taken(id).await, 1 + people.len() as u64);
    for user in people {
        assert_eq!(call(&world.signup(), "POST", id, user).await.status, 200, "{user} is back");
    }
}

#[tokio::test]
async fn a_rebuild_waits_until_the_barrier_came_out_of_every_queue_and_names_the_one_that_is_stuck() {
    let (world, apart, id, people) = lost(3).await;
    let report = reconciled_while_pumping(&world, &[0, 2]).await;
    let stuck = world.topology().queue_name(1);
    assert_eq!(report["rebuild"], json!({"rebuilt": [], "waiting": [id.to_string()], "heldUpBy": [stuck]}), "{report}");
    assert_eq!(call(&world.signup(), "POST", id, &people[1]).await.status, 503);
    let report = reconciled_while_pumping(&world, &[1, 0, 2]).await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{report}");
    everybody_is_back(&world, id, &people).await;
    apart.stop().await;
}

#[tokio::test]
async fn a_queue_that_a_lower_number_leaves_over_holds_the_rebuild_up_until_it_is_empty() {
    let (mut world, apart, id, people) = lost(3).await;
    let names = world.topology().queue_names();
    world.settings.insert("SIGNUP_QUEUES".into(), "1".into());
    let report = reconciled_while_pumping(&world, &[0]).await;
    assert_eq!(report["rebuild"]["heldUpBy"], json!(names[1..]), "{report}");
    assert_eq!(report["rebuild"]["rebuilt"], json!([]), "{report}");

    // Their event sources go on; then the empty queues hold nothing up, though nobody passes a barrier there.
    for queue in [1, 2] {
        world.pump_queue(queue).await;
    }
    let report = reconciled_while_pumping(&world, &[0]).await;
    assert_eq!(report["rebuild"]["rebuilt"], json!([id.to_string()]), "{report}");
    everybody_is_back(&world, id, &people).await;
    apart.stop().await;
}

#[tokio::test]
async fn an_empty_queue_beyond_the_number_counts_while_somebody_takes_from_it() {
    let (mut world, apart, id, _) = lost(2).await;
    let name = world.topology().queue_name(1);
    world.settings.insert("SIGNUP_QUEUES".into(), "1".into());
    // An event source that holds all of it in its hands.
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    let consumer =
        channel.basic_consume(name.as_str().into(), "".into(), Default::default(), Default::default()).await.unwrap();
    eventually("nothing waits in the queue", SHORT, async || world.queued_in(&name).await == 0).await;
    let report = reconciled_while_pumping(&world, &[0]).await;
    assert_eq!(report["rebuild"]["heldUpBy"], json!([name]), "{report}");
    assert_eq!(report["rebuild"]["waiting"], json!([id.to_string()]), "{report}");
    drop(consumer);
    connection.close(200, "done".into()).await.unwrap();
    apart.stop().await;
}
