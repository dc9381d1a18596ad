//! The `reconcile` function: brings home whatever the fast path left behind.
//!
//! Runs each minute, and by hand. Each step may run twice, at the same time as another run, or end half-way: it leaves
//! what it did, and the next run goes on. A step that fails says so in its part of the report and does not keep the
//! others from their work.

mod archive;
mod aside;
mod barrier;
mod compare;
mod measured;
mod rebuild;
mod relay;
mod replay;
pub mod report;
pub mod request;
mod surplus;
mod survey;
mod underway;

use std::time::Duration;

use lambda_runtime::LambdaEvent;
use shared::broker::Publisher;
use shared::comparison::Mode;
use shared::config::{BrokerConfig, Env, MysqlConfig, ReconcileConfig, RedisConfig};
use shared::domain::ActivityId;
use shared::invocation::working_deadline;
use shared::reservations::Reservations;
use shared::store::Store;
use tokio::time::Instant;

use aside::Aside;
pub use aside::Failed;
pub use report::{Report, Step, StepError};
use request::{BadRequest, Request};

/// What one execution environment keeps between runs.
#[derive(Clone)]
pub struct App {
    store: Store,
    reservations: Reservations,
    publisher: Publisher,
    /// How long after its close an activity is kept in Redis.
    archive_after: Duration,
    /// How long a request may still publish that was granted a place before the activity was lost.
    publish_timeout: Duration,
}

impl App {
    /// Reads the settings and prepares the clients. Needs a Tokio runtime.
    pub fn from_env(env: &Env<'_>) -> Result<Self, lambda_runtime::Error> {
        let broker = BrokerConfig::from_env(env)?;
        Ok(Self {
            store: Store::new(&MysqlConfig::from_env(env)?),
            reservations: Reservations::new(&RedisConfig::from_env(env)?),
            publisher: Publisher::new(&broker),
            archive_after: ReconcileConfig::from_env(env)?.archive_after,
            publish_timeout: broker.publish_timeout,
        })
    }
}

/// What one run has to go by.
#[derive(Clone, Copy)]
struct Run {
    /// Only this activity.
    only: Option<ActivityId>,
    mode: Mode,
    deadline: Instant,
}

/// Runs once.
pub async fn handle(app: &App, event: LambdaEvent<serde_json::Value>) -> Result<Report, BadRequest> {
    let request = Request::parse(&event.payload)?;
    let mode = if request.dry_run { Mode::Look } else { Mode::Mend };
    let run = Run { only: request.activity_id, mode, deadline: working_deadline(event.context.deadline) };
    let mut report = Report { dry_run: request.dry_run, ..Report::default() };
    match request.replay_parked {
        Some(count) => report.replay = Some(replay::replay(app, run, count).await.into()),
        None => every_step(app, run, &request, &mut report).await,
    }
    report.log();
    Ok(report)
}

async fn every_step(app: &App, run: Run, request: &Request, report: &mut Report) {
    let mut aside = Aside::default();
    steps(app, run, request, report, &mut aside).await;
    report.failed = aside.0;
}

async fn steps(app: &App, run: Run, request: &Request, report: &mut Report, aside: &mut Aside) {
    // First, since people wait for it, and since it needs no MySQL.
    report.relay = Some(relay::relay(app, run, aside).await.into());
    if run.only.is_none() {
        report.underway = Some(underway::underway(app, run).await.into());
    }
    let survey = match survey::survey(app, run, aside).await {
        Ok(survey) => survey,
        Err(error) => {
            report.survey = Some(Step::from(Err(error)));
            return;
        }
    };
    report.rebuild = Some(rebuild::rebuild(app, run, &survey, aside).await.into());
    let compared = compare::compare(app, run, &survey, aside).await;
    let at_rest = compared.as_ref().map(|compared| compared.at_rest.clone()).unwrap_or_default();
    report.compare = Some(compared.into());
    report.surplus = Some(surplus::surplus(app, run, &survey, request.release_surplus, aside).await.into());
    report.archive = Some(archive::archive(app, run, &survey, &at_rest, aside).await.into());
    report.survey = Some(Ok(survey.summary).into());
    if run.mode == Mode::Mend && report.has_new_notes() {
        report.relay_again = Some(relay::relay(app, run, aside).await.into());
    }
}
