//! One long-lived connection to Redis, or to each node of a cluster, with a deadline on every call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{
    Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use super::cluster::{Cluster, Entrances};
use super::scripts::Call;
use super::{OfEach, ReservationsError, replies};
use crate::config::{RedisConfig, ReplicaWait};
use crate::domain::ActivityId;

#[derive(Clone)]
pub(super) struct Connection {
    client: Client,
    line: Arc<Mutex<Line>>,
    timeout: Duration,
    wait: Option<ReplicaWait>,
}

/// One server, or a cluster.
#[derive(Clone)]
enum Client {
    Server(redis::Client),
    Cluster(Entrances),
}

/// What leads there. It opens a new connection when one breaks, but keeps one that falls silent, or that leads to a
/// primary that has become a replica.
#[derive(Clone)]
enum Link {
    Server(ConnectionManager),
    Cluster(Cluster),
}

/// The link in use. One that leads nowhere is replaced as a whole: once for all calls that waited on it.
#[derive(Clone)]
struct Line {
    link: Link,
    generation: u64,
}

/// So many replicas hold a write.
pub(super) struct TooFewReplicas {
    pub(super) holding: u32,
    pub(super) wanted: u32,
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
        let client = client(config.url.expose(), config.cluster).map_err(ReservationsError::Unavailable)?;
        let link = open(&client, config.timeout).map_err(ReservationsError::Unavailable)?;
        let line = Arc::new(Mutex::new(Line { link, generation: 0 }));
        Ok(Self { client, line, timeout: config.timeout, wait: config.wait })
    }

    /// Calls a script by its digest, or by its source where the server does not know it.
    pub(super) async fn invoke(&self, call: &Call) -> Result<Value, CallError> {
        self.ask(Question::Script(call)).await
    }

    /// The same, and in the same round trip waits until enough replicas hold what the script wrote. Tells how many do
    /// where these are too few.
    pub(super) async fn invoke_replicated(
        &self,
        call: &Call,
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
        let Line { mut link, generation } = self.line().clone();
        match tokio::time::timeout(self.timeout, ask_twice(question, &mut link)).await {
            Ok(Err(error)) if error.is_timeout() => self.timed_out(generation),
            Ok(Err(error)) if link.is_useless_after(&error).await => {
                self.replace(generation)?;
                Err(CallError::Redis(error))
            }
            Ok(answer) => answer.map_err(CallError::Redis),
            Err(_) => self.timed_out(generation),
        }
    }

    fn timed_out(&self, generation: u64) -> Result<Value, CallError> {
        self.replace(generation)?;
        Err(CallError::TimedOut(self.timeout))
    }

    fn replace(&self, generation: u64) -> Result<(), CallError> {
        let mut line = self.line();
        if line.generation == generation {
            let link = open(&self.client, self.timeout).map_err(CallError::Redis)?;
            *line = Line { link, generation: generation + 1 };
        }
        Ok(())
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

/// The client of this address, which connects to nothing yet.
fn client(url: &str, is_cluster: bool) -> RedisResult<Client> {
    if is_cluster {
        Ok(Client::Cluster(Entrances::at(url.into_connection_info()?)))
    } else {
        Ok(Client::Server(redis::Client::open(url)?))
    }
}

fn open(client: &Client, timeout: Duration) -> RedisResult<Link> {
    match client {
        Client::Cluster(entrances) => Ok(Link::Cluster(Cluster::new(entrances.clone(), timeout))),
        Client::Server(client) => {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(timeout))
                .set_response_timeout(Some(timeout))
                .set_number_of_retries(0);
            Ok(Link::Server(ConnectionManager::new_lazy_with_config(client.clone(), config)?))
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
