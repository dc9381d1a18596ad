//! The scripts against a model of a few lines: random calls, every reply and the final state compared.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis::AsyncCommands;
use shared::domain::{Activity, ActivityState, SignupStatus, Timestamp, UserId, Version};
use shared::reservations::{
    ActivityKeys, Load, Lookup, Release, Reservation, Reservations, ReservationsError, StoredReceipt,
};
use tests::{World, random_activity_id};

const USERS: [&str; 4] = ["ann", "bob", "cid", "dan"];
const HOUR_MS: u64 = 3_600_000;

#[derive(Clone, Debug)]
enum Call {
    Reserve(usize),
    Release(usize),
    Find(usize),
    /// Settle these users: at the version that Redis has, or (false) at the one before.
    Settle(Vec<(usize, bool)>),
    Load {
        capacity: u32,
        paused: bool,
        window: Window,
        new: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Window {
    Always,
    Now,
    Later,
    Over,
}

fn call() -> impl Strategy<Value = Call> {
    let user = 0..USERS.len();
    let window = prop_oneof![4 => Just(Window::Always), 2 => Just(Window::Now), 1 => Just(Window::Later),
        1 => Just(Window::Over)];
    prop_oneof![
        6 => user.clone().prop_map(Call::Reserve),
        4 => user.clone().prop_map(Call::Release),
        1 => user.clone().prop_map(Call::Find),
        2 => prop::collection::vec((user, any::<bool>()), 0..4).prop_map(Call::Settle),
        2 => (0..4_u32, prop::bool::weighted(0.2), window, any::<bool>())
            .prop_map(|(capacity, paused, window, new)| Call::Load { capacity, paused, window, new }),
    ]
}

/// What the scripts promise.
#[derive(Default)]
struct Model {
    activity: Option<(Activity, Window)>,
    sequence: u64,
    receipts: BTreeMap<&'static str, StoredReceipt>,
    outbox: BTreeSet<&'static str>,
}

/// What is expected of a reply, up to the clock of the server.
#[derive(Debug, PartialEq)]
enum Expected {
    Granted { sequence: u64 },
    Cancelled,
    Same(StoredReceipt, bool),
    SoldOut,
    NotOpen,
    Paused,
    Closed,
    NotSignedUp,
    NotFound,
}

impl Model {
    fn taken(&self) -> u64 {
        self.receipts.values().filter(|receipt| receipt.status == SignupStatus::SignedUp).count() as u64
    }

    fn reserve(&self, user: &str) -> Expected {
        let Some((activity, window)) = &self.activity else { return Expected::NotFound };
        let held = self.receipts.get(user).filter(|receipt| receipt.status == SignupStatus::SignedUp);
        match (held, activity.state, window) {
            (Some(receipt), ..) => Expected::Same(*receipt, self.outbox.contains(user)),
            (None, ActivityState::Paused, _) => Expected::Paused,
            (None, _, Window::Later) => Expected::NotOpen,
            (None, _, Window::Over) => Expected::Closed,
            _ if self.taken() >= u64::from(activity.capacity) => Expected::SoldOut,
            _ => Expected::Granted { sequence: self.sequence + 1 },
        }
    }

    fn release(&self, user: &str) -> Expected {
        match (&self.activity, self.receipts.get(user)) {
            (None, _) => Expected::NotFound,
            (_, None) => Expected::NotSignedUp,
            (_, Some(receipt)) if receipt.status == SignupStatus::Cancelled => Expected::Same(*receipt, true),
            _ => Expected::Cancelled,
        }
    }

    /// Takes over a fact that the server established, after checking its version against the clock.
    fn establish(&mut self, user: &'static str, new: StoredReceipt, at: Timestamp) -> TestCaseResult {
        let previous = self.receipts.get(user).map_or(0, |receipt| receipt.version.get());
        prop_assert!(new.version.get() >= (previous + 1).max(at.as_ms()), "{new:?} after {previous} at {at}");
        prop_assert!(new.version.get() <= (previous + 1).max(Timestamp::now().as_ms()), "{new:?}");
        if new.status == SignupStatus::SignedUp {
            prop_assert_eq!(new.version.get(), (previous + 1).max(new.signed_up_at.as_ms()));
            self.sequence += 1;
        }
        self.receipts.insert(user, new);
        self.outbox.insert(user);
        Ok(())
    }
}

fn receipt_of(signup: shared::domain::Signup) -> StoredReceipt {
    let shared::domain::Signup { version, sequence, status, signed_up_at, .. } = signup;
    StoredReceipt { status, version, sequence, signed_up_at }
}

struct Run {
    reservations: Reservations,
    id: shared::domain::ActivityId,
    model: Model,
}

impl Run {
    async fn apply(&mut self, call: &Call) -> TestCaseResult {
        match call {
            Call::Reserve(user) => self.reserve(USERS[*user]).await,
            Call::Release(user) => self.release(USERS[*user]).await,
            Call::Find(user) => self.find(USERS[*user]).await,
            Call::Settle(users) => self.settle(users).await,
            Call::Load { capacity, paused, window, new } => self.load(*capacity, *paused, *window, *new).await,
        }
    }

    async fn reserve(&mut self, user: &'static str) -> TestCaseResult {
        let (at, expected) = (Timestamp::now(), self.model.reserve(user));
        match (self.reservations.reserve(self.id, &user.parse().unwrap()).await.unwrap(), expected) {
            (Reservation::Reserved(signup), Expected::Granted { sequence }) => {
                prop_assert_eq!(signup.sequence, sequence);
                self.model.establish(user, receipt_of(signup), at)
            }
            (Reservation::AlreadySignedUp { signup, queued }, Expected::Same(receipt, waiting)) => {
                prop_assert_eq!((receipt_of(signup), queued), (receipt, waiting));
                Ok(())
            }
            (Reservation::SoldOut, Expected::SoldOut)
            | (Reservation::NotOpen { .. }, Expected::NotOpen)
            | (Reservation::Paused, Expected::Paused)
            | (Reservation::Closed, Expected::Closed)
            | (Reservation::ActivityNotFound, Expected::NotFound) => Ok(()),
            (reply, expected) => Err(TestCaseError::fail(format!("{reply:?}, expected {expected:?}"))),
        }
    }

    async fn release(&mut self, user: &'static str) -> TestCaseResult {
        let (at, expected) = (Timestamp::now(), self.model.release(user));
        match (self.reservations.release(self.id, &user.parse().unwrap()).await.unwrap(), expected) {
            (Release::Released(signup), Expected::Cancelled) => {
                let old = self.model.receipts[user];
                prop_assert_eq!((signup.sequence, signup.signed_up_at), (old.sequence, old.signed_up_at));
                prop_assert_eq!(signup.status, SignupStatus::Cancelled);
                self.model.establish(user, receipt_of(signup), at)
            }
            (Release::AlreadyCancelled(signup), Expected::Same(receipt, _)) => {
                prop_assert_eq!(receipt_of(signup), receipt);
                Ok(())
            }
            (Release::NotSignedUp, Expected::NotSignedUp) | (Release::ActivityNotFound, Expected::NotFound) => Ok(()),
            (reply, expected) => Err(TestCaseError::fail(format!("{reply:?}, expected {expected:?}"))),
        }
    }

    async fn find(&self, user: &'static str) -> TestCaseResult {
        let found = self.reservations.find(self.id, &user.parse().unwrap()).await.unwrap();
        match (found, &self.model.activity, self.model.receipts.get(user)) {
            (Lookup::ActivityNotFound, None, _) | (Lookup::NotSignedUp, Some(_), None) => Ok(()),
            (Lookup::Found { signup, queued }, Some(_), Some(receipt)) => {
                prop_assert_eq!((receipt_of(signup), queued), (*receipt, self.model.outbox.contains(user)));
                Ok(())
            }
            (found, ..) => Err(TestCaseError::fail(format!("{found:?}"))),
        }
    }

    async fn settle(&mut self, users: &[(usize, bool)]) -> TestCaseResult {
        let ids: Vec<UserId> = users.iter().map(|(user, _)| USERS[*user].parse().unwrap()).collect();
        let mut facts = Vec::new();
        let mut dropped = 0;
        for ((user, current), id) in users.iter().zip(&ids) {
            let receipt = self.model.receipts.get(USERS[*user]);
            let version = receipt.map_or(1, |receipt| receipt.version.get() - u64::from(!current));
            facts.push((id, Version::new(version).unwrap()));
            if receipt.is_none() || *current {
                dropped += u64::from(self.model.outbox.remove(USERS[*user]));
            }
        }
        prop_assert_eq!(self.reservations.settle(self.id, &facts).await.unwrap(), dropped);
        Ok(())
    }

    async fn load(&mut self, capacity: u32, paused: bool, window: Window, new: bool) -> TestCaseResult {
        let now_ms = Timestamp::now().as_ms();
        let at = |ms| Some(Timestamp::from_ms(ms).unwrap());
        let (opens_at, closes_at) = match window {
            Window::Always => (None, None),
            Window::Now => (at(now_ms - HOUR_MS), at(now_ms + HOUR_MS)),
            Window::Later => (at(now_ms + HOUR_MS), None),
            Window::Over => (None, at(now_ms - HOUR_MS)),
        };
        let state = if paused { ActivityState::Paused } else { ActivityState::Open };
        let activity = Activity { title: format!("for {capacity}"), capacity, opens_at, closes_at, state };
        let taken = self.model.taken();
        let known = self.model.activity.is_some();
        let loaded = if new {
            self.reservations.launch(self.id, &activity, 0, 0).await
        } else {
            self.reservations.load(self.id, &activity).await
        };
        match loaded {
            Err(ReservationsError::NotLoaded(_)) => {
                prop_assert!(!new && !known, "not loaded, new {new}, known {known}");
            }
            Ok(_) if !new && !known => return Err(TestCaseError::fail("created without being new")),
            Ok(Load::CapacityBelowTaken { taken: told }) => {
                prop_assert!(!new && u64::from(capacity) < taken && told == taken, "refused {capacity} at {told}");
            }
            Ok(Load::Loaded { taken: told }) => {
                prop_assert!((new || u64::from(capacity) >= taken) && told == taken, "loaded {capacity} at {told}");
                self.model.activity = Some((activity, window));
            }
            other => return Err(TestCaseError::fail(format!("load failed: {other:?}"))),
        }
        Ok(())
    }

    async fn compare_state(&self, world: &World) -> TestCaseResult {
        let keys = ActivityKeys::of(self.id);
        let receipts: BTreeMap<String, String> = world.redis.clone().hgetall(&keys.signups).await.unwrap();
        let expected = self.model.receipts.iter().map(|(user, receipt)| ((*user).to_owned(), receipt.to_string()));
        prop_assert_eq!(receipts, expected.collect::<BTreeMap<_, _>>());
        let outbox: BTreeSet<String> = world.outbox(self.id).await.into_iter().collect();
        prop_assert_eq!(outbox, self.model.outbox.iter().map(|user| (*user).to_owned()).collect::<BTreeSet<_>>());
        let fields: Option<(u64, u64)> = world.redis.clone().hmget(&keys.activity, &["taken", "sequence"]).await.ok();
        prop_assert_eq!(fields, self.model.activity.as_ref().map(|_| (self.model.taken(), self.model.sequence)));
        let occupancy = match self.reservations.activity(self.id).await {
            Err(ReservationsError::NotLoaded(_)) => None,
            other => other.unwrap(),
        };
        let expected = self.model.activity.as_ref().map(|(activity, _)| activity.clone());
        prop_assert_eq!(occupancy.map(|occupancy| occupancy.activity), expected);
        Ok(())
    }
}

#[test]
fn random_calls_reply_and_end_as_the_model_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let world = runtime.block_on(World::new());
    // So that Redis remembers an activity, and tells unknown ones from lost ones. The model's own are launched without
    // being remembered, as if they had never been there.
    runtime.block_on(world.open_activity(1));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) };
    proptest!(config, |(calls in prop::collection::vec(call(), 1..60))| {
        runtime.block_on(async {
            let mut run =
                Run { reservations: world.reservations(), id: random_activity_id(), model: Model::default() };
            for call in &calls {
                run.apply(call).await?;
            }
            run.compare_state(&world).await
        })?;
    });
}
