//! The report of a demo.

use std::fmt::Write;
use std::path::Path;

use super::{Args, Figures, Outcome};
use crate::report::{Table, bar, count, millis, verdict};
use crate::{sale, verify};

/// The report: what happened, what was promised, the verdict, and what to do if it is a bad one.
pub fn report(args: &Args, outcome: &Outcome, failures: &[String], logs: Option<&Path>) -> String {
    let mut text = format!("\n{}\n{}\n", rush(args, outcome), promises(outcome));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", conclusion(outcome, failures));
    for failure in failures {
        let _ = writeln!(text, "  - {failure}");
    }
    if !failures.is_empty() {
        text.push_str(&verify::offenders(&outcome.findings));
        let _ = writeln!(text, "  {}", where_to_look(logs));
    }
    text
}

fn rush(args: &Args, outcome: &Outcome) -> Table {
    let (figures, sale) = (&outcome.figures, &outcome.sale);
    let (people, places) = (count(figures.people), count(figures.places));
    let mut table = Table::new(format!("{people} people want {places} places"));
    table.row(
        "places",
        count(figures.rows),
        format!("{} in MySQL, of {places}", bar(figures.rows, figures.places, 20)),
    );
    let rate = count(figures.requests_per_second as u64);
    table.row("requests", count(figures.requests), format!("{rate} a second over {} connections", args.concurrency));
    table.row("granted", count(figures.granted), "people hold a receipt");
    table.row("repeated", count(figures.repeated), "replies gave the same receipt again");
    table.row("sold out", count(figures.sold_out), "replies");
    table.row("cut", count(sale.cut), "connections we cut after asking, to ask again");
    table.row("tried again", count(sale.setbacks), sale::in_words(&sale.setback_kinds));
    table.row("errors", count(figures.errors), sale::in_words(&sale.error_kinds));
    sale::latency_rows(&mut table, sale);
    let alone = &outcome.alone;
    let remark = format!("median of {} granted one after the other on one connection", count(alone.granted()));
    table.row("alone", millis(alone.latency_ms(0.5)), remark);
    let left = outcome.drained.left;
    let remark = if left.is_empty() {
        "from the last reply until nothing was on its way to MySQL".to_owned()
    } else {
        format!("after the last reply there were still {left}")
    };
    table.row("drained", millis(figures.drain_ms as f64), remark);
    table
}

fn promises(outcome: &Outcome) -> Table {
    let figures = &outcome.figures;
    let mut table = Table::new("Promises");
    table.row("oversold", count(figures.oversold), "people above the capacity");
    table.row("twice", count(figures.twice), "people with two places");
    table.row("lost", count(figures.lost), "people granted a place that MySQL does not have");
    table.row("unexpected", count(figures.unexpected), "rows of people who were granted nothing");
    table.row("outbox", count(figures.outbox), "sign-ups still on their way");
    table
}

fn conclusion(outcome: &Outcome, failures: &[String]) -> String {
    let Figures { places, rows, .. } = outcome.figures;
    if failures.is_empty() {
        return verdict(true, &format!("{places} places, {rows} rows: nobody twice, nobody lost"));
    }
    verdict(false, "The demo failed")
}

/// What to do after a demo that failed.
pub fn where_to_look(logs: Option<&Path>) -> String {
    let logs = logs.map_or_else(String::new, |logs| format!("the logs of every part are in {}; ", logs.display()));
    format!("{logs}`make up` keeps the same stack running to look around in")
}
