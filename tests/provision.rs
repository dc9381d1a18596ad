//! Provisioning: the topology and the tables, any number of times.

use std::time::Duration;

use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, ExchangeKind};
use mysql_async::prelude::Queryable;
use provision::{App, ProvisionError, Provisioned};
use serde_json::{Value, json};
use shared::broker::DeclareError;
use tests::{World, call, empty_database, eventually};

const A_WHILE: Duration = Duration::from_secs(10);

const MIGRATIONS: [&str; 2] = ["V1__create_activity", "V2__create_user_activity"];

/// What the broker's management API says of an object, `queues/%2F/NAME`.
async fn described(kind: &str, name: &str) -> Value {
    let url = std::env::var("RABBITMQ_MANAGEMENT_URL").unwrap();
    let client = local::https::client_builder().build().unwrap();
    let reply = client.get(format!("{url}/api/{kind}/%2F/{name}")).send().await.unwrap();
    if reply.status() == 404 { Value::Null } else { reply.json().await.unwrap() }
}

async fn bindings_of(queue: &str) -> Vec<(String, String)> {
    let bindings = described("queues", &format!("{queue}/bindings")).await;
    let text = |binding: &Value, key: &str| binding[key].as_str().unwrap().to_owned();
    let explicit = bindings.as_array().unwrap().iter().filter(|binding| binding["source"] != "");
    explicit.map(|binding| (text(binding, "source"), text(binding, "routing_key"))).collect()
}

/// An empty database, and nothing on the broker.
async fn nowhere(settings: &[(&str, &str)]) -> World {
    let url = empty_database().await;
    World::unprovisioned(&[settings, &[("MYSQL_URL", &url)]].concat()).await
}

fn provisioned(world: &World, migrations: &[&str]) -> Provisioned {
    let topology = world.topology();
    let migrations_applied = migrations.iter().map(|name| (*name).to_owned()).collect();
    Provisioned {
        queues: topology.queue_names(),
        left_over: Vec::new(),
        parked_queue: topology.parked_queue(),
        migrations_applied,
    }
}

async fn table_names(world: &World) -> Vec<String> {
    let sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME";
    world.mysql.get_conn().await.unwrap().query(sql).await.unwrap()
}

#[tokio::test]
async fn the_topology_is_what_the_design_says() {
    let world = World::new().await;
    let topology = world.topology();
    let (dlx, parked_name) = (topology.dead_letter_exchange(), topology.parked_queue());
    assert!(parked_name.ends_with(".parked") && dlx.ends_with(".dlx"));

    let exchange = described("exchanges", &topology.exchange).await;
    assert_eq!((&exchange["type"], &exchange["durable"]), (&json!("direct"), &json!(true)));
    assert_eq!(described("exchanges", &dlx).await["durable"], true);

    let queue = described("queues", &topology.queue).await;
    assert_eq!((&queue["type"], &queue["durable"]), (&json!("quorum"), &json!(true)), "{queue}");
    let expected = json!({
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": dlx,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": 100_000
    });
    assert_eq!(queue["arguments"], expected);
    assert_eq!(bindings_of(&topology.queue).await, [(topology.exchange.clone(), topology.routing_key.clone())]);

    let parked = described("queues", &parked_name).await;
    assert_eq!((&parked["type"], &parked["durable"]), (&json!("quorum"), &json!(true)), "{parked}");
    assert_eq!(bindings_of(&parked_name).await.len(), 1);
    assert_eq!(bindings_of(&parked_name).await[0].0, dlx);
}

#[tokio::test]
async fn a_message_that_the_broker_gives_up_is_parked() {
    let world = World::new().await;
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    let topology = world.topology();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let (exchange, key) = (topology.exchange.as_str().into(), topology.routing_key.as_str().into());
    channel.basic_publish(exchange, key, options, b"given up", BasicProperties::default()).await.unwrap();
    let (channel, queue) = (&channel, topology.queue.as_str());
    eventually("the delivery", A_WHILE, || async {
        let got = channel.basic_get(queue.into(), Default::default()).await.unwrap();
        let Some(got) = got else { return false };
        got.delivery.acker.reject(Default::default()).await.unwrap()
    })
    .await;
    eventually("the parking", A_WHILE, || async {
        world.drain_parked().await.iter().any(|message| message.body == b"given up")
    })
    .await;
}

#[tokio::test]
async fn a_broker_without_quorum_queues_gets_classic_ones() {
    let world = nowhere(&[("QUEUE_TYPE", "classic")]).await;
    provision::provision(&world.provision()).await.unwrap();
    let topology = world.topology();
    let queue = described("queues", &topology.queue).await;
    assert_eq!((&queue["type"], &queue["durable"]), (&json!("classic"), &json!(true)));
    let expected = json!({
        "x-queue-type": "classic",
        "x-dead-letter-exchange": topology.dead_letter_exchange(),
        "x-overflow": "reject-publish"
    });
    assert_eq!(queue["arguments"], expected);
    let parked = described("queues", &topology.parked_queue()).await;
    assert_eq!((&parked["type"], &parked["durable"]), (&json!("classic"), &json!(true)));
    // And a sign-up goes through them.
    let id = world.open_activity(1).await;
    assert_eq!(call(&world.signup(), "POST", id, "ann").await.status, 202);
    assert_eq!(world.drain_signups().await.len(), 1);
}

