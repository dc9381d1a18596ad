//! The consumer under the capacity guard: never more active rows than places, and a count that is always exact.

use consumer::Report;
use shared::domain::ActivityId;
use tests::{World, message_body, mq_event};

/// An activity for which Redis has granted these users a place, and MySQL has only so many: as after a failover that
/// lost writes.
async fn oversold_in_redis(world: &World, capacity: usize, granted: &[&str]) -> (ActivityId, Vec<Vec<u8>>) {
    let id = world.open_activity(granted.len() as u32).await;
    let bodies = world.grant(id, granted).await;
    world.sql(&format!("UPDATE activity SET capacity = {capacity} WHERE id = {id}")).await;
    (id, bodies)
}

async fn holders(world: &World, id: ActivityId) -> Vec<String> {
    let rows = world.rows(id).await;
    rows.into_iter().filter(|(_, status, ..)| *status == 1).map(|(user, ..)| user).collect()
}

#[tokio::test]
async fn sign_ups_over_the_capacity_stay_out_keep_their_notes_and_the_first_granted_get_in() {
    let world = World::new().await;
    let (id, mut bodies) = oversold_in_redis(&world, 2, &["zoe", "yan", "ann", "bob"]).await;
    let consumer = world.consumer();
    bodies.rotate_left(2);
    let report = world.consume(&consumer, mq_event(&bodies)).await.unwrap();
    assert_eq!(report, Report { received: 4, written: 2, surplus: 2, settled: 2, ..Report::default() });
    assert_eq!(holders(&world, id).await, ["yan", "zoe"]);
    assert_eq!(world.outbox(id).await, ["ann", "bob"]);
    assert_eq!(world.active(id).await, Some(2));
    assert!(world.drain_parked().await.is_empty());

    let again = world.consume(&consumer, mq_event(&bodies)).await.unwrap();
    assert_eq!(again, Report { received: 4, stale: 2, surplus: 2, ..Report::default() });
    assert_eq!(holders(&world, id).await, ["yan", "zoe"]);
    assert_eq!(world.outbox(id).await, ["ann", "bob"]);
    assert_eq!(world.active(id).await, Some(2));
}

#[tokio::test]
async fn a_cancellation_makes_room_for_a_sign_up_of_the_same_batch() {
    let world = World::new().await;
    let (id, bodies) = oversold_in_redis(&world, 1, &["zoe", "ann"]).await;
    let consumer = world.consumer();
    world.consume(&consumer, mq_event(&bodies[..1])).await.unwrap();
    let cancelled = world.give_back(id, "zoe").await;
    let report = world.consume(&consumer, mq_event([&bodies[1], &cancelled])).await.unwrap();
    assert_eq!(report, Report { received: 2, written: 2, settled: 2, ..Report::default() });
    assert_eq!(holders(&world, id).await, ["ann"]);
    assert_eq!(world.active(id).await, Some(1));
    assert!(world.outbox(id).await.is_empty());
}

#[tokio::test]
async fn a_cancellation_makes_room_for_a_sign_up_that_stayed_out_before() {
    let world = World::new().await;
    let (id, bodies) = oversold_in_redis(&world, 1, &["zoe", "ann"]).await;
    let consumer = world.consumer();
    let report = world.consume(&consumer, mq_event(&bodies)).await.unwrap();
    assert_eq!((report.written, report.surplus), (1, 1));

    let cancelled = world.give_back(id, "zoe").await;
    let report = world.consume(&consumer, mq_event([&cancelled])).await.unwrap();
    assert_eq!((report.written, world.active(id).await), (1, Some(0)));
    assert_eq!(world.outbox(id).await, ["ann"]);

    let relayed = world.consume(&consumer, mq_event([&bodies[1]])).await.unwrap();
    assert_eq!(relayed, Report { received: 1, written: 1, settled: 1, ..Report::default() });
    assert_eq!(holders(&world, id).await, ["ann"]);
    assert_eq!(world.active(id).await, Some(1));
}

