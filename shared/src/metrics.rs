//! Metrics as lines of the log, in CloudWatch's embedded metric format; see "Specification: Embedded metric format" in the
//! Amazon CloudWatch user guide.
//!
//! Written by hand since a value that was not measured has to be missing: the crate for this (`metrics_cloudwatch_embedded`)
//! writes the last value of a gauge again, and a stale one would hide a failure.

use std::io::Write;

use serde_json::{Value, json};

use crate::domain::Timestamp;
use crate::telemetry;

/// The namespace of all metrics.
pub const NAMESPACE: &str = "Onrush";

/// Their dimension: which function measured it.
pub const DIMENSION: &str = "FunctionName";

/// What is measured. Alarms and the dashboard know these by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Messages that wait in the queues of sign-ups.
    Backlog,
    /// People of whom Redis and MySQL told different things, or places by which a count was off; and places sold too often.
    Drift,
    /// Steps of a run that stopped, activities that it left alone or that wait to come back, and queues that are missing.
    FailedSteps,
    /// The age of the oldest sign-up on its way to MySQL.
    OutboxAge,
    /// Messages that wait for an operator.
    ParkedMessages,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Backlog, Self::Drift, Self::FailedSteps, Self::OutboxAge, Self::ParkedMessages];

    /// As CloudWatch knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backlog => "Backlog",
            Self::Drift => "Drift",
            Self::FailedSteps => "FailedSteps",
            Self::OutboxAge => "OutboxAge",
            Self::ParkedMessages => "ParkedMessages",
        }
    }

    /// As CloudWatch names it.
    fn unit(self) -> &'static str {
        match self {
            Self::OutboxAge => "Seconds",
            Self::Backlog | Self::Drift | Self::FailedSteps | Self::ParkedMessages => "Count",
        }
    }
}

/// Writes what was measured to standard output; outside Lambda, where no CloudWatch reads it, nothing.
pub fn write(measured: &[(Metric, u64)]) {
    let Ok(function) = std::env::var("AWS_LAMBDA_FUNCTION_NAME") else { return };
    let line = line(&function, &telemetry::level().to_string().to_uppercase(), Timestamp::now(), measured);
    // Where nobody takes it there is nobody to tell.
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// One line. Lambda drops a line below the level that it was told, and takes one without a level and a time for `INFO`, so this
/// one has the level of that limit.
fn line(function: &str, level: &str, at: Timestamp, measured: &[(Metric, u64)]) -> Value {
    let metrics: Vec<_> =
        measured.iter().map(|(metric, _)| json!({"Name": metric.name(), "Unit": metric.unit()})).collect();
    let mut line = json!({
        "timestamp": at.to_string(),
        "level": level,
        "_aws": {
            "Timestamp": at.as_ms(),
            "CloudWatchMetrics": [{"Namespace": NAMESPACE, "Dimensions": [[DIMENSION]], "Metrics": metrics}],
        },
        DIMENSION: function,
    });
    for (metric, value) in measured {
        line[metric.name()] = json!(value);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_declares_what_it_measured_and_nothing_else() {
        let at: Timestamp = "2026-12-01T12:00:00.123Z".parse().unwrap();
        let line = line("onrush-reconcile", "WARN", at, &[(Metric::OutboxAge, 301), (Metric::ParkedMessages, 0)]);
        let expected = json!({
            "timestamp": "2026-12-01T12:00:00.123Z",
            "level": "WARN",
            "_aws": {
                "Timestamp": 1_796_126_400_123_u64,
                "CloudWatchMetrics": [{
                    "Namespace": "Onrush",
                    "Dimensions": [["FunctionName"]],
                    "Metrics": [{"Name": "OutboxAge", "Unit": "Seconds"}, {"Name": "ParkedMessages", "Unit": "Count"}],
                }],
            },
            "FunctionName": "onrush-reconcile",
            "OutboxAge": 301,
            "ParkedMessages": 0,
        });
        assert_eq!(line, expected);
        assert!(!line.to_string().contains('\n'));
    }
}
