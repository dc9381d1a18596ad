//! The timeline of a run as one HTML page that needs nothing else: faults, requests, replies, backlog and outbox over
//! the same axis.

mod chart;

use std::fmt::Write;

use super::figures::Figures;
use super::history::{Entry, History, Outcome};
use super::torment::Mark;
use super::watch::Sample;
use crate::report::{count, millis};
use chart::{Chart, Series};

const STYLE: &str = "
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1120px;padding:0 1rem;color:#1b2733;background:#fff}
h1{font-size:1.5rem;margin:0}p{margin:.3rem 0 1rem;color:#52616f}
table{border-collapse:collapse;margin:0 0 1.5rem}td{padding:.1rem 1.2rem .1rem 0}
td.n{text-align:right;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}
.good{color:#1a7f37}.bad{color:#c62828}";

/// What happened in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Second {
    granted: u64,
    other: u64,
    open: u64,
    slowest_ms: f64,
}

/// The page.
pub fn page(figures: &Figures, history: &History, samples: &[Sample], failures: &[String]) -> String {
    let ends_ms = (figures.minutes * 60_000.0) as u64; // then the check asks for every receipt
    let seconds = by_second(history.entries.iter().filter(|entry| entry.began_ms < ends_ms));
    let good = failures.is_empty();
    let (class, conclusion) =
        if good { ("good", "every promise was kept".to_owned()) } else { ("bad", failures.join("; ")) };
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Onrush: chaos of seed {seed}</title>\n\
         <style>{STYLE}</style>\n<h1>Chaos of seed {seed}</h1>\n\
         <p>{minutes} minutes, {faults} faults: <b class=\"{class}\">{conclusion}</b></p>\n{table}\n{svg}\n</html>\n",
        seed = figures.seed,
        minutes = figures.minutes,
        faults = figures.faults,
        conclusion = escaped(&conclusion),
        table = table(figures),
        svg = svg(&seconds, samples, &figures.marks),
    )
}

fn by_second<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<Second> {
    let mut seconds = Vec::new();
    for entry in entries {
        let index = usize::try_from(entry.began_ms / 1_000).unwrap_or(usize::MAX);
        if index >= seconds.len() {
            seconds.resize(index + 1, Second::default());
        }
        let second = &mut seconds[index];
        match entry.outcome {
            Outcome::Granted { .. } => second.granted += 1,
            Outcome::Unknown { .. } | Outcome::Strange { .. } => second.open += 1,
            _ => second.other += 1,
        }
        second.slowest_ms = second.slowest_ms.max(entry.took_ms);
    }
    seconds
}

fn table(figures: &Figures) -> String {
    let ms = |ms: Option<f64>| ms.map_or_else(|| "none".to_owned(), millis);
    let rows = [
        [
            ("attempted", count(figures.attempted)),
            ("lost", count(figures.lost)),
            ("p99, healthy", millis(figures.p99_ms)),
        ],
        [
            ("acknowledged", count(figures.acknowledged)),
            ("twice", count(figures.twice)),
            ("p99, broker down", ms(figures.broker_down_p99_ms)),
        ],
        [
            ("ambiguous", count(figures.ambiguous)),
            ("oversold", count(figures.oversold)),
            ("p99, MySQL down", ms(figures.mysql_down_p99_ms)),
        ],
        [
            ("recovered", count(figures.recovered)),
            ("unexpected", count(figures.unexpected)),
            ("longest reply, Redis down", ms(figures.redis_down_max_ms)),
        ],
        [
            ("requests", count(figures.requests)),
            ("mended", count(figures.mended)),
            ("healed after", figures.heal_ms.map_or_else(|| "never".to_owned(), |ms| millis(ms as f64))),
        ],
    ];
    let mut table = "<table>".to_owned();
    for row in rows {
        table.push_str("<tr>");
        for (label, number) in row {
            // Writing to a String cannot fail.
            let _ = write!(table, "<td>{label}<td class=\"n\">{number}");
        }
        table.push('\n');
    }
    table + "</table>"
}

