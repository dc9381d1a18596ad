//! The figures of a run, and the rule by which it succeeds.

use serde::Serialize;

use super::check::Verdict;
use super::phases::Phases;
use super::torment::Mark;
use crate::verify::{Findings, Underway};

/// How long all granted places may take to reach MySQL after the last fault.
pub const HEAL_LIMIT_MS: u64 = 90_000;

/// What `chaos.json` holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// The seed of the faults and the people.
    pub seed: u64,
    /// How long people came.
    pub minutes: f64,
    /// Faults that happened.
    pub faults: u64,
    /// Sign-ups and cancels that were sent.
    pub attempted: u64,
    /// Those with a 2xx reply.
    pub acknowledged: u64,
    /// People of whom something acknowledged is missing.
    pub lost: u64,
    /// People with two places, or with the place of another.
    pub twice: u64,
    /// Activities with more people than places.
    pub oversold: u64,
    /// People of whom something is there that nothing explains.
    pub unexpected: u64,
    /// Ambiguous requests that were later seen to have happened.
    pub recovered: u64,
    /// Sign-ups and cancels without a clear reply.
    pub ambiguous: u64,
    /// Replies that the API does not have.
    pub strange: u64,
    /// Granted sign-ups while nothing failed: all but one in a hundred took this long at most.
    pub p99_ms: f64,
    /// The same while the broker was down.
    pub broker_down_p99_ms: Option<f64>,
    /// The same while MySQL was down.
    pub mysql_down_p99_ms: Option<f64>,
    /// The longest that a reply of any kind took while Redis was down.
    pub redis_down_max_ms: Option<f64>,
    /// From the end of the last fault until everything was in MySQL that had been on its way then.
    pub heal_ms: Option<u64>,
    /// From the last request until nothing was on its way.
    pub drain_ms: u64,
    /// Receipts that did not say in the end what they should: confirmed or cancelled.
    pub unsettled: u64,
    /// Broken promises and left-overs that a comparison of Redis with MySQL found.
    pub findings: u64,
    /// Facts that `reconcile` sent again from the outbox.
    pub relayed: u64,
    /// What the outbox failed to bring home: only the comparison of Redis with MySQL put it right.
    pub mended: u64,
    /// Requests of all kinds.
    pub requests: u64,
    /// How often an activity was given more places.
    pub resizes: u64,
    /// Functions that ended without being killed.
    pub ended_by_themselves: u64,
    /// Runs of `reconcile` that reported, and that failed.
    pub reconcile: Runs,
    /// What was set otherwise than deployed.
    pub outbox_grace_secs: u64,
    /// The faults as they happened.
    pub marks: Vec<Mark>,
}

/// Runs of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// That reported.
    pub reported: u64,
    /// That failed, or whose function ended meanwhile.
    pub failed: u64,
}

impl Figures {
    /// Takes over what the check and the comparison found.
    pub fn judge(&mut self, verdict: &Verdict, findings: &Findings, phases: &Phases) {
        self.attempted = verdict.attempted;
        self.acknowledged = verdict.acknowledged;
        self.ambiguous = verdict.ambiguous;
        self.recovered = verdict.recovered;
        self.lost = verdict.lost.count;
        self.twice = verdict.twice.count;
        self.oversold = verdict.oversold.count;
        self.unexpected = verdict.unexpected.count;
        self.strange = verdict.strange.count;
        self.findings = findings.counts().iter().map(|(_, count)| count).sum();
        self.p99_ms = phases.healthy.p99_ms;
        self.broker_down_p99_ms = phases.broker_down.some(|latency| latency.p99_ms);
        self.mysql_down_p99_ms = phases.mysql_down.some(|latency| latency.p99_ms);
        self.redis_down_max_ms = phases.redis_down.some(|latency| latency.max_ms);
    }

    /// What went wrong, in words; nothing if the run succeeded.
    #[must_use]
    pub fn failures(&self, left: Underway) -> Vec<String> {
        let must_be_none = [
            (self.lost, "people of whom something acknowledged is missing"),
            (self.twice, "people with two places, or with the place of another"),
            (self.oversold, "activities with more people than places"),
            (self.unexpected, "people of whom something is there that nothing explains"),
            (self.strange, "replies that the API does not have"),
            (self.unsettled, "receipts that are neither confirmed nor cancelled as they should be"),
            (self.mended, "sign-ups that the outbox failed to bring home, and only a comparison found"),
            (self.findings, "findings where Redis and MySQL are compared"),
        ];
        let mut failures: Vec<String> = must_be_none
            .iter()
            .filter(|(found, _)| *found > 0)
            .map(|(found, what)| format!("{found} {what}"))
            .collect();
        match self.heal_ms {
            Some(..=HEAL_LIMIT_MS) => {}
            Some(ms) => failures.push(format!("it took {:.1} s to heal", ms as f64 / 1_000.0)),
            None => failures.push("it did not heal: what was on its way at the last fault did not arrive".to_owned()),
        }
        if !left.is_empty() {
            failures.push(format!("it did not drain: {left}"));
        }
        if self.acknowledged == 0 {
            failures.push("nothing was acknowledged".to_owned());
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Figures {
        Figures {
            seed: 1,
            minutes: 2.0,
            faults: 10,
            attempted: 10_000,
            acknowledged: 9_000,
            lost: 0,
            twice: 0,
            oversold: 0,
            unexpected: 0,
            recovered: 10,
            ambiguous: 50,
            strange: 0,
            p99_ms: 20.5,
            broker_down_p99_ms: Some(30.0),
            mysql_down_p99_ms: None,
            redis_down_max_ms: Some(1_001.0),
            heal_ms: Some(5_000),
            drain_ms: 700,
            unsettled: 0,
            findings: 0,
            relayed: 300,
            mended: 0,
            requests: 12_000,
            resizes: 20,
            ended_by_themselves: 0,
            reconcile: Runs::default(),
            outbox_grace_secs: 5,
            marks: Vec::new(),
        }
    }

    #[test]
    fn a_clean_and_healed_run_succeeds_whatever_was_ambiguous() {
        assert_eq!(good().failures(Underway::default()), [""; 0]);
    }

    #[test]
    fn any_single_wrong_figure_fails_the_run() {
        let spoilt: [fn(&mut Figures); 11] = [
            |figures| figures.lost = 1,
            |figures| figures.twice = 1,
            |figures| figures.oversold = 1,
            |figures| figures.unexpected = 1,
            |figures| figures.strange = 1,
            |figures| figures.unsettled = 1,
            |figures| figures.findings = 1,
            |figures| figures.mended = 1,
            |figures| figures.heal_ms = None,
            |figures| figures.heal_ms = Some(90_001),
            |figures| figures.acknowledged = 0,
        ];
        for spoil in spoilt {
            let mut figures = good();
            spoil(&mut figures);
            assert_eq!(figures.failures(Underway::default()).len(), 1, "{figures:?}");
        }
        assert_eq!(good().failures(Underway { outbox: 1, queued: 0 }).len(), 1);
    }

    #[test]
    fn the_file_begins_with_the_agreed_fields() {
        let json = serde_json::to_value(good()).unwrap();
        for field in
            "seed minutes faults attempted acknowledged lost twice oversold unexpected recovered ambiguous p99Ms
            healMs"
                .split_whitespace()
        {
            assert!(json[field].is_number(), "{field}");
        }
    }
}
