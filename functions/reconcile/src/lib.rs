//! The `reconcile` function: brings home whatever the fast path left behind.

pub mod request;

use lambda_runtime::LambdaEvent;
use serde::Serialize;
use shared::broker::Publisher;
use shared::config::{BrokerConfig, Env, MysqlConfig, RedisConfig};
use shared::reservations::Reservations;
use shared::store::Store;

use request::Request;

/// What one execution environment keeps between runs.
#[derive(Clone)]
pub struct App {
    #[expect(dead_code)]
    store: Store,
    #[expect(dead_code)]
    reservations: Reservations,
    #[expect(dead_code)]
    publisher: Publisher,
}

impl App {
    /// Reads the settings and prepares the clients. Needs a Tokio runtime.
    pub fn from_env(env: &Env<'_>) -> Result<Self, lambda_runtime::Error> {
        Ok(Self {
            store: Store::new(&MysqlConfig::from_env(env)?)?,
            reservations: Reservations::new(&RedisConfig::from_env(env)?)?,
            publisher: Publisher::new(&BrokerConfig::from_env(env)?),
        })
    }
}

/// What a run did.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Nothing was changed, only looked at.
    pub dry_run: bool,
}

/// Runs once.
pub async fn handle(_app: &App, event: LambdaEvent<serde_json::Value>) -> Result<Report, request::BadRequest> {
    let request = Request::parse(&event.payload)?;
    Ok(Report { dry_run: request.dry_run })
}
