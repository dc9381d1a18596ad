//! A look into Redis behind the functions.

use std::time::Duration;

use local::redis_link::RedisLink;
use shared::config::Secret;
use shared::endpoint::Endpoint;

use crate::Template;

/// Patient with a busy machine, and with commands that wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A connection to this server.
pub async fn redis_at(url: &str) -> RedisLink {
    redis_behind(&Endpoint::new(Secret::new(url)), false).await
}

/// A connection to this server, or to the cluster that it belongs to.
pub async fn redis_behind(endpoint: &Endpoint, is_cluster: bool) -> RedisLink {
    RedisLink::open(endpoint, is_cluster, ANSWER_WITHIN).await.unwrap()
}

/// The one server that there always is, for a test about the connection to one.
pub fn one_redis() -> String {
    let url = |name| std::env::var(name).ok();
    url("SINGLE_REDIS_URL").or_else(|| url("REDIS_URL")).expect("REDIS_URL is set by `local exec`")
}

/// Lets this user of the template in by this password alone. Who is in stays in.
pub async fn set_redis_login(redis: &mut RedisLink, user: &str, password: &str) {
    let mut set_user = redis::cmd("ACL");
    set_user.arg(&["SETUSER", user, "reset", &format!(">{password}")]).arg(Template::with(&[]).redis_permissions());
    set_user.exec_async(redis).await.unwrap();
}

/// Ends the connections of this user.
pub async fn end_connections(redis: &mut RedisLink, user: &str) {
    redis::cmd("CLIENT").arg(&["KILL", "USER", user]).exec_async(redis).await.unwrap();
}
