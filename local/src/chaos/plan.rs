//! Which part fails when, in which way and for how long. Pure: everything follows from the seed and the length.
//!
//! Two rows of faults. In the first one, one part fails at a time, and has time to come back before the next one does:
//! the promise is about any single part. In the second one, functions are killed now and then whatever else happens,
//! as Lambda takes an execution environment away when it likes.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Serialize, Serializer};

/// Nothing fails before this, so that there are figures of a healthy system; less in a very short run.
const LEAD_MS: u64 = 10_000;

/// RabbitMQ needs some seconds to write down a new queue; see `RabbitMq::kill`.
const LEAD_OF_RABBITMQ_MS: u64 = 8_000;

/// Nothing fails after the length less this, so that the run ends healthy; less in a very short run.
const TAIL_MS: u64 = 15_000;

/// Between the moment when one part should be back and the next fault.
const GAP_MS: RangeInclusive<u64> = 4_000..=8_000;

/// From one kill of the second row to the next.
const KILL_EVERY_MS: RangeInclusive<u64> = 6_000..=14_000;

/// How long a killed function is gone before it is replaced.
const REPLACED_AFTER_MS: RangeInclusive<u64> = 100..=1_000;

/// A part that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The server that holds the places.
    Redis,
    /// The server that carries the facts.
    RabbitMq,
    /// The server that keeps the rows.
    MySql,
    /// The function behind the sign-ups.
    Signup,
    /// The function that writes rows.
    Consumer,
    /// The function that brings home what was left behind.
    Reconcile,
}

impl Part {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 6] =
        [Self::Redis, Self::RabbitMq, Self::MySql, Self::Signup, Self::Consumer, Self::Reconcile];

    /// The name of the function, if it is one.
    #[must_use]
    pub fn function(self) -> Option<&'static str> {
        match self {
            Self::Signup => Some("signup"),
            Self::Consumer => Some("consumer"),
            Self::Reconcile => Some("reconcile"),
            Self::Redis | Self::RabbitMq | Self::MySql => None,
        }
    }

    /// How long it takes to be back, with reserve, after a fault that it has to be started again from.
    fn comes_back_within_ms(self) -> u64 {
        match self {
            Self::Redis => 1_500,
            Self::RabbitMq => 10_000,
            Self::MySql => 4_000,
            Self::Signup | Self::Consumer | Self::Reconcile => 500,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Redis => "Redis",
            Self::RabbitMq => "RabbitMQ",
            Self::MySql => "MySQL",
            Self::Signup => "signup",
            Self::Consumer => "consumer",
            Self::Reconcile => "reconcile",
        })
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// SIGKILL, and started again.
    Kill,
    /// SIGSTOP, and SIGCONT: connections stay open and nobody answers.
    Freeze,
    /// An orderly stop, and started again after a long time.
    Stop,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kill => "killed",
            Self::Freeze => "frozen",
            Self::Stop => "stopped",
        })
    }
}

/// One fault. Times count from the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// What fails.
    pub part: Part,
    /// How.
    pub kind: Kind,
    /// When it begins, in ms.
    pub begins_ms: u64,
    /// How long until it is undone, in ms. A server that has to be started again takes longer to be back.
    pub lasts_ms: u64,
}

impl Fault {
    /// When the part should be back, in ms.
    #[must_use]
    pub fn over_ms(&self) -> u64 {
        let start = if self.kind == Kind::Freeze { 500 } else { self.part.comes_back_within_ms() };
        self.begins_ms + self.lasts_ms + start
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (part, kind) = (self.part, self.kind);
        let (begins, lasts) = (self.begins_ms as f64 / 1_000.0, self.lasts_ms as f64 / 1_000.0);
        write!(f, "{begins:7.1} s  {part:<9}  {kind:<7}  for {lasts:4.1} s")
    }
}

/// Everything that is going to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The faults that do not overlap.
    pub faults: Vec<Fault>,
    /// The kills of functions that overlap with anything but each other.
    pub kills: Vec<Fault>,
}

