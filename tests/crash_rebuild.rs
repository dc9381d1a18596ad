//! `reconcile` killed while it brings a lost activity back. Until it is back nobody is told anything wrong, and it never
//! comes back without those who were on their way.

use std::time::Duration;

use serde_json::{Value, json};
use shared::domain::ActivityId;
use shared::reservations::{ActivityKeys, REBUILD_KEY};
use tests::{Apart, World, call, eventually};

use crate::ONCE;
use crate::crash_surplus::{ended, it_is_archived};

const LIMIT: Duration = Duration::from_secs(30);

/// Three places, all granted. `ann` and `bob` are in MySQL and `cid` is in the queue when Redis loses everything. With
/// the receipts of the three.
async fn lost() -> (World, Apart, ActivityId, Vec<Value>) {
    let (world, apart) = World::apart(&[]).await;
    let id = world.open_activity(3).await;
    let mut receipts = Vec::new();
    for user in ["ann", "bob", "cid"] {
        if user == "cid" {
            world.pump().await;
        }
        receipts.push(call(&world.signup(), "POST", id, user).await.body);
    }
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    (world, apart, id, receipts)
}

async fn killed(world: &World, point: &str) {
    ONCE.killed(world, "reconcile", &json!({}), point).await;
}

/// The same for points behind the barrier: it has to come out of the queue, and `before` messages with it.
async fn killed_behind_the_barrier(world: &World, point: &str, before: u32) {
    tokio::join!(killed(world, point), pump_at_barrier(world, before));
}

/// A run that must send a barrier, behind so many messages.
async fn reconciled_behind_a_barrier(world: &World, before: u32) -> Value {
    tokio::join!(world.reconciled(json!({})), pump_at_barrier(world, before)).0
}

async fn pump_at_barrier(world: &World, before: u32) {
    eventually("the barrier is in the queue", LIMIT, async || world.queued().await == before + 1).await;
    world.pump().await;
}

async fn everybody_is_told_to_ask_again(world: &World, id: ActivityId) {
    for user in ["ann", "cid", "zoe"] {
        for method in ["POST", "GET", "DELETE"] {
            let reply = call(&world.signup(), method, id, user).await;
            assert_eq!((reply.status, reply.code()), (503, "unavailable"), "{method} {user}");
        }
    }
}

/// All three are back, on both sides, nobody else gets in, and no note of the loss is left.
async fn all_are_back(world: &World, id: ActivityId, receipts: &[Value]) {
    world.pump().await;
    let signup = world.signup();
    for receipt in receipts {
        let again = call(&signup, "POST", id, receipt["userId"].as_str().unwrap()).await;
        assert_eq!((again.status, &again.body["sequence"]), (200, &receipt["sequence"]), "{again:?}");
    }
    assert_eq!(call(&signup, "POST", id, "zoe").await.code(), "sold-out");
    assert_eq!((world.taken(id).await, world.active(id).await), (3, Some(3)));
    world.assert_sound(id, receipts.to_vec()).await;
    let noted: bool =
        redis::cmd("HEXISTS").arg(REBUILD_KEY).arg(id.get()).query_async(&mut world.redis.clone()).await.unwrap();
    assert!(!noted, "a note that stays would stand for the next loss");
}

#[tokio::test]
async fn killed_before_its_barrier_the_next_run_sends_one_and_waits() {
    let (world, apart, id, receipts) = lost().await;
    killed(&world, "rebuild.before-barrier").await;
    assert_eq!(world.queued().await, 1);
    everybody_is_told_to_ask_again(&world, id).await;
    let report = reconciled_behind_a_barrier(&world, 1).await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{report}");
    all_are_back(&world, id, &receipts).await;
    apart.stop().await;
}

#[tokio::test]
async fn killed_while_it_waits_for_its_barrier_the_next_run_goes_by_that_one() {
    let (world, apart, id, receipts) = lost().await;
    killed(&world, "rebuild.after-barrier").await;
    assert_eq!(world.queued().await, 2);
    everybody_is_told_to_ask_again(&world, id).await;
    world.pump().await;
    // Nobody pumps: a run that waited for another barrier would come back with nothing.
    let report = world.reconciled(json!({})).await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{report}");
    all_are_back(&world, id, &receipts).await;
    apart.stop().await;
}

