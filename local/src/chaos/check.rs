//! The check of a history against what MySQL and Redis hold in the end, after the total-queue checker of the Jepsen
//! tests. Pure: replies and rows in, verdict out.
//!
//! Each person and activity is a story of its own (see [`story`]); on top of the stories, a place belongs to one person
//! and an activity never has more people than places.

mod holds;
mod story;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shared::domain::{ActivityId, SignupStatus, UserId};
use shared::reservations::StoredReceipt;

use super::history::{Entry, History, Operation, Outcome, Pair};
use crate::verify::Named;
use holds::Holds;
use story::{Judged, Kind, Seen, Story};

/// What one of MySQL and Redis holds in the end.
#[derive(Clone, Debug)]
pub struct Held {
    /// Which of them.
    pub by: &'static str,
    /// Everyone's row or receipt.
    pub people: BTreeMap<Pair, StoredReceipt>,
    /// The places of each activity.
    pub capacities: BTreeMap<ActivityId, u64>,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flaw {
    /// The activity.
    pub activity: ActivityId,
    /// The person, if it is about one.
    pub user: Option<UserId>,
    /// In words.
    pub what: String,
}

/// What came of everything that was asked.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Sign-ups and cancels that were sent.
    pub attempted: u64,
    /// Those with a reply that promises something: 2xx.
    pub acknowledged: u64,
    /// Those without a clear reply.
    pub ambiguous: u64,
    /// Ambiguous ones that were later seen to have happened.
    pub recovered: u64,
    /// Acknowledged and missing.
    pub lost: Named<Flaw>,
    /// One person with two places, or one place with two people.
    pub twice: Named<Flaw>,
    /// More people than places.
    pub oversold: Named<Flaw>,
    /// Nothing in the history explains it.
    pub unexpected: Named<Flaw>,
    /// Replies that the API does not have.
    pub strange: Named<Flaw>,
}

/// Checks.
#[must_use]
pub fn check(history: &History, held: &[Held]) -> Verdict {
    let mut checker = Checker::default();
    for entry in &history.entries {
        checker.note(entry);
    }
    for held in held {
        checker.note_held(held);
    }
    for surplus in checker.holds.surplus(&history.places) {
        let (at, held, capacity) = (surplus.at_ms, surplus.held, surplus.capacity);
        let what = format!("at {at} ms {held} people held one of {capacity} places");
        checker.verdict.oversold.note(Flaw { activity: surplus.activity, user: None, what });
    }
    checker.verdict
}

#[derive(Default)]
struct Checker {
    verdict: Verdict,
    stories: BTreeMap<Pair, Story>,
    /// Pairs whose place counts as held for certain.
    holding: BTreeSet<Pair>,
    holds: Holds,
    owners: BTreeMap<(ActivityId, u64), UserId>,
    /// What was found already: a person counts once for each kind.
    found: BTreeSet<(Kind, Pair)>,
    /// Whose open request was seen in MySQL or Redis only; once for both.
    recovered: BTreeSet<Pair>,
}

impl Checker {
    fn note(&mut self, entry: &Entry) {
        self.count(entry);
        let pair = &entry.pair;
        if entry.operation == Operation::Cancel && self.holding.remove(pair) {
            self.holds.end(pair.activity, entry.began_ms);
        }
        let story = self.stories.entry(pair.clone()).or_default();
        let judged = story.note(entry);
        let certain = story.certainly_holds();
        self.verdict.recovered += u64::from(judged.recovered);
        self.judge(pair, judged, || format!("at {} ms {}", entry.began_ms, in_words(entry)));
        if certain && self.holding.insert(pair.clone()) {
            self.holds.begin(pair.activity, entry.ended_ms());
        } else if !certain && self.holding.remove(pair) {
            self.holds.end(pair.activity, entry.began_ms);
        }
        if let Outcome::Granted { sequence } | Outcome::Held { sequence, .. } = entry.outcome {
            self.own(pair, sequence);
        }
    }

    fn count(&mut self, entry: &Entry) {
        if let Outcome::Strange { what } = &entry.outcome {
            self.verdict.strange.note(flaw(&entry.pair, format!("at {} ms {what}", entry.began_ms)));
        }
        if entry.operation == Operation::Look {
            return;
        }
        self.verdict.attempted += 1;
        self.verdict.ambiguous += u64::from(entry.outcome.is_open());
        self.verdict.acknowledged += u64::from(matches!(entry.status, Some(200..=299)) && !entry.outcome.is_open());
    }

    /// Holds everyone's story against the rows or receipts, and the other way round.
    fn note_held(&mut self, held: &Held) {
        let everyone: BTreeSet<Pair> = self.stories.keys().chain(held.people.keys()).cloned().collect();
        let mut active: BTreeMap<ActivityId, u64> = BTreeMap::new();
        for pair in everyone {
            let stored = held.people.get(&pair);
            let seen = match stored {
                None => Seen::Never,
                Some(stored) if stored.status == SignupStatus::SignedUp => Seen::Holds(stored.sequence),
                Some(stored) => Seen::GaveBack(stored.sequence),
            };
            // Each of MySQL and Redis is held against the replies, not against the other.
            let judged = self.stories.get(&pair).cloned().unwrap_or_default().note_held(seen);
            if judged.recovered && self.recovered.insert(pair.clone()) {
                self.verdict.recovered += 1;
            }
            let stored = || stored.map_or_else(|| "nothing".to_owned(), StoredReceipt::to_string);
            self.judge(&pair, judged, || format!("{} holds {}", held.by, stored()));
            if let Seen::Holds(sequence) = seen {
                *active.entry(pair.activity).or_default() += 1;
                self.own(&pair, sequence);
            }
        }
        for (activity, active) in active {
            let capacity = held.capacities.get(&activity).copied().unwrap_or(0);
            if active > capacity {
                let what = format!("{} holds {active} people for {capacity} places", held.by);
                self.verdict.oversold.note(Flaw { activity, user: None, what });
            }
        }
    }

    fn judge(&mut self, pair: &Pair, judged: Judged, what: impl Fn() -> String) {
        if let Some(kind) = judged.flaw {
            self.find(kind, pair, what);
        }
    }

    fn find(&mut self, kind: Kind, pair: &Pair, what: impl Fn() -> String) {
        if !self.found.insert((kind, pair.clone())) {
            return;
        }
        let list = match kind {
            Kind::Lost => &mut self.verdict.lost,
            Kind::Twice => &mut self.verdict.twice,
            Kind::Unexpected => &mut self.verdict.unexpected,
        };
        list.note(flaw(pair, what()));
    }

    /// A place belongs to the first person who is seen to hold it.
    fn own(&mut self, pair: &Pair, sequence: u64) {
        let owner = self.owners.entry((pair.activity, sequence)).or_insert_with(|| pair.user.clone());
        if *owner != pair.user {
            let what = format!("place {sequence} belongs to {owner} too");
            self.find(Kind::Twice, pair, || what.clone());
        }
    }
}

fn flaw(pair: &Pair, what: String) -> Flaw {
    Flaw { activity: pair.activity, user: Some(pair.user.clone()), what }
}

fn in_words(entry: &Entry) -> String {
    format!("{:?} was answered with {:?}", entry.operation, entry.outcome)
}

impl Verdict {
    /// The kinds of flaws, each with its finds.
    #[must_use]
    pub fn kinds(&self) -> [(&'static str, &Named<Flaw>); 5] {
        [
            ("lost", &self.lost),
            ("twice", &self.twice),
            ("oversold", &self.oversold),
            ("unexpected", &self.unexpected),
            ("strange", &self.strange),
        ]
    }
}
