//! One long-lived connection to Redis, or to each node of a cluster, with a deadline on every call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::timeout;

use super::cluster::{Cluster, Entrances, Seen};
use super::scripts::Call;
use super::{OfEach, ReservationsError, replies};
use crate::config::{RedisConfig, ReplicaWait, Secret};
use crate::domain::ActivityId;
use crate::endpoint::{Endpoint, SecretsManagerError};

#[derive(Clone)]
pub(super) struct Connection {
    endpoint: Endpoint,
    is_cluster: bool,
    seen: Seen,
    line: Arc<Mutex<Option<Arc<Line>>>>,
    timeout: Duration,
    wait: Option<ReplicaWait>,
}

/// What leads to one server, or to a cluster. It opens a new connection when one breaks, but keeps one that falls silent, or
/// that leads to a primary that has become a replica.
#[derive(Clone)]
enum Link {
    Server(ConnectionManager),
    Cluster(Box<Cluster>),
}

/// The link in use, and the address with the login that it was made for. One that leads nowhere is given up, once for all
/// calls that waited on it, and the next call makes another one.
struct Line {
    link: Link,
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
    /// Whether the login may be the reason. A cluster's client tells of it in words only, among the reasons why no node could be
    /// reached; and once it has lost all nodes, it does not tell why.
    fn is_login_refused(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::ClusterConnectionNotFound)
            || (error.is_io_error() && error.to_string().contains("authentication failed"))
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
        Self {
            endpoint: config.endpoint.clone(),
            is_cluster: config.cluster,
            seen: Seen::default(),
            line: Arc::default(),
            timeout: config.timeout,
            wait: config.wait,
        }
    }

    /// Calls a script by its digest, or by its source where the server does not know it.
    pub(super) async fn invoke(&self, call: &Call) -> Result<Value, CallError> {
        self.ask(Question::Script(call)).await
    }

    /// The same, and in the same round trip waits until enough replicas hold what the script wrote. Tells how many do
    /// where these are too few.
    pub(super) async fn invoke_replicated(&self, call: &Call) -> Result<(Value, Option<TooFewReplicas>), CallError> {
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

    /// The answers to all of these commands; an error of one is everybody's.
    pub(super) async fn query_all<T: FromRedisValue>(
        &self,
        commands: &mut Pipeline,
    ) -> Result<Vec<T>, ReservationsError> {
        let answers = self.query_each(commands).await?;
        answers.into_iter().collect::<RedisResult<_>>().map_err(ReservationsError::Unavailable)
    }

    /// The answer to each of these commands, in their order.
    pub(super) async fn query_each<T: FromRedisValue>(
        &self,
        commands: &mut Pipeline,
    ) -> Result<Vec<RedisResult<T>>, ReservationsError> {
        typed(self.ask(Question::Each(commands.ignore_errors())).await?)
    }

    async fn ask(&self, question: Question<'_>) -> Result<Value, CallError> {
        let mut used = None;
        let answered = timeout(self.timeout, self.ask_logged_in(question, &mut used)).await;
        let answer = answered.unwrap_or(Err(CallError::TimedOut(self.timeout)));
        if matches!(answer, Err(CallError::TimedOut(_))) {
            self.give_up(used);
        }
        answer
    }

    /// A login that Redis refuses may have been changed.
    async fn ask_logged_in(&self, question: Question<'_>, used: &mut Option<Arc<Line>>) -> Result<Value, CallError> {
        let url = self.endpoint.url().await?;
        match self.ask_at(url.clone(), question, used).await {
            Err(error) if error.is_login_refused() => match self.endpoint.newer_url(&url).await? {
                Some(url) => self.ask_at(url, question, used).await,
                None => Err(error),
            },
            answer => answer,
        }
    }

    async fn ask_at(
        &self,
        url: Secret,
        question: Question<'_>,
        used: &mut Option<Arc<Line>>,
    ) -> Result<Value, CallError> {
        let mut link = used.insert(self.line(url)?).link.clone();
        match ask_twice(question, &mut link).await {
            Err(error) if error.is_timeout() => Err(CallError::TimedOut(self.timeout)),
            Err(error) => {
                if link.is_useless_after(&error).await {
                    self.give_up(used.take());
                }
                Err(CallError::Redis(error))
            }
            Ok(answer) => Ok(answer),
        }
    }

    /// The link for this login.
    fn line(&self, url: Secret) -> Result<Arc<Line>, RedisError> {
        let mut current = locked(&self.line);
        if let Some(line) = current.as_ref().filter(|line| line.url == url) {
            return Ok(Arc::clone(line));
        }
        let link = self.link(&url)?;
        Ok(Arc::clone(current.insert(Arc::new(Line { link, url }))))
    }

    /// Connects to nothing yet.
    fn link(&self, url: &Secret) -> RedisResult<Link> {
        let client = self.endpoint.redis_client(url)?;
        if self.is_cluster {
            let entrances = Entrances::new(client.get_connection_info().clone(), Arc::clone(&self.seen));
            let certificates = self.endpoint.redis_certificates(url);
            return Ok(Link::Cluster(Cluster::new(entrances, certificates, self.timeout).into()));
        }
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout))
            .set_number_of_retries(0);
        Ok(Link::Server(ConnectionManager::new_lazy_with_config(client, config)?))
    }

    fn give_up(&self, used: Option<Arc<Line>>) {
        let Some(used) = used else { return };
        locked(&self.line).take_if(|current| Arc::ptr_eq(current, &used));
    }
}

