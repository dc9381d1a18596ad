//! One sign-up, from the request to the row.

use tests::{World, call, mq_event};

#[tokio::test]
async fn a_sign_up_becomes_a_row_and_its_receipt_is_confirmed() {
    let world = World::new().await;
    let id = world.open_activity(2).await;
    let signup = world.signup();

    let granted = call(&signup, "POST", id, "alice").await;
    assert_eq!((granted.status, &granted.body["status"]), (202, &"queued".into()), "{granted:?}");
    assert_eq!(world.outbox(id).await, ["alice"]);

    let messages = world.drain_signups().await;
    let report = world.consume(&world.consumer(), mq_event(messages.iter().map(|m| &m.body))).await.unwrap();
    assert_eq!((report.received, report.written, report.settled), (1, 1, 1), "{report:?}");
    assert_eq!(world.active(id).await, Some(1));
    assert!(world.outbox(id).await.is_empty());

    let confirmed = call(&signup, "GET", id, "alice").await;
    assert_eq!((confirmed.status, &confirmed.body["status"]), (200, &"confirmed".into()), "{confirmed:?}");

    let cancelled = call(&signup, "DELETE", id, "alice").await;
    assert_eq!((cancelled.status, &cancelled.body["status"]), (202, &"cancelled".into()), "{cancelled:?}");
    let messages = world.drain_signups().await;
    world.consume(&world.consumer(), mq_event(messages.iter().map(|m| &m.body))).await.unwrap();
    assert_eq!(world.active(id).await, Some(0));
    assert_eq!(world.taken(id).await, 0);
}