#[tokio::test]
async fn killed_after_the_sign_ups_are_back_and_before_the_activity_is_the_next_run_opens_it() {
    for (point, is_noted) in [("rebuild.before-forget", true), ("rebuild.before-launch", false)] {
        let (world, apart, id, receipts) = lost().await;
        killed_behind_the_barrier(&world, point, 1).await;
        assert_eq!(world.taken(id).await, 3, "{point}");
        everybody_is_told_to_ask_again(&world, id).await;
        let report =
            if is_noted { world.reconciled(json!({})).await } else { reconciled_behind_a_barrier(&world, 0).await };
        assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{point}: {report}");
        all_are_back(&world, id, &receipts).await;
        apart.stop().await;
    }
}

#[tokio::test]
async fn killed_after_the_activity_is_back_sign_ups_go_on_and_the_next_run_finds_nothing_to_do() {
    let (world, apart, id, receipts) = lost().await;
    killed_behind_the_barrier(&world, "rebuild.after-launch", 1).await;
    assert_eq!(call(&world.signup(), "POST", id, "zoe").await.code(), "sold-out");
    let report = world.reconciled(json!({})).await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [], "waiting": []}), "{report}");
    all_are_back(&world, id, &receipts).await;
    apart.stop().await;
}

/// The activity alone, as when it is on another node of a cluster than the notes of losses.
async fn lose_only(world: &World, id: ActivityId) {
    let ActivityKeys { activity, signups, outbox } = ActivityKeys::of(id);
    let lost: u64 =
        redis::cmd("DEL").arg(&[activity, signups, outbox]).query_async(&mut world.redis.clone()).await.unwrap();
    assert!(lost > 0);
}

#[tokio::test]
async fn killed_after_the_activity_is_back_it_waits_for_a_new_barrier_when_it_is_lost_again() {
    let (world, apart, id, mut receipts) = lost().await;
    killed_behind_the_barrier(&world, "rebuild.after-launch", 1).await;
    assert_eq!(call(&world.signup(), "DELETE", id, "ann").await.status, 202);
    receipts.remove(0);
    receipts.push(call(&world.signup(), "POST", id, "dan").await.body);
    lose_only(&world, id).await;
    let report = reconciled_behind_a_barrier(&world, 2).await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{report}");
    all_are_back(&world, id, &receipts).await;
    apart.stop().await;
}

#[tokio::test]
async fn a_note_that_an_overtaken_run_left_is_forgotten_and_does_not_stand_for_the_next_loss() {
    let (world, apart, id, mut receipts) = lost().await;
    reconciled_behind_a_barrier(&world, 1).await;
    // As if another run had noticed the same loss, and died when this one had brought the activity back.
    let noticed = world.reservations().notice(&[id]).await.unwrap();
    world.reservations().pass(0, noticed.barrier).await.unwrap();
    world.reconciled(json!({})).await;
    assert_eq!(call(&world.signup(), "DELETE", id, "ann").await.status, 202);
    receipts.remove(0);
    receipts.push(call(&world.signup(), "POST", id, "dan").await.body);
    lose_only(&world, id).await;
    reconciled_behind_a_barrier(&world, 2).await;
    all_are_back(&world, id, &receipts).await;
    apart.stop().await;
}

#[tokio::test]
async fn an_archived_activity_that_came_back_half_way_is_archived_again_by_the_next_run() {
    let (world, apart) = World::apart(&[]).await;
    let id = ended(&world).await;
    assert_eq!(world.reconciled(json!({})).await["archive"]["archived"], json!([id.to_string()]));
    let _: () = redis::cmd("FLUSHALL").query_async(&mut world.redis.clone()).await.unwrap();
    killed(&world, "rebuild.before-archive").await;
    assert_eq!(world.reconciled(json!({})).await["rebuild"]["rebuilt"], json!([id.to_string()]));
    it_is_archived(&world, id).await;
    apart.stop().await;
}
