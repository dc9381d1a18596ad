//! How long replies took while all was well, and while a server was away.
//!
//! A request that met a fault of `signup` itself, or its aftermath, counts in no phase: while that function is away
//! nobody can answer. A server counts as away until it is started again: the start itself takes the processors of this
//! machine from everything else, as it would not take those of another machine.

use super::history::{Entry, History, Outcome};
use super::plan::Part;
use super::torment::Mark;

/// How long after a fault of `signup` requests still queue up.
const AFTERMATH_MS: u64 = 2_000;

/// How long after a fault of anything a healthy phase begins.
const SETTLED_AFTER_MS: u64 = 1_000;

/// Some requests and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// How many.
    pub requests: u64,
    /// Half of them at most.
    pub p50_ms: f64,
    /// All but one in a hundred at most.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// The phases of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// Granted sign-ups while nothing failed.
    pub healthy: Latency,
    /// Granted sign-ups while RabbitMQ was away.
    pub broker_down: Latency,
    /// Granted sign-ups while MySQL was away.
    pub mysql_down: Latency,
    /// Replies of all kinds, missing ones included, while Redis was away.
    pub redis_down: Latency,
}

impl Latency {
    fn of(mut times_ms: Vec<f64>) -> Self {
        times_ms.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (times_ms.len() as f64 * share).ceil() as usize;
            times_ms.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self { requests: times_ms.len() as u64, p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
    }

    /// A figure of it, if there were any requests.
    pub fn some(&self, figure: impl Fn(&Self) -> f64) -> Option<f64> {
        (self.requests > 0).then(|| figure(self))
    }
}

impl Phases {
    /// Sorts the requests of a history by what was away while they were under way.
    #[must_use]
    pub fn of(history: &History, marks: &[Mark]) -> Self {
        let mut healthy = Vec::new();
        let [mut broker_down, mut mysql_down, mut redis_down] = [const { Vec::new() }; 3];
        for entry in &history.entries {
            let (from_ms, to_ms) = (entry.began_ms, entry.ended_ms());
            let met = |part: Part, after_ms: u64| {
                marks.iter().any(|mark| mark.part == part && mark.touches(from_ms, to_ms, after_ms))
            };
            if met(Part::Signup, AFTERMATH_MS) {
                continue;
            }
            let began_in = |part: Part| marks.iter().any(|mark| mark.part == part && mark.is_down(from_ms));
            if began_in(Part::Redis) {
                redis_down.push(entry.took_ms);
            }
            if !is_granted(entry) {
                continue;
            }
            if began_in(Part::RabbitMq) {
                broker_down.push(entry.took_ms);
            }
            if began_in(Part::MySql) {
                mysql_down.push(entry.took_ms);
            }
            if !marks.iter().any(|mark| mark.touches(from_ms, to_ms, SETTLED_AFTER_MS)) {
                healthy.push(entry.took_ms);
            }
        }
        Self {
            healthy: Latency::of(healthy),
            broker_down: Latency::of(broker_down),
            mysql_down: Latency::of(mysql_down),
            redis_down: Latency::of(redis_down),
        }
    }
}

fn is_granted(entry: &Entry) -> bool {
    matches!(entry.outcome, Outcome::Granted { .. })
}

#[cfg(test)]
mod tests {
    use shared::domain::ActivityId;

    use super::super::history::{Operation, Pair};
    use super::super::plan::Kind;
    use super::*;

    fn entry(began_ms: u64, took_ms: f64, outcome: Outcome) -> Entry {
        let pair = Pair { activity: ActivityId::new(1), user: "alice".parse().unwrap() };
        Entry { began_ms, took_ms, pair, operation: Operation::SignUp, status: None, outcome }
    }

    fn mark(part: Part, from_ms: u64, to_ms: u64) -> Mark {
        Mark { part, kind: Kind::Freeze, from_ms, undone_ms: Some(to_ms), to_ms: Some(to_ms) }
    }

    #[test]
    fn each_request_counts_in_the_phase_in_which_it_began() {
        let granted = |began_ms, took_ms| entry(began_ms, took_ms, Outcome::Granted { sequence: 1 });
        let unknown = Outcome::Unknown { why: "503".into() };
        let history = History {
            entries: vec![
                granted(0, 5.0),
                granted(1_100, 500.0),
                granted(2_500, 7.0),
                granted(5_050, 9.0),
                entry(9_000, 1_000.0, unknown.clone()),
                entry(0, 77.0, unknown),
                granted(20_100, 4_000.0),
            ],
            ..History::default()
        };
        let marks = [
            mark(Part::RabbitMq, 1_000, 2_000),
            mark(Part::MySql, 5_000, 6_000),
            mark(Part::Redis, 9_000, 9_500),
            mark(Part::Signup, 20_000, 20_050),
        ];
        let phases = Phases::of(&history, &marks);
        let seen = |latency: Latency| (latency.requests, latency.max_ms);
        assert_eq!(seen(phases.healthy), (1, 5.0), "2,500 is too soon after the broker was away");
        assert_eq!(seen(phases.broker_down), (1, 500.0));
        assert_eq!(seen(phases.mysql_down), (1, 9.0));
        assert_eq!(seen(phases.redis_down), (1, 1_000.0));
    }

    #[test]
    fn the_quantiles_are_those_of_the_sorted_times() {
        let latency = Latency::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((latency.p50_ms, latency.p99_ms, latency.max_ms), (100.0, 198.0, 200.0));
        assert_eq!(Latency::of(Vec::new()), Latency::default());
        assert_eq!(Latency::default().some(|latency| latency.p99_ms), None);
    }
}
