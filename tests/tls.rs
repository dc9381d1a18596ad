//! TLS to all three servers, with verification: a private authority that is trusted, and what must be refused.

use std::path::Path;

use local::servers::{Certificates, Flaw, RunDir, Servers};
use serde_json::json;
use shared::broker::declare;
use shared::config::{BrokerConfig, Env, MysqlConfig, RedisConfig};
use shared::reservations::Reservations;
use shared::store::Store;
use tests::{Sale, World};

/// What each of the three clients says of its server: nothing, or why it does not connect.
async fn refusals(servers: &Servers, authority: Option<&Path>) -> [(&'static str, Option<String>); 3] {
    let mut settings = servers.env();
    settings.extend(authority.map(|path| ("TLS_CA_FILE".to_owned(), path.display().to_string())));
    let lookup = |name: &str| settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let env = Env::new(&lookup);
    let redis = Reservations::new(&RedisConfig::from_env(&env).unwrap()).warm_up().await;
    let broker = declare(&BrokerConfig::from_env(&env).unwrap()).await;
    let mysql = Store::new(&MysqlConfig::from_env(&env).unwrap()).warm_up().await;
    [
        ("redis", redis.err().map(|error| error.to_string())),
        ("broker", broker.err().map(|error| error.to_string())),
        ("mysql", mysql.err().map(|error| error.to_string())),
    ]
}

async fn assert_all_refuse(servers: &Servers, authority: Option<&Path>, because: &str) {
    for (server, refusal) in refusals(servers, authority).await {
        let said = refusal.unwrap_or_else(|| panic!("{server} was taken in spite of its certificate: {because}"));
        assert!(said.contains("certificate") && said.contains(because), "{server}: {said}");
        assert!(!said.contains('\n') && said.contains(server), "{said}");
    }
}

#[tokio::test]
async fn a_sale_comes_home_over_tls_with_a_private_authority_that_nobody_else_trusts() {
    let dir = RunDir::create("test").unwrap();
    let tls = Certificates::create(&dir.path().join("tls")).unwrap();
    let servers = Servers::start_over_tls(dir.path(), &tls).await.unwrap();
    let authority = tls.authority().to_str().unwrap();
    let world = World::with(&[
        ("REDIS_URL", servers.redis.url()),
        ("AMQP_URL", servers.rabbitmq.url()),
        ("MYSQL_URL", servers.mysql.url()),
        ("TLS_CA_FILE", authority),
    ])
    .await;

    let signup = world.signup();
    signup.warm_up().await;
    let sale = Sale::open(&world, signup, 20).await;
    sale.grant("over-tls", 20).await;
    assert_eq!(world.queued().await, 20, "the fast path, too, goes over TLS");
    sale.comes_home(20).await;
    let report = world.reconciled(json!({})).await;
    assert_eq!(report["compare"]["error"], json!(null), "{report}");

    assert_all_refuse(&servers, None, "UnknownIssuer").await;
    let other = Certificates::create(&dir.path().join("other")).unwrap();
    assert_all_refuse(&servers, Some(other.authority()), "UnknownIssuer").await;
    servers.stop().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_the_error_says_so() {
    refuses(Flaw::Expired, "expired").await;
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused_and_the_error_says_so() {
    refuses(Flaw::OtherHost, "not valid for name").await;
}

async fn refuses(flaw: Flaw, because: &str) {
    let dir = RunDir::create("test").unwrap();
    let tls = Certificates::create_flawed(&dir.path().join("tls"), flaw).unwrap();
    let servers = Servers::start_over_tls(dir.path(), &tls).await.unwrap();
    assert_all_refuse(&servers, Some(tls.authority()), because).await;
    servers.stop().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn a_server_that_speaks_plain_text_is_refused_where_tls_is_asked_for() {
    let url = |name: &str| std::env::var(name).unwrap();
    let settings = [
        ("REDIS_URL", tests::one_redis().replacen("redis:", "rediss:", 1)),
        ("AMQP_URL", url("AMQP_URL").replacen("amqp:", "amqps:", 1)),
        ("MYSQL_URL", url("MYSQL_URL") + "?require_ssl=true"),
    ];
    let lookup = |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    let env = Env::new(&lookup);
    assert!(Reservations::new(&RedisConfig::from_env(&env).unwrap()).warm_up().await.is_err());
    assert!(declare(&BrokerConfig::from_env(&env).unwrap()).await.is_err());
    assert!(Store::new(&MysqlConfig::from_env(&env).unwrap()).warm_up().await.is_err());
}
