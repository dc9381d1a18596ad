//! One long-lived connection to Redis, with a deadline on every call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation, ServerErrorKind, Value,
};
use tokio::time::timeout;

use super::{OfEach, ReservationsError, replies};
use crate::config::{RedisConfig, ReplicaWait, Secret};
use crate::domain::ActivityId;
use crate::endpoint::{Endpoint, SecretsManagerError};

#[derive(Clone)]
pub(super) struct Connection {
    endpoint: Endpoint,
    line: Arc<Mutex<Option<Arc<Line>>>>,
    timeout: Duration,
    wait: Option<ReplicaWait>,
}

/// The manager in use, and the address with the login that it was made for. It opens a new connection when one breaks, but
/// keeps one that falls silent, or that leads to a primary that has become a replica. Then it is given up, once for all calls
/// that waited on it, and the next call makes another one.
struct Line {
    manager: ConnectionManager,
    url: Secret,
}

/// So many replicas hold a write.
pub(super) struct TooFewReplicas {
    pub(super) holding: u32,
    pub(super) wanted: u32,
}

/// A call that failed.
pub(super) enum CallError {
    Redis(RedisError),
    Login(SecretsManagerError),
    TimedOut(Duration),
}

impl From<RedisError> for CallError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl From<SecretsManagerError> for CallError {
    fn from(error: SecretsManagerError) -> Self {
        Self::Login(error)
    }
}

impl CallError {
    fn is_login_refused(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::AuthenticationFailed)
    }

    /// The connection fell silent, or leads to a replica.
    fn is_of_the_line(&self) -> bool {
        match self {
            Self::TimedOut(_) => true,
            Self::Redis(error) => error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly),
            Self::Login(_) => false,
        }
    }

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
            CallError::Login(error) => Self::Login(error),
            CallError::TimedOut(timeout) => Self::TimedOut(timeout),
        }
    }
}

/// The server answered, and would answer the same again: a wrong type, or an error that the script itself raised.
fn is_about_data(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
}

impl Connection {
    pub(super) fn new(config: &RedisConfig) -> Self {
        Self { endpoint: config.endpoint.clone(), line: Arc::default(), timeout: config.timeout, wait: config.wait }
    }

    /// Calls a script by its digest, and loads it where the server does not have it.
    pub(super) async fn invoke(&self, call: &ScriptInvocation<'_>) -> Result<Value, CallError> {
        self.ask(Question::Script(call)).await
    }

    /// The same, and in the same round trip waits until enough replicas hold what the script wrote. Tells how many do
    /// where these are too few.
    pub(super) async fn invoke_replicated(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<(Value, Option<TooFewReplicas>), CallError> {
        let Some(wait) = self.wait else { return Ok((self.invoke(call).await?, None)) };
        let answer = self.ask(Question::Replicated(call, wait)).await?;
        let (reply, holding): (Value, u32) =
            redis::from_redis_value(answer).map_err(|error| CallError::Redis(error.into()))?;
        let too_few = TooFewReplicas { holding, wanted: wait.replicas };
        Ok((reply, (holding < wait.replicas).then_some(too_few)))
    }

    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, ReservationsError> {
        typed(self.ask(Question::Command(command)).await?)
    }

    pub(super) async fn query_pipeline<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, ReservationsError> {
        typed(self.ask(Question::Pipeline(pipeline)).await?)
    }

    async fn ask(&self, question: Question<'_>) -> Result<Value, CallError> {
        let used = Mutex::new(None);
        let ask = |url| async {
            let line = self.line(url)?;
            *locked(&used) = Some(Arc::clone(&line));
            ask_twice(question, line.manager.clone()).await.map_err(|error| self.sorted(error))
        };
        let answered = timeout(self.timeout, self.endpoint.open(ask, CallError::is_login_refused)).await;
        let answer = answered.unwrap_or(Err(CallError::TimedOut(self.timeout)));
        if answer.as_ref().is_err_and(CallError::is_of_the_line) {
            self.give_up(locked(&used).take());
        }
        answer
    }

    fn sorted(&self, error: RedisError) -> CallError {
        if error.is_timeout() { CallError::TimedOut(self.timeout) } else { CallError::Redis(error) }
    }

    /// The manager for this login.
    fn line(&self, url: Secret) -> Result<Arc<Line>, RedisError> {
        let mut current = locked(&self.line);
        if let Some(line) = current.as_ref().filter(|line| line.url == url) {
            return Ok(Arc::clone(line));
        }
        let manager = open(&self.endpoint, &url, self.timeout)?;
        Ok(Arc::clone(current.insert(Arc::new(Line { manager, url }))))
    }

    fn give_up(&self, used: Option<Arc<Line>>) {
        let Some(used) = used else { return };
        locked(&self.line).take_if(|current| Arc::ptr_eq(current, &used));
    }
}

fn locked<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(endpoint: &Endpoint, url: &Secret, timeout: Duration) -> Result<ConnectionManager, RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_number_of_retries(0);
    ConnectionManager::new_lazy_with_config(endpoint.redis_client(url)?, config)
}

/// The manager gives the error of a dead connection to the caller and reconnects behind it, so one retry finds the
/// new connection. Asking twice is harmless: every script gives the same answer again.
async fn ask_twice(question: Question<'_>, mut manager: ConnectionManager) -> Result<Value, RedisError> {
    match question.ask(&mut manager).await {
        Err(error) if error.is_io_error() && !error.is_timeout() => question.ask(&mut manager).await,
        answer => answer,
    }
}

#[derive(Clone, Copy)]
enum Question<'a> {
    Script(&'a ScriptInvocation<'a>),
    Replicated(&'a ScriptInvocation<'a>, ReplicaWait),
    Command(&'a Cmd),
    Pipeline(&'a Pipeline),
}

impl Question<'_> {
    async fn ask(self, manager: &mut ConnectionManager) -> Result<Value, RedisError> {
        match self {
            Self::Script(call) => call.invoke_async(manager).await,
            Self::Replicated(call, wait) => {
                let mut pipeline = redis::pipe();
                pipeline.invoke_script(call).cmd("WAIT").arg(wait.replicas).arg(wait.timeout.as_millis() as u64);
                match pipeline.query_async(manager).await {
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                        call.load_async(manager).await?;
                        pipeline.query_async(manager).await
                    }
                    answer => answer,
                }
            }
            Self::Command(command) => command.query_async(manager).await,
            Self::Pipeline(pipeline) => pipeline.query_async(manager).await,
        }
    }
}

/// The answer about one activity among many: data of another form is that activity's own matter, anything else everybody's.
pub(super) fn one_of_many<T>(id: ActivityId, answer: RedisResult<T>) -> Result<OfEach<T>, ReservationsError> {
    match answer.map_err(|error| CallError::Redis(error).at(id)) {
        Err(error @ ReservationsError::Malformed { .. }) => Ok(Err(error)),
        answer => answer.map(Ok),
    }
}

fn typed<T: FromRedisValue>(answer: Value) -> Result<T, ReservationsError> {
    redis::from_redis_value(answer).map_err(|error| ReservationsError::Unavailable(error.into()))
}
