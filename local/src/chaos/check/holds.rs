//! How many people held a place of an activity for certain at the same time, at the most, against the places there were.

use std::collections::BTreeMap;

use shared::domain::ActivityId;

use super::super::history::Places;

/// A change of the number of people who certainly hold a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    at_ms: u64,
    by: i64,
}

/// When people certainly held places.
#[derive(Clone, Debug, Default)]
pub struct Holds(BTreeMap<ActivityId, Vec<Change>>);

/// More people than places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surplus {
    /// Where.
    pub activity: ActivityId,
    /// When it was greatest.
    pub at_ms: u64,
    /// People who held a place then.
    pub held: u64,
    /// Places that there were at the most until then.
    pub capacity: u64,
}

impl Holds {
    /// Somebody certainly holds a place from now on.
    pub fn begin(&mut self, activity: ActivityId, at_ms: u64) {
        self.0.entry(activity).or_default().push(Change { at_ms, by: 1 });
    }

    /// From now on it is not certain any more.
    pub fn end(&mut self, activity: ActivityId, at_ms: u64) {
        self.0.entry(activity).or_default().push(Change { at_ms, by: -1 });
    }

    /// The greatest surplus of each activity that has one.
    #[must_use]
    pub fn surplus(mut self, places: &[Places]) -> Vec<Surplus> {
        let mut found = Vec::new();
        for (activity, changes) in &mut self.0 {
            changes.sort_unstable(); // at one moment those who give back come first
            let mut held = 0;
            let mut worst: Option<Surplus> = None;
            for change in changes {
                held += change.by;
                let (at_ms, held) = (change.at_ms, u64::try_from(held).unwrap_or(0));
                let capacity = capacity_at(places, *activity, at_ms);
                let surplus = held.saturating_sub(capacity);
                if surplus > worst.map_or(0, |worst| worst.held - worst.capacity) {
                    worst = Some(Surplus { activity: *activity, at_ms, held, capacity });
                }
            }
            found.extend(worst);
        }
        found
    }
}

/// The most places that had been asked for until then.
fn capacity_at(places: &[Places], activity: ActivityId, at_ms: u64) -> u64 {
    let until = places.iter().filter(|places| places.activity == activity && places.began_ms <= at_ms);
    until.map(|places| places.capacity).max().unwrap_or(0)
}
