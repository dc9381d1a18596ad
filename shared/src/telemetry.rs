//! Logs: one line each, to standard error, as Lambda expects them.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::domain::Timestamp;

/// Starts logging. `AWS_LAMBDA_LOG_LEVEL` sets the level, `INFO` where it is not set, and `AWS_LAMBDA_LOG_FORMAT=JSON` the
/// form; see "Configuring advanced logging controls" in the AWS Lambda developer guide. A level is all that can be said: filters
/// by name come with regular expressions, which a cold start of `signup` would load for nothing else.
pub fn init() {
    let is_json = variable("AWS_LAMBDA_LOG_FORMAT").eq_ignore_ascii_case("json");
    // One line, of the level of an error: the runtime's own words would be neither.
    std::panic::set_hook(Box::new(|panic| {
        let panic = panic.to_string().replace('\n', " ");
        tracing::error!(panic, "a part of the code failed");
    }));
    // One that is there already stays.
    let _ = tracing::subscriber::set_global_default(subscriber(level(), is_json, io::stderr));
}

/// The least important thing that is logged.
pub fn level() -> LevelFilter {
    level_of(&variable("AWS_LAMBDA_LOG_LEVEL"))
}

/// The filter itself would take nothing for `ERROR`.
fn level_of(name: &str) -> LevelFilter {
    name.parse().ok().filter(|_| !name.is_empty()).unwrap_or(LevelFilter::INFO)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn subscriber(
    level: LevelFilter,
    is_json: bool,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
) -> Box<dyn Subscriber + Send + Sync> {
    let lines = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_writer(writer);
    if is_json { Box::new(lines.with_timer(Now).json().finish()) } else { Box::new(lines.without_time().finish()) }
}

/// The time of a line in JSON. Lambda takes a line without one for `INFO`, whatever its level, so it would drop errors where a
/// function is to log nothing less; see "Log-level filtering" in the AWS Lambda developer guide. In plain text it adds its own.
struct Now;

impl FormatTime for Now {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        write!(line, "{}", Timestamp::now())
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(is_json: bool) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(LevelFilter::WARN, is_json, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("too little");
            tracing::error!(activity_id = 42, "damaged\n\"data\"");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_is_not_a_level_is_info() {
        let names = ["", "loud", "WARN", "debug"];
        assert_eq!(names.map(level_of), [LevelFilter::INFO, LevelFilter::INFO, LevelFilter::WARN, LevelFilter::DEBUG]);
    }

    #[test]
    fn a_line_in_json_has_the_level_and_the_time_that_lambda_filters_by() {
        let text = logged(true);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["level"], &line["fields"]["activity_id"]), (&"ERROR".into(), &42.into()), "{text}");
        let at: Timestamp = line["timestamp"].as_str().unwrap().parse().unwrap();
        assert!(at.as_ms().abs_diff(Timestamp::now().as_ms()) < 60_000, "{text}");
    }

    #[test]
    fn a_line_of_plain_text_has_no_time_of_its_own() {
        assert!(logged(false).starts_with("ERROR"), "{}", logged(false));
    }
}
