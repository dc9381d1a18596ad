//! The `provision` function: declares the broker's topology and applies the database migrations.
//!
//! A deployment step. It may run any number of times, also twice at once: what is there stays as it is. It runs as a
//! CloudFormation custom resource, or by hand with `{}`.

mod custom_resource;
mod migrations;

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use shared::broker::{self, DeclareError, LeftOver, Publisher};
use shared::config::{BrokerConfig, Env, MysqlConfig};
use tokio::time::Instant;

pub use custom_resource::PHYSICAL_RESOURCE_ID;
pub use migrations::MigrationError;

/// The longest that the look at left-over queues may take.
const LOOK_LIMIT: Duration = Duration::from_secs(20);

/// What the function needs to know.
#[derive(Clone)]
pub struct App {
    broker: BrokerConfig,
    mysql: MysqlConfig,
}

impl App {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, lambda_runtime::Error> {
        Ok(Self { broker: BrokerConfig::from_env(env)?, mysql: MysqlConfig::from_env(env)? })
    }
}

/// What is in place now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Provisioned {
    /// The queues that sign-ups are published to, through their exchange.
    pub queues: Vec<String>,
    /// Queues beyond `SIGNUP_QUEUES` that still hold messages: nobody may be reading them any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_over: Vec<String>,
    /// The queue of messages for an operator.
    pub parked_queue: String,
    /// Migrations that this run applied, by name.
    pub migrations_applied: Vec<String>,
}

/// It is not in place.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The broker's part.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// The database's part.
    #[error(transparent)]
    Migrate(#[from] MigrationError),
    /// The event has a `RequestType`, but is no custom resource request.
    #[error("the event is no CloudFormation custom resource request: {0}")]
    Event(#[from] serde_json::Error),
    /// CloudFormation was not told, and would wait for an hour.
    #[error("cloudformation did not take the answer: {0}")]
    Respond(#[source] reqwest::Error),
}

/// The address is left out: its signature is a password.
impl From<reqwest::Error> for ProvisionError {
    fn from(error: reqwest::Error) -> Self {
        Self::Respond(error.without_url())
    }
}

/// Runs by hand, or for CloudFormation, which is always told how it went.
pub async fn handle(app: &App, event: Value) -> Result<Value, ProvisionError> {
    if event.get("RequestType").is_some() {
        custom_resource::handle(app, event).await
    } else {
        Ok(serde_json::to_value(provision(app).await?)?)
    }
}

/// The queues that a lower `SIGNUP_QUEUES` leaves behind with messages in them. Everything is in place without this look.
async fn left_over(broker: &BrokerConfig) -> Vec<String> {
    let found = Publisher::new(broker).left_over(Instant::now() + LOOK_LIMIT).await;
    let found = found.unwrap_or_else(|error| {
        tracing::warn!(%error, "nobody looked for queues beyond SIGNUP_QUEUES");
        Vec::new()
    });
    let left: Vec<_> = found.into_iter().filter(|left_over| left_over.messages > 0).collect();
    for LeftOver { name, messages, .. } in &left {
        tracing::error!(queue = %name, messages, "a queue beyond SIGNUP_QUEUES still holds messages: keep its consumer");
    }
    left.into_iter().map(|left_over| left_over.name).collect()
}

/// Puts both parts in place.
pub async fn provision(app: &App) -> Result<Provisioned, ProvisionError> {
    let (declared, migrations_applied) = tokio::join!(broker::declare(&app.broker), migrations::migrate(&app.mysql));
    declared?;
    let left_over = left_over(&app.broker).await;
    let topology = &app.broker.topology;
    Ok(Provisioned {
        queues: topology.queue_names(),
        left_over,
        parked_queue: topology.parked_queue(),
        migrations_applied: migrations_applied?,
    })
}