fn locked<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    async fn is_useless_after(&self, error: &RedisError) -> bool {
        let is_demoted = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        match self {
            Self::Server(_) => is_demoted,
            Self::Cluster(cluster) => is_demoted || cluster.has_lost_all(error).await,
        }
    }
}

/// The manager gives the error of a dead connection to the caller and reconnects behind it, so one retry finds the
/// new connection. A cluster's client has tried again itself. Asking twice is harmless: every script gives the same
/// answer again.
async fn ask_twice(question: Question<'_>, link: &mut Link) -> RedisResult<Value> {
    match link {
        Link::Server(manager) => match question.ask(manager).await {
            Err(error) if error.is_io_error() && !error.is_timeout() => question.ask(manager).await,
            answer => answer,
        },
        Link::Cluster(cluster) => match question {
            Question::Each(commands) => cluster.each(commands).await,
            question => question.ask(&mut cluster.connection().await?).await,
        },
    }
}

#[derive(Clone, Copy)]
enum Question<'a> {
    Script(&'a Call),
    Replicated(&'a Call, ReplicaWait),
    Command(&'a Cmd),
    Each(&'a Pipeline),
}

impl Question<'_> {
    async fn ask(self, server: &mut impl ConnectionLike) -> RedisResult<Value> {
        match self {
            Self::Script(call) => match call.by_digest().query_async(server).await {
                Err(error) if is_unknown_script(&error) => call.by_source().query_async(server).await,
                answer => answer,
            },
            Self::Replicated(call, wait) => match replicated(call.by_digest().clone(), wait, server).await {
                Err(error) if is_unknown_script(&error) => replicated(call.by_source(), wait, server).await,
                answer => answer,
            },
            Self::Command(command) => command.query_async(server).await,
            Self::Each(commands) => commands.query_async(server).await,
        }
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// `WAIT` counts the replicas of the node that is asked. It has no key, so a cluster's client sends both where the script
/// goes; and where a slot moves, only the first command of a pipeline is let in.
async fn replicated(script: Cmd, wait: ReplicaWait, server: &mut impl ConnectionLike) -> RedisResult<Value> {
    let mut pipeline = redis::pipe();
    pipeline.add_command(script).cmd("WAIT").arg(wait.replicas).arg(wait.timeout.as_millis() as u64);
    pipeline.query_async(server).await
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
