//! Servers that are given by address: used, and otherwise left as they are.
#![allow(clippy::unwrap_used)] // the lint's own exception for tests stops at functions without `#[test]`

use std::process::{Command, Output};

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use local::servers::{RunDir, Servers};
use mysql_async::prelude::Queryable;
use redis::AsyncCommands;
use serde_json::Value;

#[tokio::test]
async fn a_demo_on_given_servers_leaves_them_running_and_touches_only_what_is_onrushs() {
    let dir = RunDir::create("test").unwrap();
    let servers = Servers::start(dir.path()).await.unwrap();
    let mut others = Others::put(&servers).await;
    let pids = pids(&servers);

    let demo = local(&servers, &["demo", "--profile", "dev", "--places", "20", "--people", "200"]);
    assert!(demo.status.success(), "{}", said(&demo));
    assert!(said(&demo).contains("✔ 20 places, 20 rows"), "{}", said(&demo));
    assert!(said(&demo).contains("Starting the functions, on the servers that were given"), "{}", said(&demo));

    others.are_all_there_and_nothing_else(&servers).await;
    assert_eq!(pids, self::pids(&servers), "a server was started again");
    servers.stop().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn a_command_gets_the_addresses_that_were_given() {
    let run = |missing: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_local"));
        command.env("ONRUSH_SERVERS", "given").env_remove("RABBITMQ_MANAGEMENT_URL");
        for name in ["REDIS_URL", "AMQP_URL", "MYSQL_URL"] {
            command.env(name, format!("{name}-of-mine")).env_remove(missing);
        }
        command.args(["exec", "--", "sh", "-c", "echo $REDIS_URL $AMQP_URL $MYSQL_URL; exit 7"]).output().unwrap()
    };
    let done = run("");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "REDIS_URL-of-mine AMQP_URL-of-mine MYSQL_URL-of-mine\n");
    assert_eq!(done.status.code(), Some(7));
    for missing in ["REDIS_URL", "AMQP_URL", "MYSQL_URL"] {
        let refused = run(missing);
        assert!(said(&refused).contains(&format!("error: {missing} is not set")), "{}", said(&refused));
        assert!(refused.stdout.is_empty());
    }
}

#[tokio::test]
async fn chaos_takes_no_servers_that_were_given() {
    let chaos = Command::new(env!("CARGO_BIN_EXE_local")).arg("chaos").env("ONRUSH_SERVERS", "given").output().unwrap();
    assert!(!chaos.status.success());
    assert!(said(&chaos).contains("error: chaos kills and freezes servers"), "{}", said(&chaos));
}

/// What others keep on the same servers.
struct Others {
    redis: redis::aio::MultiplexedConnection,
    mysql: mysql_async::Conn,
    channel: Channel,
    _broker: Connection,
}

impl Others {
    async fn put(servers: &Servers) -> Self {
        let redis = redis::Client::open(servers.redis.url()).unwrap();
        let mut redis = redis.get_multiplexed_async_connection().await.unwrap();
        let () = redis.set("others", "kept").await.unwrap();

        let mut mysql = mysql_async::Conn::from_url(servers.mysql.url()).await.unwrap();
        mysql.query_drop("CREATE TABLE others (id INT PRIMARY KEY)").await.unwrap();
        mysql.query_drop("INSERT INTO others VALUES (7)").await.unwrap();

        let broker = Connection::connect(servers.rabbitmq.url(), ConnectionProperties::default()).await.unwrap();
        let channel = broker.create_channel().await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare("others".into(), durable, FieldTable::default()).await.unwrap();
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        channel.basic_publish("".into(), "others".into(), options, b"kept", properties).await.unwrap();
        Self { redis, mysql, channel, _broker: broker }
    }

    async fn are_all_there_and_nothing_else(&mut self, servers: &Servers) {
        let kept: String = self.redis.get("others").await.unwrap();
        assert_eq!(kept, "kept");
        let keys: Vec<String> = self.redis.keys("*").await.unwrap();
        let ours = |key: &String| key == "activities" || key.starts_with("{activity:");
        assert!(keys.iter().all(|key| ours(key) || key == "others"), "{keys:?}");
        assert!(!keys.contains(&"{activity:42}".to_owned()), "somebody may have an activity 42 there");

        let id: Option<u8> = self.mysql.query_first("SELECT id FROM others").await.unwrap();
        assert_eq!(id, Some(7));
        let mut tables: Vec<String> = self.mysql.query("SHOW TABLES").await.unwrap();
        tables.sort();
        assert_eq!(tables, ["activity", "others", "refinery_schema_history", "user_activity"]);

        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.channel.queue_declare("others".into(), passive, FieldTable::default()).await.unwrap();
        assert_eq!(queue.message_count(), 1);
        let queues = format!("{}/api/queues", servers.rabbitmq.management_url());
        let client = local::https::client_builder().build().unwrap();
        let queues: Vec<Value> = client.get(queues).send().await.unwrap().json().await.unwrap();
        let mut queues: Vec<_> = queues.iter().map(|queue| queue["name"].as_str().unwrap()).collect();
        queues.sort_unstable();
        assert_eq!(queues, ["activity.signup.parked", "activity.signup.queue", "others"]);
    }
}

fn pids(servers: &Servers) -> [u32; 3] {
    [servers.redis.pid(), servers.rabbitmq.pid(), servers.mysql.pid()]
}

/// Runs `local` on servers of ours as if somebody else had started them.
fn local(servers: &Servers, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_local"));
    command.args(arguments).envs(servers.env()).env("ONRUSH_SERVERS", "given").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
