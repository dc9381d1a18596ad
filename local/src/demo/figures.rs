//! The figures of a demo, and the rule by which it succeeds.

use serde::Serialize;

use crate::sale::Sale;
use crate::verify::{Drained, Findings};

/// What `demo.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Places of the activity.
    pub places: u64,
    /// People who came.
    pub people: u64,
    /// Requests they sent, each attempt and each cut one included.
    pub requests: u64,
    /// People who hold a receipt.
    pub granted: u64,
    /// Replies that gave a receipt again.
    pub repeated: u64,
    /// Replies that said `sold-out`.
    pub sold_out: u64,
    /// Clicks that got no answer, or one that a sale should not see.
    pub errors: u64,
    /// Active rows in MySQL.
    pub rows: u64,
    /// People above the capacity, in MySQL or in Redis.
    pub oversold: u64,
    /// People with two different receipts, or two rows.
    pub twice: u64,
    /// People with a granted receipt and no active row.
    pub lost: u64,
    /// Active rows of people who were granted nothing.
    pub unexpected: u64,
    /// Sign-ups still on their way to MySQL.
    pub outbox: u64,
    /// From the last reply until nothing was on its way, in ms.
    pub drain_ms: u64,
    /// Over the whole sale.
    pub requests_per_second: f64,
    /// Of the answered requests.
    pub latency_ms: Latency,
}

/// How long answers took, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Half of them at most.
    pub p50: f64,
    /// All but one in a hundred at most.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl Figures {
    /// Gathers the figures of a sale that is over, drained and checked.
    pub fn gather(places: u64, sale: &Sale, drained: &Drained, findings: &Findings) -> Self {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|quantile| sale.latency_ms(quantile));
        Self {
            places,
            people: sale.people,
            requests: sale.requests,
            granted: sale.granted(),
            repeated: sale.repeated,
            sold_out: sale.sold_out,
            errors: sale.errors,
            rows: findings.rows(),
            oversold: findings.surplus(),
            twice: findings.twice.count.max(sale.granted_twice().len() as u64),
            lost: findings.lost.count,
            unexpected: findings.unexpected.count,
            outbox: findings.outbox.count,
            drain_ms: u64::try_from(drained.took.as_millis()).unwrap_or(u64::MAX),
            requests_per_second: (sale.requests_per_second() * 10.0).round() / 10.0,
            latency_ms: Latency { p50, p99, max },
        }
    }

    /// What went wrong, in words; nothing if the demo succeeded.
    pub fn failures(&self, findings: &Findings) -> Vec<String> {
        let mut failures = Vec::new();
        if self.granted != self.places {
            failures.push(format!("{} people hold a receipt for {} places", self.granted, self.places));
        }
        if self.rows != self.places {
            failures.push(format!("{} active rows for {} places", self.rows, self.places));
        }
        let must_be_none = [
            (self.oversold, "people above the capacity"),
            (self.twice, "people with two places"),
            (self.lost, "people granted a place that MySQL does not have"),
            (self.unexpected, "rows of people who were granted nothing"),
            (self.outbox, "sign-ups that did not reach MySQL in time"),
            (self.errors, "clicks without a proper answer"),
        ];
        failures
            .extend(must_be_none.iter().filter(|(found, _)| *found > 0).map(|(found, what)| format!("{found} {what}")));
        if failures.is_empty() && !findings.is_clean() {
            let found = findings.counts().into_iter().filter(|(_, found)| *found > 0);
            failures.extend(found.map(|(what, found)| format!("{found} {what}")));
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Figures {
        Figures {
            places: 100,
            people: 5_000,
            requests: 5_750,
            granted: 100,
            repeated: 12,
            sold_out: 5_368,
            errors: 0,
            rows: 100,
            oversold: 0,
            twice: 0,
            lost: 0,
            unexpected: 0,
            outbox: 0,
            drain_ms: 80,
            requests_per_second: 3_000.5,
            latency_ms: Latency { p50: 18.0, p99: 40.0, max: 60.0 },
        }
    }

    #[test]
    fn a_demo_in_which_every_place_has_its_row_succeeds() {
        assert_eq!(good().failures(&Findings::default()), [""; 0]);
    }

    #[test]
    fn any_single_wrong_figure_fails_the_demo() {
        let spoilt: [fn(&mut Figures); 8] = [
            |figures| figures.granted = 99,
            |figures| figures.rows = 101,
            |figures| figures.oversold = 1,
            |figures| figures.twice = 1,
            |figures| figures.lost = 1,
            |figures| figures.unexpected = 1,
            |figures| figures.outbox = 1,
            |figures| figures.errors = 1,
        ];
        for spoil in spoilt {
            let mut figures = good();
            spoil(&mut figures);
            assert_eq!(figures.failures(&Findings::default()).len(), 1, "{figures:?}");
        }
    }

    #[test]
    fn fewer_grants_and_rows_than_places_fail_although_they_agree() {
        let figures = Figures { granted: 60, rows: 60, ..good() };
        assert_eq!(figures.failures(&Findings::default()).len(), 2);
    }

    #[test]
    fn a_finding_that_no_figure_shows_fails_the_demo() {
        let failures = good().failures(&Findings { parked: 3, ..Findings::default() });
        assert_eq!(failures, ["3 parked: messages given up"]);
    }

    #[test]
    fn the_file_has_exactly_the_agreed_fields() {
        let json = serde_json::to_string(&good()).unwrap();
        assert_eq!(
            json,
            r#"{"places":100,"people":5000,"requests":5750,"granted":100,"repeated":12,"soldOut":5368,"errors":0,"#
                .to_owned()
                + r#""rows":100,"oversold":0,"twice":0,"lost":0,"unexpected":0,"outbox":0,"drainMs":80,"#
                + r#""requestsPerSecond":3000.5,"latencyMs":{"p50":18.0,"p99":40.0,"max":60.0}}"#
        );
    }
}