#[tokio::test]
async fn an_empty_event_provisions_everything_and_a_second_one_finds_it_done() {
    let world = nowhere(&[]).await;
    let app = world.provision();
    assert!(table_names(&world).await.is_empty());
    let first = provision::handle(&app, json!({})).await.unwrap();
    assert_eq!(first, serde_json::to_value(provisioned(&world, &MIGRATIONS)).unwrap());
    assert_eq!(table_names(&world).await, ["activity", "refinery_schema_history", "user_activity"]);

    let id = world.open_activity(5).await;
    let signup = world.signup();
    assert_eq!(call(&signup, "POST", id, "ann").await.status, 202);
    let second = provision::handle(&app, json!({})).await.unwrap();
    assert_eq!(second, serde_json::to_value(provisioned(&world, &[])).unwrap());
    let messages = world.drain_signups().await;
    assert_eq!(messages.len(), 1, "the queue was emptied");
    assert_eq!(world.active(id).await, Some(0));
}

#[tokio::test]
async fn runs_at_the_same_time_do_each_step_once() {
    let world = nowhere(&[]).await;
    let apps = [(); 4].map(|()| world.provision());
    let [a, b, c, d] = apps.each_ref().map(provision::provision);
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    let mut applied: Vec<String> = [a, b, c, d].into_iter().flat_map(|run| run.unwrap().migrations_applied).collect();
    applied.sort();
    assert_eq!(applied, MIGRATIONS);
    assert_eq!(table_names(&world).await, ["activity", "refinery_schema_history", "user_activity"]);
}

#[tokio::test]
async fn a_queue_that_exists_otherwise_is_named_and_left_as_it_is() {
    let world = nowhere(&[]).await;
    let queue = world.topology().queue;
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), FieldTable::default()).await.unwrap();
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    channel.basic_publish("".into(), queue.as_str().into(), options, b"a place", properties).await.unwrap();
    let arguments = described("queues", &queue).await["arguments"].clone();

    for _ in 0..2 {
        let error = provision::provision(&world.provision()).await.unwrap_err();
        assert!(matches!(error, ProvisionError::Declare(DeclareError::Different { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("queue {queue} exists")) && text.contains("QUEUE_TYPE"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
    assert_eq!(described("queues", &queue).await["arguments"], arguments);
    assert!(bindings_of(&queue).await.is_empty());
    assert_eq!(world.drain(&queue).await.len(), 1);
}

#[tokio::test]
async fn an_exchange_that_exists_otherwise_is_named_and_left_as_it_is() {
    let world = nowhere(&[]).await;
    let exchange = world.topology().exchange;
    let connection = world.amqp().await;
    let channel = connection.create_channel().await.unwrap();
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared =
        channel.exchange_declare(exchange.as_str().into(), ExchangeKind::Topic, durable, FieldTable::default());
    declared.await.unwrap();
    let error = provision::provision(&world.provision()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("exchange {exchange} exists")), "{error}");
    assert_eq!(described("exchanges", &exchange).await["type"], "topic");
    assert!(described("queues", &world.topology().queue).await["arguments"].is_null());
}

#[tokio::test]
async fn a_version_that_a_failed_deployment_goes_back_to_gets_along_with_later_tables() {
    let world = nowhere(&[]).await;
    let app: App = world.provision();
    provision::provision(&app).await.unwrap();
    let later = "INSERT INTO refinery_schema_history VALUES (99, 'of_tomorrow', '2026-12-01T12:00:00Z', '1')";
    world.sql(later).await;
    assert_eq!(provision::provision(&app).await.unwrap(), provisioned(&world, &[]));

    world.sql("UPDATE refinery_schema_history SET version = 0 WHERE version = 99").await;
    let error = provision::provision(&app).await.unwrap_err();
    assert!(error.to_string().contains("the migrations were not applied"), "{error}");
}

/// A run that fails lets go of the lock at once, though its function stays.
#[tokio::test]
async fn a_database_that_other_migrations_made_is_refused_and_the_next_run_need_not_wait() {
    let world = nowhere(&[]).await;
    let app: App = world.provision();
    provision::provision(&app).await.unwrap();
    world.sql("UPDATE refinery_schema_history SET checksum = '1' WHERE version = 2").await;
    let error = provision::provision(&app).await.unwrap_err();
    assert!(matches!(error, ProvisionError::Migrate(_)), "{error}");
    assert!(error.to_string().contains("the migrations were not applied"), "{error}");

    world.sql("DROP TABLE refinery_schema_history").await;
    let (world, app) = (&world, &app);
    eventually("the next run", A_WHILE, || async {
        provision::provision(app).await.unwrap() == provisioned(world, &MIGRATIONS)
    })
    .await;
}
