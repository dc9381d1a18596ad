//! One test's own corner of the servers.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use lambda_runtime::{Context, LambdaEvent};
use local::redis_link::RedisLink;
use local::servers::{Redis, RedisCluster, RunDir};
use mysql_async::Pool;
use mysql_async::prelude::Queryable;
use redis::AsyncCommands;
use serde_json::Value;
use shared::config::{BrokerConfig, Env, MysqlConfig, RedisConfig, Topology};
use shared::domain::ActivityId;
use shared::reservations::{ActivityKeys, Reservations};
use shared::store::Store;

use crate::{Reply, ask, event_for, redis_behind};

/// The variables that the functions of a test read.
pub type Settings = HashMap<String, String>;

/// How long a call of a shared server may take. `reconcile` waits for as long as a publish may take before it rebuilds.
const PATIENCE_MS: [(&str, &str, u64); 2] =
    [("REDIS_URL", "REDIS_TIMEOUT_MS", 10_000), ("AMQP_URL", "PUBLISH_TIMEOUT_MS", 2_000)];

/// What a corner of its own stands on.
pub struct Apart {
    redis: Own,
    dir: RunDir,
}

enum Own {
    Server(Box<Redis>),
    Cluster(RedisCluster),
}

/// No node of a cluster of its own dies; the machine may be busy.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);

impl Apart {
    /// Stops Redis and removes its data.
    pub async fn stop(self) {
        match self.redis {
            Own::Server(mut redis) => redis.stop().await.unwrap(),
            Own::Cluster(cluster) => cluster.stop().await.unwrap(),
        }
        self.dir.finish(true).unwrap();
    }
}

/// The servers, the functions, and names that no other test uses.
pub struct World {
    /// The variables of the functions. Change them before an app is made.
    pub settings: Settings,
    /// A connection to look behind the functions.
    pub redis: RedisLink,
    /// Connections to look behind the functions.
    pub mysql: Pool,
}

impl World {
    /// A corner of the shared servers, with its queues declared and the tables in place.
    pub async fn new() -> Self {
        Self::with(&[]).await
    }

    /// The same with some settings of its own, for example another address.
    pub async fn with(settings: &[(&str, &str)]) -> Self {
        let world = Self::unprovisioned(settings).await;
        provision::provision(&world.provision()).await.unwrap();
        world
    }

    /// A corner with a Redis and a database of its own, for a test that runs `reconcile` over everything there is: one
    /// server, or a cluster where the others stand on one. Hand it back to [`Apart::stop`] at the end.
    pub async fn apart(own: &[(&str, &str)]) -> (Self, Apart) {
        if std::env::var("REDIS_CLUSTER").is_ok_and(|value| value == "true") {
            let dir = RunDir::create("test").unwrap();
            let cluster = RedisCluster::start(dir.path(), NODE_TIMEOUT).await.unwrap();
            let [(_, url), _] = cluster.env();
            let settings = [("REDIS_URL", url.as_str()), ("REDIS_CLUSTER", "true")];
            Self::beside(&settings, own, Apart { redis: Own::Cluster(cluster), dir }).await
        } else {
            Self::apart_on_one_server(own).await
        }
    }

    /// The same with one server, for a test about what happens to one.
    pub async fn apart_on_one_server(own: &[(&str, &str)]) -> (Self, Apart) {
        let dir = RunDir::create("test").unwrap();
        let redis = Redis::start(dir.path()).await.unwrap();
        let url = redis.url().to_owned();
        Self::beside(&[("REDIS_URL", &url)], own, Apart { redis: Own::Server(redis.into()), dir }).await
    }

    async fn beside(redis: &[(&str, &str)], own: &[(&str, &str)], apart: Apart) -> (Self, Apart) {
        let database = crate::empty_database().await;
        let settings = [redis, &[("MYSQL_URL", database.as_str())], own].concat();
        (Self::with(&settings).await, apart)
    }

