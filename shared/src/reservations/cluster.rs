//! Connections to the nodes of a cluster: each command goes to the one that holds the slot of its key.
//!
//! The client follows redirections and failovers by itself, within the deadline of the call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo, Slot};
use redis::{
    Arg, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, TlsCertificates, Value,
};
use tokio::sync::OnceCell;

/// How often the client follows a redirection, or asks again while a slot moves or a node is gone. The pauses between grow
/// to a tenth of the deadline, so a call that comes to nothing says why, rather than that time has run out.
const RETRIES: u32 = 6;

/// So many slots are asked at a time.
const SIDE_BY_SIDE: usize = 64;

/// Where a cluster is entered: at the address that was given, and at the nodes that it named last, since the one that was
/// given may be gone.
#[derive(Clone)]
pub(super) struct Entrances {
    given: ConnectionInfo,
    seen: Seen,
}

/// The nodes that a cluster named last.
pub(super) type Seen = Arc<Mutex<Vec<ConnectionAddr>>>;

/// Connections to all nodes, opened by the first call. A clone is the same.
#[derive(Clone)]
pub(super) struct Cluster {
    entrances: Entrances,
    certificates: Option<TlsCertificates>,
    timeout: Duration,
    connection: Arc<OnceCell<ClusterConnection>>,
}

impl Entrances {
    pub(super) fn new(given: ConnectionInfo, seen: Seen) -> Self {
        Self { given, seen }
    }

    fn all(&self) -> Vec<ConnectionInfo> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let others = seen.iter().map(|addr| self.given.clone().set_addr(addr.clone()));
        std::iter::once(self.given.clone()).chain(others).collect()
    }

    /// Reads what `CLUSTER SLOTS` says: lists of a first slot, a last slot, and nodes, each with host and port. What has
    /// another form is left out.
    fn remember(&self, slots: Value) {
        let mut seen = Vec::new();
        for range in list(slots) {
            for node in list(range).into_iter().skip(2).map(list) {
                let [Value::BulkString(host), Value::Int(port), ..] = node.as_slice() else { continue };
                let (Ok(host), Ok(port)) = (str::from_utf8(host), u16::try_from(*port)) else { continue };
                let addr = self.with_host(host, port);
                // Where the server does not know its own name, this is "" or "?".
                if !matches!(host, "" | "?") && addr != *self.given.addr() && !seen.contains(&addr) {
                    seen.push(addr);
                }
            }
        }
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    fn with_host(&self, host: &str, port: u16) -> ConnectionAddr {
        let host = host.to_owned();
        match self.given.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        }
    }
}

impl Cluster {
    /// Opens nothing yet. `timeout` is the longest that one call may take.
    pub(super) fn new(entrances: Entrances, certificates: Option<TlsCertificates>, timeout: Duration) -> Self {
        Self { entrances, certificates, timeout, connection: Arc::default() }
    }

    pub(super) async fn connection(&self) -> RedisResult<ClusterConnection> {
        self.connection.get_or_try_init(|| self.open()).await.cloned()
    }

    async fn open(&self) -> RedisResult<ClusterConnection> {
        // A node that does not answer is waited for twice, as an entrance and as a part of the cluster, and the others
        // must still be heard in time.
        let mut client = ClusterClient::builder(self.entrances.all())
            .connection_timeout(self.timeout / 3)
            .response_timeout(self.timeout)
            .overall_response_timeout(None)
            .retries(RETRIES)
            .min_retry_wait(5)
            .max_retry_wait(u64::try_from(self.timeout.as_millis() / 10).unwrap_or(u64::MAX).max(10));
        if let Some(certificates) = &self.certificates {
            client = client.certs(certificates.clone());
        }
        let mut connection = client.build()?.get_async_connection().await.map_err(no_cluster)?;
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        self.entrances.remember(connection.route_command(slots, anywhere).await?);
        Ok(connection)
    }

    /// The answers to commands about many slots, in their order: those about one slot are asked one after the other, so
    /// that each finds its way while the slot moves. An error that no server sent is everybody's.
    pub(super) async fn each(&self, commands: &Pipeline) -> RedisResult<Value> {
        let connection = self.connection().await?;
        let commands: Vec<&Cmd> = commands.cmd_iter().collect();
        let mut answers = Vec::new();
        for of_one_slot in commands.chunk_by(|one, next| slot(one) == slot(next)) {
            answers.push(one_by_one(connection.clone(), of_one_slot));
        }
        let answers: Vec<Vec<Value>> = stream::iter(answers).buffered(SIDE_BY_SIDE).try_collect().await?;
        Ok(Value::Array(answers.concat()))
    }

    /// Whether this error says that no node is left, so that the client would look for them without end.
    pub(super) async fn has_lost_all(&self, error: &RedisError) -> bool {
        if !error.is_unrecoverable_error() {
            return false;
        }
        let Some(mut connection) = self.connection.get().cloned() else { return false };
        let time = redis::cmd("TIME");
        let answer = time.query_async::<Value>(&mut connection);
        !matches!(tokio::time::timeout(self.timeout / 10, answer).await, Ok(Ok(_)))
    }
}

async fn one_by_one(mut connection: ClusterConnection, commands: &[&Cmd]) -> RedisResult<Vec<Value>> {
    let mut answers = Vec::with_capacity(commands.len());
    for command in commands {
        answers.push(match command.query_async(&mut connection).await {
            Ok(answer) => answer,
            Err(error) => Value::ServerError(error.try_into()?),
        });
    }
    Ok(answers)
}

/// The slot of the key, which is the first argument of the commands that are asked in numbers.
fn slot(command: &Cmd) -> Option<Slot> {
    match command.args_iter().nth(1)? {
        Arg::Simple(key) => Some(Slot::for_key(key)),
        _ => None,
    }
}

/// What a server says that is no node of a cluster is not about anybody's data.
fn no_cluster(error: RedisError) -> RedisError {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            (ErrorKind::InvalidClientConfig, "no cluster at REDIS_URL", error.to_string()).into()
        }
        _ => error,
    }
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_a_cluster_are_entrances_too_each_once() {
        let entrances = Entrances::new("rediss://:secret@first:7000".parse().unwrap(), Seen::default());
        let node = |host: &str, port| {
            let rest = Value::BulkString(b"id".to_vec());
            Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port), rest])
        };
        let range = |nodes: Vec<Value>| Value::Array([vec![Value::Int(0), Value::Int(9)], nodes].concat());
        entrances.remember(Value::Array(vec![
            range(vec![node("first", 7_000), node("second", 7_001), node("", 7_002), node("?", 7_003)]),
            range(vec![node("second", 7_001), node("third", 70_000), Value::Nil, node("third", 7_002)]),
            Value::Int(1),
        ]));
        let all: Vec<_> = entrances.all().iter().map(|info| info.addr().to_string()).collect();
        assert_eq!(all, ["first:7000", "second:7001", "third:7002"]);
        let third = &entrances.all()[2];
        assert!(matches!(third.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        assert_eq!(third.redis_settings().password(), Some("secret"));
    }
}
