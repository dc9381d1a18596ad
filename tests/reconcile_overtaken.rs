//! The consumer writes rows while `reconcile` compares, just after the walk along MySQL and before the one along Redis:
//! their people are met on neither, and must not lose their places in the count.

use std::time::Duration;

use consumer::Report;
use serde_json::{Value, json};
use shared::config::Env;
use shared::domain::ActivityId;
use shared::fail;
use shared::reservations::ActivityKeys;
use tests::{Settings, World, call, invocation, mq_event};

const BETWEEN_WALKS: &str = "compare.between-walks";

/// Lets the consumer take this batch in the middle of each comparison. Points are the whole process's, and each test has
/// one of its own.
fn consume_between_walks(world: &World, batch: Value) {
    let settings = world.settings.clone();
    fail::cfg_callback(BETWEEN_WALKS, move || {
        let (settings, batch) = (settings.clone(), batch.clone());
        let consuming = std::thread::spawn(move || consumed(&settings, batch));
        let report = consuming.join().unwrap();
        assert_eq!(report.written + report.stale, 3, "{report:?}");
    })
    .unwrap();
}

fn consumed(settings: &Settings, batch: Value) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let app = consumer::App::from_env(&Env::new(&|name| settings.get(name).cloned())).unwrap();
        consumer::handle(&app, invocation(batch, Duration::from_secs(30))).await.unwrap()
    })
}

/// Three places, all granted, and their messages, which nobody has consumed.
async fn on_their_way(world: &World) -> (ActivityId, Value) {
    let id = world.open_activity(3).await;
    let bodies = world.grant(id, &["ann", "bob", "cid"]).await;
    (id, mq_event(bodies))
}

async fn nobody_lost_a_place(world: &World, id: ActivityId) {
    fail::remove(BETWEEN_WALKS);
    assert_eq!((world.taken(id).await, world.active(id).await), (3, Some(3)));
    assert_eq!(call(&world.signup(), "POST", id, "zoe").await.code(), "sold-out");
    world.assert_sound(id, []).await;
}

#[tokio::test]
async fn people_whose_rows_come_in_the_middle_of_a_comparison_keep_their_places() {
    let world = World::new().await;
    let (id, batch) = on_their_way(&world).await;
    consume_between_walks(&world, batch);
    let report = world.reconciled_only(id).await;
    assert_eq!(report["compare"], json!({"walked": 1, "skipped": 0, "found": []}), "{report}");
    nobody_lost_a_place(&world, id).await;
}

#[tokio::test]
async fn people_whose_rows_come_in_the_middle_of_a_rebuild_keep_their_places() {
    let (world, apart) = World::apart(&[]).await;
    let (id, batch) = on_their_way(&world).await;
    // Their receipts and notes are left, and the relay may send them at any time.
    let lost: u64 =
        redis::cmd("DEL").arg(ActivityKeys::of(id).activity).query_async(&mut world.redis.clone()).await.unwrap();
    assert_eq!(lost, 1);
    consume_between_walks(&world, batch);
    let report = world.reconciled_while_pumping().await;
    assert_eq!(report["rebuild"], json!({"rebuilt": [id.to_string()], "waiting": []}), "{report}");
    nobody_lost_a_place(&world, id).await;
    apart.stop().await;
}
