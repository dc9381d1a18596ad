//! A look into Redis behind the functions.

use std::time::Duration;

use local::redis_link::RedisLink;

/// Patient with a busy machine, and with commands that wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A connection to this server.
pub async fn redis_at(url: &str) -> RedisLink {
    RedisLink::open(url, false, ANSWER_WITHIN).await.unwrap()
}

/// Connections to the cluster that this node belongs to.
pub async fn redis_cluster_at(url: &str) -> RedisLink {
    RedisLink::open(url, true, ANSWER_WITHIN).await.unwrap()
}

/// The one server that there always is, for a test about the connection to one.
pub fn one_redis() -> String {
    let url = |name| std::env::var(name).ok();
    url("SINGLE_REDIS_URL").or_else(|| url("REDIS_URL")).expect("REDIS_URL is set by `local exec`")
}
