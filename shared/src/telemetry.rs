//! Logs: one line each, to standard error, as Lambda expects them.

use std::fmt::Display;
use std::process::ExitCode;

/// Starts logging. `AWS_LAMBDA_LOG_LEVEL` sets the level and `AWS_LAMBDA_LOG_FORMAT=JSON` the form.
pub fn init() {
    lambda_http::tracing::init_default_subscriber();
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