    /// A corner without queues and, perhaps, tables.
    pub async fn unprovisioned(own: &[(&str, &str)]) -> Self {
        let name = format!("test-{:016x}", rand::random::<u64>());
        let mut settings: Settings = ["REDIS_URL", "REDIS_CLUSTER", "AMQP_URL", "MYSQL_URL"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), std::env::var(key).ok()?)))
            .collect();
        for (key, value) in [
            ("SIGNUP_EXCHANGE", format!("{name}.direct")),
            ("SIGNUP_QUEUE", format!("{name}.queue")),
            ("SIGNUP_ROUTING_KEY", format!("{name}.routing")),
        ] {
            settings.insert(key.to_owned(), value);
        }
        // A Redis of its own is one server unless it says otherwise.
        if own.iter().any(|(key, _)| *key == "REDIS_URL") {
            settings.insert("REDIS_CLUSTER".to_owned(), "false".to_owned());
        }
        settings.extend(own.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        for key in ["REDIS_URL", "AMQP_URL", "MYSQL_URL"] {
            let is_set = settings.contains_key(key);
            assert!(is_set, "{key} is not set: run `make test`, or `cargo run -p local -- exec -- cargo nextest run`");
        }
        let lookup = |name: &str| settings.get(name).cloned();
        let env = Env::new(&lookup);
        let (redis, mysql) = (RedisConfig::from_env(&env).unwrap(), MysqlConfig::from_env(&env).unwrap());
        let options = mysql.endpoint.mysql_options(&mysql.endpoint.url().await.unwrap()).unwrap();
        let mysql = Pool::new(options.setup(vec!["SET time_zone = '+00:00'"]));
        let redis = redis_behind(&redis.endpoint, redis.cluster).await;
        Self { settings, redis, mysql }
    }

    fn build<T, E: std::fmt::Debug>(&self, build: impl FnOnce(&Env<'_>) -> Result<T, E>) -> T {
        let variables = self.variables();
        build(&Env::new(&|name| variables.get(name).cloned())).unwrap()
    }

    /// The settings as a function gets them: patient with the shared servers where a test sets no limit. Those are never
    /// down, and a busy machine must not look like it.
    pub fn variables(&self) -> Settings {
        let mut variables = self.settings.clone();
        for (address, limit, patience_ms) in PATIENCE_MS {
            if std::env::var(address).ok().as_ref() == variables.get(address) {
                variables.entry(limit.to_owned()).or_insert_with(|| patience_ms.to_string());
            }
        }
        variables
    }

    /// A fresh `signup` function.
    pub fn signup(&self) -> signup::App {
        self.build(signup::App::from_env)
    }

    /// A fresh `consumer` function.
    pub fn consumer(&self) -> consumer::App {
        self.build(consumer::App::from_env)
    }

    /// A fresh `activities` function.
    pub fn activities(&self) -> activities::App {
        self.build(activities::App::from_env)
    }

    /// A fresh `provision` function.
    pub fn provision(&self) -> provision::App {
        self.build(provision::App::from_env)
    }

    /// A fresh `reconcile` function.
    pub fn reconcile(&self) -> reconcile::App {
        self.build(reconcile::App::from_env)
    }

    /// The reservations, as the functions use them.
    pub fn reservations(&self) -> Reservations {
        Reservations::new(&self.build(RedisConfig::from_env))
    }

    /// The record, as the functions use it.
    pub fn store(&self) -> Store {
        Store::new(&self.build(MysqlConfig::from_env))
    }

    /// The broker's settings.
    pub fn broker_config(&self) -> BrokerConfig {
        self.build(BrokerConfig::from_env)
    }

    /// The names on the broker.
    pub fn topology(&self) -> Topology {
        self.broker_config().topology
    }

    /// Creates an open activity through the API.
    pub async fn open_activity(&self, capacity: u32) -> ActivityId {
        self.put_activity(serde_json::json!({"title": "Spring hike", "capacity": capacity})).await
    }

    /// Creates an activity through the API.
    pub async fn put_activity(&self, body: Value) -> ActivityId {
        let id = random_activity_id();
        self.put_activity_as(id, body).await;
        id
    }

    /// The same with an id that was chosen.
    pub async fn put_activity_as(&self, id: ActivityId, body: Value) {
        let reply =
            self.activities_call("PUT", &format!("/activities/{id}"), Some("organiser"), &body.to_string()).await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    /// One call of the `activities` function by somebody with every scope, or by nobody.
    pub async fn activities_call(&self, method: &str, path: &str, user: Option<&str>, body: &str) -> Reply {
        ask(&self.activities(), &event_for(method, path, user, body)).await
    }

    /// What the outbox holds: user ids, sorted.
    pub async fn outbox(&self, id: ActivityId) -> Vec<String> {
        let mut users: Vec<String> = self.redis.clone().zrange(ActivityKeys::of(id).outbox, 0, -1).await.unwrap();
        users.sort();
        users
    }

    /// Places taken, as Redis counts them.
    pub async fn taken(&self, id: ActivityId) -> u64 {
        self.redis.clone().hget(ActivityKeys::of(id).activity, "taken").await.unwrap()
    }

    /// All that Redis holds of the activity, to compare before and after.
    pub async fn redis_dump(&self, id: ActivityId) -> Vec<Option<Vec<u8>>> {
        let ActivityKeys { activity, signups, outbox } = ActivityKeys::of(id);
        let mut pipeline = redis::pipe();
        for key in [activity, signups, outbox] {
            pipeline.cmd("DUMP").arg(key);
        }
        pipeline.query_async(&mut self.redis.clone()).await.unwrap()
    }

    /// The rows of the activity: user id, status, version, sequence; sorted by user id.
    pub async fn rows(&self, id: ActivityId) -> Vec<(String, u8, u64, u64)> {
        let sql = "SELECT user_id, status, version, sequence FROM user_activity WHERE activity_id = ? ORDER BY user_id";
        self.mysql.get_conn().await.unwrap().exec(sql, (id.get(),)).await.unwrap()
    }

    /// `activity.active`, or none where MySQL does not know the activity. Checks that it is exact.
    pub async fn active(&self, id: ActivityId) -> Option<u64> {
        let mut connection = self.mysql.get_conn().await.unwrap();
        let counted: u64 = connection
            .exec_first("SELECT COUNT(*) FROM user_activity WHERE activity_id = ? AND status = 1", (id.get(),))
            .await
            .unwrap()
            .unwrap();
        let active: Option<(u64, u64)> =
            connection.exec_first("SELECT active, capacity FROM activity WHERE id = ?", (id.get(),)).await.unwrap();
        if let Some((active, capacity)) = active {
            assert_eq!(active, counted, "activity.active is not the number of active rows");
            assert!(active <= capacity, "oversold");
        }
        active.map(|(active, _)| active)
    }

    /// Invokes the consumer with these messages, as the event source would.
    pub async fn consume(
        &self,
        app: &consumer::App,
        event: Value,
    ) -> Result<consumer::Report, consumer::ConsumerError> {
        consumer::handle(app, invocation(event, Duration::from_secs(30))).await
    }
}

impl World {
    /// Invokes `reconcile` once; the report as a caller sees it. For all activities only in a corner of its own
    /// ([`World::apart`]): others have tests in them.
    pub async fn reconciled(&self, request: Value) -> Value {
        let report = reconcile::handle(&self.reconcile(), invocation(request, Duration::from_secs(60))).await.unwrap();
        serde_json::to_value(report).unwrap()
    }

    /// Hands everything in one queue to the consumer, as its event source would.
    pub async fn pump_queue(&self, queue: u16) -> Option<consumer::Report> {
        let name = self.topology().queue_name(queue);
        let bodies: Vec<_> = self.drain(&name).await.into_iter().map(|message| message.body).collect();
        if bodies.is_empty() {
            return None;
        }
        let mut event = crate::mq_event(bodies);
        let queues = event["rmqMessagesByQueue"].as_object_mut().unwrap();
        let messages = queues.remove("activity.signup.queue::/").unwrap();
        queues.insert(format!("{name}::/"), messages);
        Some(self.consume(&self.consumer(), event).await.unwrap())
    }

    /// Hands everything in the queues to the consumer, as the event source would.
    pub async fn pump(&self) -> Option<consumer::Report> {
        let bodies: Vec<_> = self.drain_signups().await.into_iter().map(|message| message.body).collect();
        if bodies.is_empty() {
            return None;
        }
        Some(self.consume(&self.consumer(), crate::mq_event(bodies)).await.unwrap())
    }
}

/// An invocation that must end within `limit`.
pub fn invocation(payload: Value, limit: Duration) -> LambdaEvent<Value> {
    let mut context = Context::default();
    let deadline = std::time::SystemTime::now() + limit;
    context.deadline = deadline.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    LambdaEvent::new(payload, context)
}

/// An id that no other test uses.
pub fn random_activity_id() -> ActivityId {
    ActivityId::new(rand::random())
}

/// Waits until the condition holds; fails after `limit`.
pub async fn eventually<F: Future<Output = bool>>(what: &str, limit: Duration, mut holds: impl FnMut() -> F) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < limit, "{what} did not happen within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
