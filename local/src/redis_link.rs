//! A look into Redis, be it one server or a cluster.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisFuture, Value};
use shared::endpoint::Endpoint;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A connection to one server, or to the nodes of a cluster. In a cluster each command goes where its key is, and the
/// commands of a pipeline share a slot.
#[derive(Clone)]
pub enum RedisLink {
    /// One server.
    Server(MultiplexedConnection),
    /// A cluster.
    Cluster(ClusterConnection),
}

impl RedisLink {
    /// Connects to the server at this address, or to the cluster that it belongs to.
    pub async fn open(endpoint: &Endpoint, is_cluster: bool, answer_within: Duration) -> anyhow::Result<Self> {
        let url = endpoint.url().await?;
        if is_cluster {
            let mut client = ClusterClient::builder([url.expose()])
                .connection_timeout(CONNECT_WITHIN)
                .response_timeout(answer_within);
            if let Some(certificates) = endpoint.redis_certificates(&url) {
                client = client.certs(certificates);
            }
            return Ok(Self::Cluster(client.build()?.get_async_connection().await?));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(answer_within));
        let client = endpoint.redis_client(&url)?;
        Ok(Self::Server(client.get_multiplexed_async_connection_with_config(&config).await?))
    }
}

impl ConnectionLike for RedisLink {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