/// A kind of fault and how long it may last.
type Card = (Part, Kind, RangeInclusive<u64>);

impl Plan {
    /// The plan of this seed for a run of this length.
    #[must_use]
    pub fn of(seed: u64, length: Duration) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let end_ms = length_ms - TAIL_MS.min(length_ms / 4);
        let begin_ms = LEAD_MS.min(length_ms / 6);
        let faults = one_at_a_time(&mut rng, length_ms, begin_ms..=end_ms);
        Self { faults, kills: kills(&mut rng, begin_ms..=end_ms) }
    }

    /// All faults in the order in which they begin.
    #[must_use]
    pub fn in_order(&self) -> Vec<Fault> {
        let mut all = [self.faults.as_slice(), &self.kills].concat();
        all.sort_by_key(|fault| fault.begins_ms);
        all
    }
}

/// Every way in which a part may fail on its own. Short runs get short stops, so that more fits in.
fn deck(length_ms: u64) -> Vec<Card> {
    let stop = 10_000..=(length_ms / 8).clamp(10_000, 30_000);
    vec![
        (Part::Redis, Kind::Freeze, 1_500..=8_000),
        (Part::Redis, Kind::Kill, 500..=5_000),
        (Part::RabbitMq, Kind::Stop, stop.clone()),
        (Part::MySql, Kind::Stop, stop),
        (Part::Signup, Kind::Freeze, 1_000..=8_000),
        (Part::RabbitMq, Kind::Kill, 500..=5_000),
        (Part::RabbitMq, Kind::Freeze, 2_000..=15_000),
        (Part::MySql, Kind::Kill, 500..=5_000),
        (Part::MySql, Kind::Freeze, 2_000..=15_000),
        (Part::Consumer, Kind::Freeze, 2_000..=12_000),
        (Part::Reconcile, Kind::Freeze, 2_000..=12_000),
    ]
}

/// How many of the deck come first, so that a short run has seen each server away.
const FIRST: usize = 5;

/// With so few cards in hand, all may be of the part that failed last: then there is another deck.
const FEW: usize = 4;

fn one_at_a_time(rng: &mut StdRng, length_ms: u64, within_ms: RangeInclusive<u64>) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut hand = deck(length_ms);
    let (first, rest) = hand.split_at_mut(FIRST);
    first.shuffle(rng);
    rest.shuffle(rng);
    let (mut at_ms, end_ms) = within_ms.into_inner();
    loop {
        if hand.len() <= FEW {
            let mut more = deck(length_ms);
            more.shuffle(rng);
            hand.append(&mut more);
        }
        let last = faults.last().map(|fault| fault.part);
        let fits = |(part, kind, lasts): &Card| {
            let shortest = Fault { part: *part, kind: *kind, begins_ms: at_ms, lasts_ms: *lasts.start() };
            let too_early = *part == Part::RabbitMq && at_ms < LEAD_OF_RABBITMQ_MS;
            Some(*part) != last && shortest.over_ms() <= end_ms && !too_early
        };
        let Some(card) = hand.iter().position(fits).map(|position| hand.remove(position)) else { return faults };
        let (part, kind, lasts) = card;
        let mut fault = Fault { part, kind, begins_ms: at_ms, lasts_ms: rng.random_range(lasts.clone()) };
        fault.lasts_ms -= fault.over_ms().saturating_sub(end_ms); // its shortest form fits
        at_ms = fault.over_ms() + rng.random_range(GAP_MS);
        faults.push(fault);
    }
}

