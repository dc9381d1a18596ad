//! What the people believe to hold, so that they want something sensible next. The check does not rely on it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::RngExt;
use rand::rngs::StdRng;
use shared::domain::{ActivityId, UserId};

use super::super::history::{Operation, Outcome, Pair};
use super::Settings;

/// How often a wish is drawn again because somebody is already asking about it.
const DRAWS: usize = 20;

/// What everyone believes.
#[derive(Debug)]
pub struct Beliefs {
    activities: Vec<ActivityId>,
    people: Vec<UserId>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Under way: nobody else asks about them.
    busy: HashSet<Pair>,
    /// Those who hold a place as far as they know, and where they are in the list.
    holders: Vec<Pair>,
    positions: HashMap<Pair, usize>,
    /// Those who do not know.
    unsure: Vec<Pair>,
}

impl Beliefs {
    /// Nobody holds anything.
    pub fn new(settings: &Settings) -> Self {
        let people = (1..=settings.people).filter_map(|number| format!("person-{number}").parse().ok()).collect();
        Self { activities: settings.activities.clone(), people, inner: Mutex::default() }
    }

    /// What somebody wants next, if somebody is free: to give a place back, a place, one they have already, or to look.
    pub fn choose(&self, rng: &mut StdRng) -> Option<(Operation, Pair)> {
        let mut inner = self.lock();
        for _ in 0..DRAWS {
            let (operation, pair) = match rng.random_range(0..100) {
                0..10 => (Operation::SignUp, inner.unsure.pop()),
                10..35 => (Operation::Cancel, pick(&inner.holders, rng)),
                35..40 => (Operation::SignUp, pick(&inner.holders, rng)),
                40..45 => (Operation::Look, pick(&inner.holders, rng)),
                45..50 => (Operation::Look, self.anybody(rng)),
                50..52 => (Operation::Cancel, self.anybody(rng)),
                _ => (Operation::SignUp, self.anybody(rng)),
            };
            if let Some(pair) = pair
                && inner.busy.insert(pair.clone())
            {
                return Some((operation, pair));
            }
        }
        None
    }

    /// What came of a wish.
    pub fn learn(&self, pair: &Pair, outcome: &Outcome) {
        let mut inner = self.lock();
        inner.busy.remove(pair);
        match outcome {
            Outcome::Granted { .. } | Outcome::Held { .. } => inner.hold(pair),
            Outcome::Cancelled { .. } | Outcome::WasCancelled { .. } | Outcome::SoldOut | Outcome::NotSignedUp => {
                inner.let_go(pair);
            }
            Outcome::Unknown { .. } | Outcome::Strange { .. } => inner.unsure.push(pair.clone()),
        }
    }

    fn anybody(&self, rng: &mut StdRng) -> Option<Pair> {
        let activity = *self.activities.get(rng.random_range(0..self.activities.len().max(1)))?;
        let user = self.people.get(rng.random_range(0..self.people.len().max(1)))?.clone();
        Some(Pair { activity, user })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn hold(&mut self, pair: &Pair) {
        if !self.positions.contains_key(pair) {
            self.positions.insert(pair.clone(), self.holders.len());
            self.holders.push(pair.clone());
        }
    }

    fn let_go(&mut self, pair: &Pair) {
        let Some(position) = self.positions.remove(pair) else { return };
        self.holders.swap_remove(position);
        if let Some(moved) = self.holders.get(position) {
            self.positions.insert(moved.clone(), position);
        }
    }
}

fn pick(holders: &[Pair], rng: &mut StdRng) -> Option<Pair> {
    holders.get(rng.random_range(0..holders.len().max(1))).cloned()
}