fn svg(seconds: &[Second], samples: &[Sample], marks: &[Mark]) -> String {
    let at = |index: usize| index as f64;
    let rate = |of: fn(&Second) -> u64| -> Vec<_> {
        seconds.iter().enumerate().map(|(index, second)| (at(index), Some(of(second) as f64))).collect()
    };
    let sampled = |of: fn(&Sample) -> Option<u64>| -> Vec<_> {
        let point = |sample: &Sample| (sample.at_ms as f64 / 1_000.0, of(sample).map(|number| number as f64));
        samples.iter().map(point).collect()
    };
    let slowest = seconds.iter().enumerate().map(|(index, second)| (at(index), Some(second.slowest_ms))).collect();
    let last = samples.last().map_or(0.0, |sample| sample.at_ms as f64 / 1_000.0);
    let mut chart = Chart::new(last.max(seconds.len() as f64), marks);
    chart.panel(
        "requests a second",
        &[
            Series { label: "without a clear reply", colour: "#c62828", points: rate(|second| second.open) },
            Series { label: "granted", colour: "#1a7f37", points: rate(|second| second.granted + second.open) },
            Series {
                label: "other replies",
                colour: "#9fb3c8",
                points: rate(|second| second.granted + second.open + second.other),
            },
        ],
    );
    chart.panel("slowest reply, ms", &[Series { label: "", colour: "#6a4fb3", points: slowest }]);
    chart.panel(
        "messages in the queue",
        &[Series { label: "", colour: "#b26a00", points: sampled(|sample| sample.backlog) }],
    );
    chart.panel("outbox notes", &[Series { label: "", colour: "#0b6fa4", points: sampled(|sample| sample.outbox) }]);
    chart.finish()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use shared::domain::ActivityId;

    use super::super::history::{Operation, Pair};
    use super::super::plan::{Kind, Part};
    use super::*;

    fn entry(began_ms: u64, outcome: Outcome) -> Entry {
        let pair = Pair { activity: ActivityId::new(1), user: "alice".parse().unwrap() };
        Entry { began_ms, took_ms: began_ms as f64, pair, operation: Operation::SignUp, status: None, outcome }
    }

    #[test]
    fn requests_are_counted_by_the_second_in_which_they_began() {
        let entries = [
            entry(2_999, Outcome::Granted { sequence: 1 }),
            entry(100, Outcome::SoldOut),
            entry(200, Outcome::Unknown { why: "503".into() }),
        ];
        let seconds = by_second(&entries);
        assert_eq!(seconds[0], Second { granted: 0, other: 1, open: 1, slowest_ms: 200.0 });
        assert_eq!(seconds[1], Second::default());
        assert_eq!(seconds[2], Second { granted: 1, other: 0, open: 0, slowest_ms: 2_999.0 });
    }

    #[test]
    fn the_page_shows_every_fault_and_asks_nobody_for_anything() {
        let mark = Mark { part: Part::MySql, kind: Kind::Stop, from_ms: 500, undone_ms: None, to_ms: Some(1_500) };
        let figures = Figures { seed: 7, minutes: 1.0, marks: vec![mark], ..Figures::default() };
        let history = History { entries: vec![entry(100, Outcome::SoldOut)], ..History::default() };
        let sample = Sample { at_ms: 2_000, outbox: Some(3), backlog: None };
        let page = page(&figures, &history, &[sample], &["1 <b> lost".to_owned()]);
        assert!(page.contains("MySQL stopped, 0.5 s to 1.5 s"), "{page}");
        assert!(page.contains("1 &lt;b&gt; lost"), "{page}");
        for outside in ["http:", "https:", "src=", "href=", "<script", "NaN", "inf"] {
            assert!(!page.contains(outside), "{outside}: {page}");
        }
    }
}
