//! Logins that Secrets Manager keeps: fetched at a start, fetched again when a server refuses them, never shown.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures::future::join_all;
use local::servers::{Redis, RunDir};
use mysql_async::prelude::Queryable;
use shared::config::{Env, MysqlConfig, RedisConfig};
use shared::endpoint::{FAILURE_HOLDS_FOR, FETCH_AGAIN_AFTER};
use shared::reservations::Reservations;
use shared::store::Store;
use tests::{
    Sale, SecretsManager, Settings, Trouble, World, empty_database, end_connections, eventually, one_redis, redis_at,
    set_redis_login, users,
};

/// Users of a test's own on the three servers, and a Secrets Manager that keeps their logins.
struct Guarded {
    secrets: SecretsManager,
    user: String,
    settings: Settings,
    database: String,
    redis: Redis,
    dir: RunDir,
}

const SECRETS: [&str; 3] = ["REDIS_SECRET_ARN", "AMQP_SECRET_ARN", "MYSQL_SECRET_ARN"];

impl Guarded {
    async fn start() -> Self {
        let dir = RunDir::create("test").unwrap();
        let redis = Redis::start(dir.path()).await.unwrap();
        let database = empty_database().await;
        let user = format!("guarded-{:08x}", rand::random::<u32>());
        let secrets = SecretsManager::start().await;
        let mut settings = secrets.settings();
        for (name, url) in [
            ("REDIS_URL", redis.url().to_owned()),
            ("AMQP_URL", std::env::var("AMQP_URL").unwrap()),
            ("MYSQL_URL", database.clone()),
        ] {
            settings.insert(name.to_owned(), without_login(&url));
        }
        for name in SECRETS {
            settings.insert(name.to_owned(), SecretsManager::arn(name));
        }
        let guarded = Self { secrets, user, settings, database, redis, dir };
        guarded.rotate("first: 50%41 p/w@1").await;
        guarded
    }

    /// Gives the user another password everywhere, and ends the connections that the old one opened.
    async fn rotate(&self, password: &str) {
        let user = &self.user;
        let mut redis = redis_at(self.redis.url()).await;
        set_redis_login(&mut redis, user, password).await;
        end_connections(&mut redis, user).await;

        let console = std::env::var("RABBITMQ_MANAGEMENT_URL").unwrap();
        let http = local::https::client_builder().tls_certs_only([]).build().unwrap();
        let put = |path: String, body| http.put(format!("{console}/api/{path}")).json(&body).send();
        let login = serde_json::json!({"password": password, "tags": ""});
        put(format!("users/{user}"), login).await.unwrap().error_for_status().unwrap();
        let all = serde_json::json!({"configure": ".*", "write": ".*", "read": ".*"});
        put(format!("permissions/%2f/{user}"), all).await.unwrap().error_for_status().unwrap();
        let connections = format!("{console}/api/connections/username/{user}");
        http.delete(connections).send().await.unwrap().error_for_status().unwrap();

        let mysql = mysql_async::Pool::from_url(std::env::var("MYSQL_URL").unwrap()).unwrap();
        let mut mysql = mysql.get_conn().await.unwrap();
        let (_, database) = self.database.rsplit_once('/').unwrap();
        for statement in [
            format!("CREATE USER IF NOT EXISTS '{user}'@'127.0.0.1' IDENTIFIED BY '{password}'"),
            format!("ALTER USER '{user}'@'127.0.0.1' IDENTIFIED BY '{password}'"),
            format!("GRANT ALL PRIVILEGES ON `{database}`.* TO '{user}'@'127.0.0.1'"),
        ] {
            mysql.query_drop(statement).await.unwrap();
        }
        let sessions: Vec<u64> =
            mysql.exec("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ?", (user,)).await.unwrap();
        for session in sessions {
            let _ = mysql.query_drop(format!("KILL {session}")).await; // it may have ended by itself
        }
        for name in SECRETS {
            self.secrets.keep(&SecretsManager::arn(name), user, password);
        }
    }

    async fn world(&self) -> World {
        with_all(&self.settings).await
    }

    /// The same where nobody waits longer than this for Redis.
    async fn hasty_world(&self, redis_timeout: Duration) -> World {
        let mut settings = self.settings.clone();
        settings.insert("REDIS_TIMEOUT_MS".to_owned(), redis_timeout.as_millis().to_string());
        with_all(&settings).await
    }

    async fn stop(mut self) {
        self.redis.stop().await.unwrap();
        self.dir.finish(true).unwrap();
    }
}

async fn with_all(settings: &Settings) -> World {
    let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    World::with(&settings).await
}

fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, place)| place))
}

#[tokio::test]
async fn each_login_is_fetched_once_by_a_function_however_many_people_come() {
    let guarded = Guarded::start().await;
    let world = guarded.world().await;
    let before = guarded.secrets.asked().len();
    let signup = world.signup();
    signup.warm_up().await;
    let mut asked = guarded.secrets.asked().split_off(before);
    asked.sort();
    assert_eq!(asked, [SecretsManager::arn("AMQP_SECRET_ARN"), SecretsManager::arn("REDIS_SECRET_ARN")]);

    let sale = Sale::open(&world, signup, 50).await;
    let before = guarded.secrets.asked().len();
    sale.grant("guarded", 50).await;
    assert_eq!(guarded.secrets.asked().len(), before);
    sale.comes_home(50).await;
    guarded.stop().await;
}

