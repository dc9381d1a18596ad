//! Logs: one line each, to standard error, as Lambda expects them.

use std::fmt::Display;
use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;

/// Starts logging. `AWS_LAMBDA_LOG_LEVEL` sets the level, `INFO` where it is not set, and `AWS_LAMBDA_LOG_FORMAT=JSON` the
/// form; see "Configuring advanced logging controls" in the AWS Lambda developer guide. A level is all that can be said: filters
/// by name come with regular expressions, which a cold start of `signup` would load for nothing else.
pub fn init() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let level = variable("AWS_LAMBDA_LOG_LEVEL").parse().unwrap_or(LevelFilter::INFO);
    let lines =
        tracing_subscriber::fmt().with_max_level(level).with_target(false).without_time().with_writer(std::io::stderr);
    if variable("AWS_LAMBDA_LOG_FORMAT").eq_ignore_ascii_case("json") {
        lines.json().init();
    } else {
        lines.init();
    }
}

/// Ends `main`: a start or a runtime that failed is one line that says why.
pub fn exit<E: Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the function stopped");
            ExitCode::FAILURE
        }
    }
}
