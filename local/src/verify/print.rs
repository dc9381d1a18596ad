//! Findings as a person reads them.

use std::fmt::Write;

use serde::Serialize;

use super::findings::{Findings, Named};
use crate::report::{Table, count, verdict};

/// How many activities the table shows.
const SHOWN: usize = 20;

/// The table of activities, the table of checks, the offenders, and the verdict.
pub fn report(findings: &Findings) -> String {
    let good = findings.is_clean();
    let text = if good { "every promise is kept" } else { "a promise is broken, or something is still on its way" };
    format!("{}{}{}{}\n", standings(findings), checks(findings), offenders(findings), verdict(good, text))
}

fn standings(findings: &Findings) -> Table {
    let mut table = Table::new("Activities");
    for standing in findings.activities.iter().take(SHOWN) {
        let places = standing.capacity.map_or_else(|| "?".to_owned(), count);
        let people = format!("{} of {places}", count(standing.rows));
        let remark = match standing.taken {
            _ if standing.archived => "rows; closed, and no longer in Redis".to_owned(),
            None => "rows; not in Redis".to_owned(),
            Some(taken) => format!("rows; {} taken, {} receipts in Redis", count(taken), count(standing.receipts)),
        };
        table.row(standing.activity_id.to_string(), people, remark);
    }
    match findings.activities.len() {
        0 => table.row("none", "", ""),
        all if all > SHOWN => table.row("…", format!("{} more", all - SHOWN), ""),
        _ => {}
    }
    table
}

fn checks(findings: &Findings) -> Table {
    let mut table = Table::new("Checks");
    for (kind, found) in findings.counts() {
        table.row(kind, count(found), if found == 0 { "" } else { "✘" });
    }
    table
}

/// The first offenders of each kind by name, one a line.
pub fn offenders(findings: &Findings) -> String {
    let mut text = String::new();
    list(&mut text, "lost", &findings.lost);
    list(&mut text, "unexpected", &findings.unexpected);
    list(&mut text, "differing", &findings.differing);
    list(&mut text, "twice", &findings.twice);
    list(&mut text, "shared", &findings.shared_places);
    list(&mut text, "oversold", &findings.oversold);
    list(&mut text, "miscounted", &findings.miscounted);
    list(&mut text, "missing", &findings.missing);
    list(&mut text, "malformed", &findings.malformed);
    list(&mut text, "outbox", &findings.outbox);
    text
}

fn list<T: Serialize>(text: &mut String, kind: &str, found: &Named<T>) {
    if found.count == 0 {
        return;
    }
    // Writing to a String and serialising plain data cannot fail; what could not be shown is still counted above.
    let _ = writeln!(text, "{kind}, {} of {}:", found.first.len(), count(found.count));
    for thing in &found.first {
        let _ = writeln!(text, "  {}", serde_json::to_string(thing).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use shared::domain::ActivityId;

    use super::super::findings::{Place, Standing};
    use super::*;

    fn plain(findings: &Findings) -> String {
        console::strip_ansi_codes(&report(findings)).into_owned()
    }

    fn standing() -> Standing {
        Standing {
            activity_id: ActivityId::new(42),
            capacity: Some(100),
            taken: Some(100),
            receipts: 100,
            rows: 99,
            outbox: 0,
            archived: false,
        }
    }

    #[test]
    fn a_clean_report_says_so_and_names_nobody() {
        let text = plain(&Findings { activities: vec![standing()], ..Findings::default() });
        assert!(text.contains("42  99 of 100  rows; 100 taken, 100 receipts in Redis"), "{text}");
        assert!(text.ends_with("✔ every promise is kept\n"), "{text}");
        assert!(!text.contains("✘"), "{text}");
    }

    #[test]
    fn a_broken_promise_is_told_with_the_name_of_the_person() {
        let mut findings = Findings { activities: vec![standing()], ..Findings::default() };
        findings.lost.note(Place {
            activity_id: ActivityId::new(42),
            user_id: "alice".parse().unwrap(),
            redis: Some("1 1000 57".into()),
            mysql: None,
            handed_out: None,
        });
        let text = plain(&findings);
        assert!(text.contains("lost, 1 of 1:\n  {\"activityId\":\"42\",\"userId\":\"alice\""), "{text}");
        assert!(text.contains("✘ a promise is broken"), "{text}");
    }
}
