//! What the tests stand on: real servers, the functions in this process, and looks behind them.
//!
//! The servers come from `local exec`, which `make test` runs; each test has activities, queues and exchanges of its
//! own on them. A test that hurts a server starts a private one ([`local::servers`]).

mod api;
mod clock;
mod cluster;
mod database;
mod facts;
mod http;
mod mq;
mod once;
mod promises;
mod proxy;
mod redis;
mod sale;
mod secrets;
mod template;
mod world;

pub use api::{Reply, ask, call, event_for, request_of, send, signup_event};
pub use clock::Clock;
pub use cluster::{CLUSTER_MARGIN, CLUSTER_TIMEOUT, OwnCluster, Told, keys_of};
pub use database::empty_database;
pub use facts::{fact_of, users};
pub use http::{HttpSink, Received};
pub use mq::{Message, message_body, mq_event};
pub use once::Once;
pub use proxy::Proxy;
pub use redis::{end_connections, one_redis, redis_at, redis_behind, set_redis_login};
pub use sale::Sale;
pub use secrets::{SecretsManager, Trouble};
pub use template::{Template, text_of};
pub use world::{Apart, Settings, World, eventually, invocation, random_activity_id};