#[tokio::test]
async fn logins_that_were_rotated_are_fetched_again_and_nobody_notices() {
    let guarded = Guarded::start().await;
    let world = guarded.world().await;
    let (signup, consumer) = (world.signup(), world.consumer());
    signup.warm_up().await;
    consumer.warm_up().await;
    let fetched = Instant::now();
    let mut sale = Sale::open(&world, signup, 1_000).await;
    sale.grant("before", 20).await;
    let bodies = |messages: Vec<tests::Message>| tests::mq_event(messages.into_iter().map(|message| message.body));
    world.consume(&consumer, bodies(world.drain_signups().await)).await.unwrap();

    // A login that was fetched a moment ago is not fetched again.
    tokio::time::sleep_until((fetched + FETCH_AGAIN_AFTER).into()).await;
    guarded.rotate("second: %ff%2F p/w@2").await;
    // The same corner, looked at with the login of now.
    let world = with_all(&world.settings).await;
    sale.world = &world;
    sale.grant("after", 20).await;
    // The first of them may have found the broker's connection gone; then their notes bring them home.
    let again = AtomicU32::new(0);
    let is_published = || async {
        sale.expect("POST", &format!("again-{}", again.fetch_add(1, Relaxed)), 202).await;
        world.queued().await > 0
    };
    eventually("a sign-up is published with the new login", Duration::from_secs(20), is_published).await;
    world.consume(&consumer, bodies(world.drain_signups().await)).await.unwrap();
    let granted = world.taken(sale.id).await;
    sale.comes_home(granted).await;
    guarded.stop().await;
}

#[tokio::test]
async fn while_secrets_manager_is_down_a_function_starts_and_heals_when_it_is_back() {
    let guarded = Guarded::start().await;
    let world = guarded.hasty_world(Duration::from_millis(300)).await;
    let mut sale = Sale::open(&world, world.signup(), 10).await;
    for trouble in [Trouble::Errors, Trouble::Silence] {
        let (signup, user) = (world.signup(), format!("{trouble:?}"));
        sale.goes_on_with(signup.clone());
        guarded.secrets.set_trouble(Some(trouble));
        signup.warm_up().await;
        let begun = Instant::now();
        sale.expect("POST", &user, 503).await;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        guarded.secrets.set_trouble(None);
        let is_served = async || sale.call("POST", &user).await.status == 202;
        eventually("a sign-up after the trouble", Duration::from_secs(10), is_served).await;
    }
    guarded.stop().await;
}

#[tokio::test]
async fn a_secrets_manager_in_trouble_is_asked_now_and_then_however_many_people_come() {
    let guarded = Guarded::start().await;
    let world = guarded.hasty_world(Duration::from_millis(300)).await;
    for trouble in [Trouble::Errors, Trouble::Silence] {
        let sale = Sale::open(&world, world.signup(), 10).await;
        guarded.secrets.set_trouble(Some(trouble));
        let (begun, before, mut people) = (Instant::now(), guarded.secrets.asked().len(), 0);
        while begun.elapsed() < 3 * FAILURE_HOLDS_FOR {
            people += join_all(users(20).iter().map(|user| sale.expect("POST", user, 503))).await.len();
        }
        // Two tries a fetch, and a pause after each fetch.
        let asked = guarded.secrets.asked().len() - before;
        assert!((2..=8).contains(&asked) && people > 50, "{trouble:?}: asked {asked} times for {people} people");
        guarded.secrets.set_trouble(None);
    }
    guarded.stop().await;
}

#[tokio::test]
async fn a_secret_that_is_no_login_or_not_there_is_named_and_never_shown() {
    let secrets = SecretsManager::start().await;
    for (text, said) in [
        (None, "refuses the secret"),
        (Some("hunter2"), "holds no login"),
        (Some(r#"{"username":"hunter2"}"#), "holds no login"),
        (Some(r#"["hunter2"]"#), "holds no login"),
    ] {
        let id = format!("arn:aws:secretsmanager:eu-central-1:123456789012:secret:odd-{}", rand::random::<u32>());
        if let Some(text) = text {
            secrets.keep_text(&id, text);
        }
        let mut settings = secrets.settings();
        settings.insert("REDIS_URL".to_owned(), without_login(&one_redis()));
        settings.insert("MYSQL_URL".to_owned(), without_login(&std::env::var("MYSQL_URL").unwrap()));
        settings.extend(["REDIS_SECRET_ARN", "MYSQL_SECRET_ARN"].map(|name| (name.to_owned(), id.clone())));
        let lookup = |name: &str| settings.get(name).cloned();
        let env = Env::new(&lookup);
        let redis = Reservations::new(&RedisConfig::from_env(&env).unwrap()).warm_up().await.unwrap_err().to_string();
        let mysql = Store::new(&MysqlConfig::from_env(&env).unwrap()).warm_up().await.unwrap_err().to_string();
        for line in [redis, mysql] {
            assert!(line.contains(said) && line.contains(&id), "{line}");
            assert!(!line.contains("hunter2") && !line.contains('\n'), "{line}");
        }
    }
}

#[tokio::test]
async fn a_login_that_stays_wrong_is_not_fetched_again_by_every_request() {
    let guarded = Guarded::start().await;
    let world = guarded.world().await;
    let mut sale = Sale::open(&world, world.signup(), 10).await;
    let wrong = SecretsManager::arn("WRONG");
    guarded.secrets.keep(&wrong, &guarded.user, "wrong");
    let mut settings = guarded.settings.clone();
    settings.insert("REDIS_SECRET_ARN".to_owned(), wrong.clone());
    let lookup = |name: &str| settings.get(name).cloned();
    sale.goes_on_with(signup::App::from_env(&Env::new(&lookup)).unwrap());
    for _ in 0..50 {
        sale.expect("POST", "alice", 503).await;
    }
    let asked = guarded.secrets.asked().iter().filter(|id| **id == wrong).count();
    assert!((1..=3).contains(&asked), "asked {asked} times");
    guarded.stop().await;
}