fn kills(rng: &mut StdRng, within_ms: RangeInclusive<u64>) -> Vec<Fault> {
    const LIKELY: [Part; 6] =
        [Part::Signup, Part::Consumer, Part::Signup, Part::Consumer, Part::Signup, Part::Reconcile];
    let mut kills = Vec::new();
    let (mut begins_ms, end_ms) = within_ms.into_inner();
    loop {
        begins_ms += rng.random_range(KILL_EVERY_MS);
        let part = LIKELY[rng.random_range(0..LIKELY.len())];
        let kill = Fault { part, kind: Kind::Kill, begins_ms, lasts_ms: rng.random_range(REPLACED_AFTER_MS) };
        if kill.over_ms() > end_ms {
            return kills;
        }
        kills.push(kill);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const LENGTHS: [u64; 5] = [12, 60, 120, 300, 900];

    fn plans() -> impl Iterator<Item = (u64, Plan)> {
        (0..50).flat_map(|seed| LENGTHS.map(|secs| (secs * 1_000, Plan::of(seed, Duration::from_secs(secs)))))
    }

    #[test]
    fn the_same_seed_and_length_give_the_same_plan_and_another_seed_gives_another() {
        let of = |seed| Plan::of(seed, Duration::from_secs(300));
        assert_eq!(of(7), of(7));
        let different: HashSet<_> = (0..100).map(|seed| format!("{:?}", of(seed))).collect();
        assert_eq!(different.len(), 100);
    }

    #[test]
    fn one_part_fails_at_a_time_and_is_back_before_the_next_fails() {
        for (_, plan) in plans() {
            for pair in plan.faults.windows(2) {
                assert!(pair[0].over_ms() + GAP_MS.start() <= pair[1].begins_ms, "{pair:?}");
                assert_ne!(pair[0].part, pair[1].part, "a part that was just back is left alone");
            }
            assert!(plan.kills.iter().all(|kill| kill.part.function().is_some() && kill.kind == Kind::Kill));
        }
    }

    #[test]
    fn the_run_begins_and_ends_healthy() {
        for (length_ms, plan) in plans() {
            let (lead_ms, tail_ms) = if length_ms < 60_000 { (2_000, 3_000) } else { (LEAD_MS, TAIL_MS) };
            for fault in plan.in_order() {
                assert!(fault.begins_ms >= lead_ms && fault.over_ms() + tail_ms <= length_ms, "{fault:?}");
                assert!(fault.part != Part::RabbitMq || fault.begins_ms >= LEAD_OF_RABBITMQ_MS, "{fault:?}");
            }
        }
    }

    #[test]
    fn faults_go_on_until_the_end() {
        for (length_ms, plan) in plans() {
            let over_ms = plan.faults.last().map_or(0, Fault::over_ms);
            let shortest_ms = 1_500 + GAP_MS.end();
            assert!(over_ms + TAIL_MS + shortest_ms + 1_000 >= length_ms, "{over_ms} of {length_ms}: {plan:?}");
        }
    }

    #[test]
    fn two_minutes_see_each_server_away_and_five_see_most_of_the_deck() {
        for (length_ms, plan) in plans() {
            let kinds: HashSet<_> = plan.faults.iter().map(|fault| (fault.part, fault.kind)).collect();
            let parts: HashSet<_> = kinds.iter().map(|(part, _)| *part).collect();
            let servers = [Part::Redis, Part::RabbitMq, Part::MySql].iter().filter(|part| parts.contains(part)).count();
            match length_ms {
                ..120_000 => assert!(!plan.faults.is_empty()),
                120_000 => assert_eq!(servers, 3, "{plan:?}"),
                _ => assert!(servers == 3 && kinds.len() >= 8, "{plan:?}"),
            }
        }
    }

    #[test]
    fn no_fault_lasts_longer_than_thirty_seconds_and_no_function_is_frozen_into_the_emulators_limit() {
        for (_, plan) in plans() {
            for fault in plan.in_order() {
                let longest = if fault.part == Part::Signup { 8_000 } else { 30_000 };
                assert!((100..=longest).contains(&fault.lasts_ms), "{fault:?}");
            }
        }
    }

    #[test]
    fn a_run_too_short_for_any_fault_has_none() {
        assert_eq!(Plan::of(1, Duration::from_secs(2)).in_order(), []);
        assert_eq!(Plan::of(1, Duration::ZERO).in_order(), []);
    }
}
