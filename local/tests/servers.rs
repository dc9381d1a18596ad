//! The private servers, for real: each test starts its own.
#![allow(clippy::unwrap_used)] // the lint's own exception for tests stops at functions without `#[test]`

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use local::servers::{Choice, MySql, RabbitMq, Redis, RunDir, Servers};
use mysql_async::prelude::Queryable;

/// See [`RabbitMq::kill`].
const AFTER_DECLARING: Duration = Duration::from_secs(4);

#[tokio::test]
async fn two_copies_run_side_by_side_and_leave_no_process_behind() {
    let (one, two) = (run_dir(), run_dir());
    let (first, second) = tokio::try_join!(Servers::start(one.path()), Servers::start(two.path())).unwrap();
    for (key, value) in first.env() {
        assert!(!second.env().contains(&(key, value)), "two copies share an address");
    }
    assert!(processes_in(one.path()) >= 4);
    first.stop().await.unwrap();
    no_process_in(one.path()).await;
    drop(second);
    no_process_in(two.path()).await;
    remove(one);
    remove(two);
}

/// On others there is nothing to see: they are what this machine has.
#[tokio::test]
async fn modern_servers_are_modern() {
    if Choice::from_env().unwrap() != Choice::Modern {
        return;
    }
    let dir = run_dir();
    let servers = Servers::start(dir.path()).await.unwrap();
    let mut redis = redis::Client::open(servers.redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await.unwrap();
    assert!(info.contains("valkey_version:9."), "{info}");
    let mut mysql = mysql_async::Conn::from_url(servers.mysql.url()).await.unwrap();
    let version: Option<String> = mysql.query_first("SELECT VERSION()").await.unwrap();
    assert!(version.as_ref().is_some_and(|version| version.starts_with("9.")), "{version:?}");
    let overview = format!("{}/api/overview", servers.rabbitmq.management_url());
    let overview = local::https::client_builder().build().unwrap().get(overview).send().await.unwrap();
    let overview: serde_json::Value = overview.json().await.unwrap();
    assert!(overview["rabbitmq_version"].as_str().unwrap().starts_with("4."), "{overview}");
    servers.stop().await.unwrap();
    no_process_in(dir.path()).await;
    remove(dir);
}

#[tokio::test]
async fn a_killed_redis_comes_back_with_its_data_on_the_same_port() {
    let dir = run_dir();
    let mut redis = Redis::start(dir.path()).await.unwrap();
    let url = redis.url().to_owned();
    let client = redis::Client::open(url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let _: () = redis::cmd("SET").arg("place").arg(1).query_async(&mut connection).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await; // its file is synced each second
    redis.kill().await.unwrap();
    assert_eq!(redis.pid(), 0);
    redis.restart().await.unwrap();
    assert_eq!(redis.url(), url);
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let place: u8 = redis::cmd("GET").arg("place").query_async(&mut connection).await.unwrap();
    assert_eq!(place, 1);
    redis.stop().await.unwrap();
    no_process_in(dir.path()).await;
    remove(dir);
}

#[tokio::test]
async fn a_paused_redis_does_not_answer_until_it_is_resumed() {
    let dir = run_dir();
    let redis = Redis::start(dir.path()).await.unwrap();
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis.pause().unwrap();
    let asked = redis::cmd("PING").query_async::<String>(&mut connection).await;
    assert!(asked.unwrap_err().is_timeout());
    redis.resume().unwrap();
    let answer: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
    assert_eq!(answer, "PONG");
    redis.pause().unwrap();
    drop(redis);
    no_process_in(dir.path()).await;
    remove(dir);
}

#[tokio::test]
async fn a_killed_rabbitmq_comes_back_with_its_messages_and_a_stopped_one_too() {
    let dir = run_dir();
    let mut rabbitmq = RabbitMq::start(dir.path()).await.unwrap();
    publish(rabbitmq.url(), b"before the kill").await;
    tokio::time::sleep(AFTER_DECLARING).await;
    rabbitmq.kill().await.unwrap();
    assert!(Connection::connect(rabbitmq.url(), ConnectionProperties::default()).await.is_err());
    rabbitmq.restart().await.unwrap();
    assert_eq!(get(rabbitmq.url()).await, b"before the kill");
    publish(rabbitmq.url(), b"before the stop").await;
    rabbitmq.stop().await.unwrap();
    no_process_in(dir.path()).await;
    rabbitmq.restart().await.unwrap();
    assert_eq!(get(rabbitmq.url()).await, b"before the stop");
    drop(rabbitmq);
    no_process_in(dir.path()).await;
    remove(dir);
}

#[tokio::test]
async fn a_killed_mysql_comes_back_with_its_rows_in_utc() {
    let dir = run_dir();
    let mut mysql = MySql::start(dir.path()).await.unwrap();
    let mut connection = mysql_async::Conn::from_url(mysql.url()).await.unwrap();
    connection.query_drop("CREATE TABLE place (id INT PRIMARY KEY)").await.unwrap();
    connection.query_drop("INSERT INTO place VALUES (1)").await.unwrap();
    mysql.kill().await.unwrap();
    assert!(connection.query_drop("SELECT 1").await.is_err());
    mysql.restart().await.unwrap();
    let mut connection = mysql_async::Conn::from_url(mysql.url()).await.unwrap();
    let id: Option<u8> = connection.query_first("SELECT id FROM place").await.unwrap();
    assert_eq!(id, Some(1));
    let offset: Option<i64> =
        connection.query_first("SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())").await.unwrap();
    assert_eq!(offset, Some(0));
    mysql.stop().await.unwrap();
    no_process_in(dir.path()).await;
    remove(dir);
}

#[tokio::test]
async fn exec_gives_the_command_its_servers_and_passes_its_exit_status_on() {
    let script = r#"test -n "$REDIS_URL$AMQP_URL$MYSQL_URL$RABBITMQ_MANAGEMENT_URL" && exit 7"#;
    let done = local().args(["exec", "--", "sh", "-c", script]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(7), "{said}");
    let logs = PathBuf::from(said.trim().rsplit(' ').next().unwrap());
    assert!(logs.join("mysql/mysql.log").exists(), "after a failure the logs stay: {said}");
    no_process_in(&logs).await;
    std::fs::remove_dir_all(logs).unwrap();
}

#[tokio::test]
async fn servers_do_not_outlive_a_killed_owner() {
    let dir = run_dir();
    let marker = dir.path().join("started");
    let script = format!("touch {}; exec sleep 20", marker.display());
    let mut owner =
        local().args(["exec", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let owner_pid = owner.id();
    until(Duration::from_secs(60), || marker.exists()).await;
    let dirs = run_dirs_of(owner_pid);
    assert!(dirs.len() == 1 && processes_in(&dirs[0]) >= 4, "{dirs:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    no_process_in(&dirs[0]).await;
    std::fs::remove_dir_all(&dirs[0]).unwrap();
    remove(dir);
}

fn local() -> Command {
    Command::new(env!("CARGO_BIN_EXE_local"))
}

fn run_dir() -> RunDir {
    RunDir::create("test").unwrap()
}

fn remove(dir: RunDir) {
    dir.finish(true).unwrap();
}

/// The run folders of an owner: they carry its process id.
fn run_dirs_of(pid: u32) -> Vec<PathBuf> {
    let local = local::servers::workspace_root().join("target/local");
    let entries = std::fs::read_dir(local).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().ends_with(&format!("-{pid}-0"))).collect()
}

/// Living processes that work in `dir` or below.
fn processes_in(dir: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
    processes
        .filter(|process| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir)))
        .filter(|process| {
            let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
            !stat.contains(") Z ")
        })
        .count()
}

async fn no_process_in(dir: &Path) {
    until(Duration::from_secs(5), || processes_in(dir) == 0).await;
}

async fn until(limit: Duration, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "the condition did not come within {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn publish(url: &str, body: &[u8]) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("kept".into(), durable, arguments).await.unwrap();
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("".into(), "kept".into(), options, body, properties).await.unwrap();
    assert!(confirm.await.unwrap().is_ack());
}

async fn get(url: &str) -> Vec<u8> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let message = channel.basic_get("kept".into(), BasicGetOptions { no_ack: true });
    let message = tokio::time::timeout(Duration::from_secs(20), message).await.unwrap().unwrap();
    message.unwrap().delivery.data
}