#[tokio::test]
async fn a_cancellation_frees_one_place_however_often_it_comes_and_whoever_never_held_one_frees_none() {
    let world = World::new().await;
    let id = world.open_activity(2).await;
    let consumer = world.consumer();
    let signed_up = ["ann", "bob"].map(|user| message_body(id, user, 10, 1, "signed-up"));
    world.consume(&consumer, mq_event(signed_up)).await.unwrap();
    let cancelled = || [message_body(id, "ann", 11, 1, "cancelled"), message_body(id, "eve", 11, 1, "cancelled")];
    for _ in 0..3 {
        world.consume(&consumer, mq_event(cancelled())).await.unwrap();
        assert_eq!(world.active(id).await, Some(1));
    }
    world.consume(&consumer, mq_event([message_body(id, "ann", 12, 1, "cancelled")])).await.unwrap();
    assert_eq!(world.active(id).await, Some(1));

    let late = ["cid", "dan"].map(|user| message_body(id, user, 12, 3, "signed-up"));
    let report = world.consume(&consumer, mq_event(late)).await.unwrap();
    assert_eq!((report.written, report.surplus), (1, 1));
    assert_eq!(world.active(id).await, Some(2));
}

#[tokio::test]
async fn a_holder_whose_fact_is_renewed_needs_no_second_place_in_a_full_activity() {
    let world = World::new().await;
    let id = world.open_activity(1).await;
    let consumer = world.consumer();
    world.consume(&consumer, mq_event([message_body(id, "ann", 10, 1, "signed-up")])).await.unwrap();
    let renewed = world.consume(&consumer, mq_event([message_body(id, "ann", 12, 3, "signed-up")])).await.unwrap();
    assert_eq!(renewed, Report { received: 1, written: 1, ..Report::default() });
    assert_eq!(world.rows(id).await, [("ann".to_owned(), 1, 12, 3)]);
    assert_eq!(world.active(id).await, Some(1));
}

/// Status and version.
type Fact = (u8, u64);

/// What a user's row is before a batch, and what the batch says.
#[derive(Clone, Copy, Debug)]
enum Case {
    New,
    NewCancelled,
    Same,
    Older,
    Renewed,
    Cancelled,
    BackAgain,
}

impl Case {
    const ALL: [Self; 7] =
        [Self::New, Self::NewCancelled, Self::Same, Self::Older, Self::Renewed, Self::Cancelled, Self::BackAgain];

    /// The row before, if there is one; the message; and the row after.
    fn facts(self) -> (Option<Fact>, Fact, Fact) {
        match self {
            Self::New => (None, (1, 5), (1, 5)),
            Self::NewCancelled => (None, (2, 5), (2, 5)),
            Self::Same => (Some((1, 5)), (1, 5), (1, 5)),
            Self::Older => (Some((2, 6)), (1, 5), (2, 6)),
            Self::Renewed => (Some((1, 4)), (1, 5), (1, 5)),
            Self::Cancelled => (Some((1, 4)), (2, 5), (2, 5)),
            Self::BackAgain => (Some((2, 4)), (1, 5), (1, 5)),
        }
    }
}

/// An upsert reports 1 affected row for a new one, 2 for a changed one and 0 for an unchanged one, so "one changed, one
/// unchanged" adds up to what two new ones do. No mixture may be taken for a batch of new rows.
#[tokio::test]
async fn no_mixture_of_old_and_new_rows_is_mistaken_for_new_rows() {
    let world = World::new().await;
    let id = world.open_activity(10_000).await;
    let consumer = world.consumer();
    let mixtures: Vec<[Case; 2]> = Case::ALL.iter().flat_map(|a| Case::ALL.map(|b| [*a, b])).collect();
    let status = |code: u8| if code == 1 { "signed-up" } else { "cancelled" };
    let bodies_of = |mixture: usize, facts: &dyn Fn(Case) -> Option<Fact>| -> Vec<Vec<u8>> {
        let users = mixtures[mixture].iter().enumerate();
        users
            .filter_map(|(n, case)| {
                let (code, version) = facts(*case)?;
                Some(message_body(id, &format!("user-{mixture:03}-{n}"), version, 1, status(code)))
            })
            .collect()
    };
    let before = (0..mixtures.len()).flat_map(|mixture| bodies_of(mixture, &|case| case.facts().0));
    world.consume(&consumer, mq_event(before)).await.unwrap();

    for (mixture, cases) in mixtures.iter().enumerate() {
        world.consume(&consumer, mq_event(bodies_of(mixture, &|case| Some(case.facts().1)))).await.unwrap();
        let counted = world.active(id).await.unwrap();
        assert!(counted > 0, "{cases:?}");
    }
    let rows = world.rows(id).await.into_iter().map(|(_, status, version, _)| (status, version));
    let expected = mixtures.iter().flatten().map(|case| case.facts().2);
    assert!(rows.eq(expected));
}
