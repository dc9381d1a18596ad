//! What a run measured, as metrics: nothing that it did not come to.

use std::collections::BTreeMap;

use shared::comparison::Comparison;
use shared::domain::ActivityId;
use shared::metrics::Metric;

use crate::report::{Compared, Report, Step, Surplus};

pub(crate) fn measured(report: &Report) -> Vec<(Metric, u64)> {
    let mut measured = vec![(Metric::FailedSteps, failed_steps(report))];
    if let Some(relayed) = report.relay.as_ref().and_then(Step::done) {
        measured.push((Metric::Backlog, u64::from(relayed.backlog) + u64::from(relayed.left_over)));
        measured.extend(relayed.parked.map(|parked| (Metric::ParkedMessages, parked.into())));
    }
    let underway = report.underway.as_ref().and_then(Step::done);
    measured.extend(underway.map(|underway| (Metric::OutboxAge, underway.oldest_ms / 1_000)));
    measured.extend(drift(report).map(|drift| (Metric::Drift, drift)));
    measured
}

/// Steps that stopped, activities that one left alone or that wait to come back, and queues that are missing.
fn failed_steps(report: &Report) -> u64 {
    let stopped = [
        report.survey.as_ref().is_some_and(Step::has_failed),
        report.relay.as_ref().is_some_and(Step::has_failed),
        report.relay_again.as_ref().is_some_and(Step::has_failed),
        report.underway.as_ref().is_some_and(Step::has_failed),
        report.rebuild.as_ref().is_some_and(Step::has_failed),
        report.compare.as_ref().is_some_and(Step::has_failed),
        report.surplus.as_ref().is_some_and(Step::has_failed),
        report.archive.as_ref().is_some_and(Step::has_failed),
        report.replay.as_ref().is_some_and(Step::has_failed),
    ];
    let stopped = stopped.into_iter().filter(|has_failed| *has_failed).count();
    let missing = report.relay.as_ref().and_then(Step::done).map_or(0, |relayed| relayed.missing.len());
    let waiting = report.rebuild.as_ref().and_then(Step::done).map_or(0, |rebuilt| rebuilt.waiting.len());
    (stopped + report.failed.len() + missing + waiting) as u64
}

/// People of whom the two sides told different things, and places sold too often. With one of the two steps missing, what the
/// other found is still there; that nothing was found is known from both only.
fn drift(report: &Report) -> Option<u64> {
    let compared = report.compare.as_ref().and_then(Step::done).map(told_differently);
    let too_many = |found: &Vec<Surplus>| -> u64 {
        found.iter().map(|surplus| surplus.taken.saturating_sub(surplus.capacity.into())).sum()
    };
    let surplus = report.surplus.as_ref().and_then(Step::done).map(too_many);
    let found = compared.unwrap_or(0) + surplus.unwrap_or(0);
    (found > 0 || (compared.is_some() && surplus.is_some())).then_some(found)
}

/// An activity is compared again after it was mended, and who is found then was found before.
fn told_differently(compared: &Compared) -> u64 {
    let mut of_each = BTreeMap::<ActivityId, u64>::new();
    for found in &compared.found {
        let most = of_each.entry(found.activity_id).or_default();
        *most = (*most).max(Comparison::differences(found));
    }
    of_each.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Rebuilt;

    #[test]
    fn a_lost_activity_that_waits_to_come_back_counts_as_a_failed_step() {
        let rebuilt = Rebuilt { waiting: vec![ActivityId::new(1), ActivityId::new(2)], ..Rebuilt::default() };
        let report = Report { rebuild: Some(Step::Done(rebuilt)), ..Report::default() };
        assert_eq!(measured(&report), [(Metric::FailedSteps, 2)]);
    }
}
