//! One long-lived connection to Redis, with a deadline on every call.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, ScriptInvocation, ServerErrorKind, Value};

use super::{ReservationsError, replies};
use crate::config::RedisConfig;
use crate::domain::ActivityId;

#[derive(Clone)]
pub(super) struct Connection {
    manager: ConnectionManager,
    timeout: Duration,
}

/// A call that failed.
pub(super) enum CallError {
    Redis(RedisError),
    TimedOut(Duration),
}

impl CallError {
    /// Tells a broken part from data that Onrush did not write.
    pub(super) fn at(self, id: ActivityId) -> ReservationsError {
        match self {
            Self::Redis(error) if is_about_data(&error) => replies::malformed(id, &error.to_string()),
            other => other.into(),
        }
    }
}

impl From<CallError> for ReservationsError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Redis(error) => Self::Unavailable(error),
            CallError::TimedOut(timeout) => Self::TimedOut(timeout),
        }
    }
}

/// The server answered, and would answer the same again: a wrong type, or an error that the script itself raised.
fn is_about_data(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
}

impl Connection {
    pub(super) fn new(config: &RedisConfig) -> Result<Self, ReservationsError> {
        let manager_config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(config.timeout))
            .set_response_timeout(Some(config.timeout))
            .set_number_of_retries(0);
        let manager = redis::Client::open(config.url.expose())
            .and_then(|client| ConnectionManager::new_lazy_with_config(client, manager_config))
            .map_err(ReservationsError::Unavailable)?;
        Ok(Self { manager, timeout: config.timeout })
    }

    /// Calls a script by its digest, and loads it where the server does not have it.
    pub(super) async fn invoke(&self, call: &ScriptInvocation<'_>) -> Result<Value, CallError> {
        self.with_retry(async |connection| call.invoke_async(connection).await).await
    }

    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, ReservationsError> {
        Ok(self.with_retry(async |connection| command.query_async(connection).await).await?)
    }

    pub(super) async fn query_pipeline<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, ReservationsError> {
        Ok(self.with_retry(async |connection| pipeline.query_async(connection).await).await?)
    }

    /// The manager gives the error of a dead connection to the caller and reconnects behind it, so one retry finds the
    /// new connection. Asking twice is harmless: every script gives the same answer again.
    async fn with_retry<T>(
        &self,
        ask: impl AsyncFn(&mut ConnectionManager) -> Result<T, RedisError>,
    ) -> Result<T, CallError> {
        let mut manager = self.manager.clone();
        let asked_twice = async {
            match ask(&mut manager).await {
                Err(error) if error.is_io_error() && !error.is_timeout() => ask(&mut manager).await,
                answer => answer,
            }
        };
        match tokio::time::timeout(self.timeout, asked_twice).await {
            Ok(answer) => answer.map_err(CallError::Redis),
            Err(_) => Err(CallError::TimedOut(self.timeout)),
        }
    }
}
