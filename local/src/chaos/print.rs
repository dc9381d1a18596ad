//! The report of a run.

use std::fmt::Write;
use std::path::Path;

use super::figures::HEAL_LIMIT_MS;
use super::phases::Latency;
use super::run::Outcome;
use crate::report::{Table, count, millis, verdict};
use crate::verify;

/// How often a sign-up may be slower while the broker or MySQL is down.
const SLOWER: f64 = 3.0;

/// The report: what happened, what was promised, the verdict, and what to do if it is a bad one.
pub fn report(outcome: &Outcome, failures: &[String], logs: Option<&Path>) -> String {
    let mut text = format!("\n{}\n{}\n{}\n", requests(outcome), latencies(outcome), promises(outcome));
    let good = failures.is_empty();
    let figures = &outcome.figures;
    let conclusion = if good {
        format!("{} faults, {} promises, all kept", count(figures.faults), count(figures.acknowledged))
    } else {
        format!("The chaos of seed {} broke something", figures.seed)
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", verdict(good, &conclusion));
    for failure in failures {
        let _ = writeln!(text, "  - {failure}");
    }
    if !good {
        text.push_str(&flaws(outcome));
        text.push_str(&verify::offenders(&outcome.findings));
    }
    if let Some(logs) = logs {
        let _ = writeln!(text, "  The logs of every part are in {}", logs.display());
    }
    text
}

fn requests(outcome: &Outcome) -> Table {
    let figures = &outcome.figures;
    let mut table = Table::new(format!("Chaos of seed {}", figures.seed));
    let grace = format!(
        "in {} minutes; reconcile ran {} times, and failed {} times; {} s of outbox grace",
        figures.minutes,
        count(figures.reconcile.reported),
        count(figures.reconcile.failed),
        figures.outbox_grace_secs
    );
    table.row("faults", count(figures.faults), grace);
    table.row("requests", count(figures.requests), "of all kinds");
    table.row("relayed", count(figures.relayed), "facts sent again from the outbox");
    table.row("resizes", count(figures.resizes), "more places for an activity");
    table.row("attempted", count(figures.attempted), "sign-ups and cancels sent");
    table.row("acknowledged", count(figures.acknowledged), "with a reply that promises something");
    table.row("ambiguous", count(figures.ambiguous), "without a clear reply");
    table.row("recovered", count(figures.recovered), "of these, seen later to have happened");
    if figures.ended_by_themselves > 0 {
        table.row("ended", count(figures.ended_by_themselves), "functions ended without being killed");
    }
    table
}

fn latencies(outcome: &Outcome) -> Table {
    let phases = &outcome.phases;
    let healthy = phases.healthy.p99_ms;
    let mut table = Table::new("Replies");
    let of = |latency: &Latency| format!("p99 of {} granted sign-ups", count(latency.requests));
    table.row("healthy", millis(healthy), of(&phases.healthy));
    for (label, latency) in [("broker down", &phases.broker_down), ("MySQL down", &phases.mysql_down)] {
        if latency.requests > 0 {
            let times = latency.p99_ms / healthy.max(0.01);
            let mark = if times < SLOWER { "" } else { " ✘" };
            table.row(
                label,
                millis(latency.p99_ms),
                format!("{}; {times:.1} times the healthy one{mark}", of(latency)),
            );
        }
    }
    if phases.redis_down.requests > 0 {
        let remark = format!("the longest of {} replies, granted or not", count(phases.redis_down.requests));
        table.row("Redis down", millis(phases.redis_down.max_ms), remark);
    }
    table
}

fn promises(outcome: &Outcome) -> Table {
    let figures = &outcome.figures;
    let mut table = Table::new("Promises");
    table.row("lost", count(figures.lost), "people of whom something acknowledged is missing");
    table.row("twice", count(figures.twice), "people with two places, or with the place of another");
    table.row("oversold", count(figures.oversold), "activities with more people than places");
    table.row("unexpected", count(figures.unexpected), "people of whom something is there that nothing explains");
    table.row("strange", count(figures.strange), "replies that the API does not have");
    table.row("unsettled", count(figures.unsettled), "receipts neither confirmed nor cancelled in the end");
    table.row(
        "mended",
        count(figures.mended),
        "sign-ups that the outbox failed to bring home, and only a comparison found",
    );
    table.row("findings", count(figures.findings), "where Redis and MySQL are compared, person by person");
    let healed = figures.heal_ms.map_or_else(|| "never".to_owned(), |ms| millis(ms as f64));
    let limit = HEAL_LIMIT_MS / 1_000;
    table.row("healed", healed, format!("after the last fault, of {limit} s; then nothing of before was on its way"));
    table.row("drained", millis(figures.drain_ms as f64), "from the last request until nothing was on its way");
    table
}

/// The first flaws of each kind, one a line.
fn flaws(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (kind, found) in outcome.verdict.kinds() {
        for flaw in &found.first {
            let user = flaw.user.as_ref().map_or_else(String::new, |user| format!(", {user}"));
            let _ = writeln!(text, "  {kind}: activity {}{user}: {}", flaw.activity, flaw.what);
        }
    }
    text
}
