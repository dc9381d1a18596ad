//! What the runs of `reconcile` reported, added up.
//!
//! The outbox has to bring everything home by itself. The comparison of Redis with MySQL is a second net under it: what
//! falls into that one here, where Redis loses nothing, is a fault of the first, and would not be seen otherwise.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// What all runs did together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Facts sent again from the outbox.
    pub relayed: u64,
    /// Receipts and counts that only the comparison put right.
    pub mended: u64,
}

impl Reports {
    /// Reads the file that the schedule wrote, one report a line. No file: no run reported.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("reading {}", path.display()))?,
        };
        let mut reports = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let report = serde_json::from_str(line).context("no JSON").and_then(|report| reports.add(&report));
            report.with_context(|| format!("{}, line {number}", path.display()))?;
        }
        Ok(reports)
    }

    /// A step that was not reached is not there, and one that stopped has an `error`.
    fn add(&mut self, report: &Value) -> anyhow::Result<()> {
        let done = |step: &str| report.get(step).filter(|step| step.get("error").is_none());
        for relay in ["relay", "relayAgain"].into_iter().filter_map(done) {
            self.relayed += relay["sent"].as_u64().context("a relay without `sent`")?;
        }
        if let Some(compare) = done("compare") {
            for found in compare["found"].as_array().context("a comparison without `found`")? {
                self.mended += found["mended"].as_u64().context("a comparison without `mended`")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn add(reports: &[Value]) -> anyhow::Result<Reports> {
        let mut sum = Reports::default();
        reports.iter().try_for_each(|report| sum.add(report))?;
        Ok(sum)
    }

    #[test]
    fn what_was_sent_and_mended_is_added_up_and_a_step_that_stopped_did_nothing() {
        let sum = add(&[
            json!({"relay": {"sent": 3}, "compare": {"found": []}}),
            json!({"relay": {"error": "redis is away"}}),
            json!({"relay": {"sent": 4}, "relayAgain": {"sent": 5}, "compare": {"found": [{"mended": 1}, {"mended": 2}]}}),
            json!({"compare": {"error": "mysql is away"}}),
        ]);
        assert_eq!(sum.unwrap(), Reports { relayed: 12, mended: 3 });
    }

    #[test]
    fn a_report_of_another_form_is_not_taken_for_a_clean_one() {
        for report in [json!({"relay": {}}), json!({"compare": {}}), json!({"compare": {"found": [{"repaired": 1}]}})] {
            assert!(add(std::slice::from_ref(&report)).is_err(), "{report}");
        }
    }

    #[test]
    fn a_file_that_no_run_wrote_is_no_error_and_a_broken_line_is_named() {
        let path = std::env::temp_dir().join(format!("onrush-reports-{}", std::process::id()));
        assert_eq!(Reports::read(&path).unwrap(), Reports::default());
        std::fs::write(&path, "{}\nhello\n").unwrap();
        let error = Reports::read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{error:#}").contains("line 2: no JSON"), "{error:#}");
    }
}
