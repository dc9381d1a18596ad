//! Settings: a missing or malformed one stops the cold start with one line that names it.

use std::process::Stdio;
use std::time::Duration;

use local::functions::{Profile, Programs};
use shared::config::Env;
use tests::{Settings, World};

const PASSWORD: &str = "hunter2";

/// A setting, and values that a function must not start with; an empty one counts as missing.
const MALFORMED: [(&str, &[&str]); 14] = [
    ("REDIS_URL", &["", "localhost:6379", "http://:hunter2@cache", "redis://", "redis://:hunter2@cache:port"]),
    ("REDIS_CLUSTER", &["yes", "1", "TRUE"]),
    ("TLS_CA_FILE", &["/no/such/file.pem", "/", "/etc/hostname"]),
    ("REDIS_TIMEOUT_MS", &["0", "-1", "soon", "1.5", "60001", "99999999999999999999"]),
    ("REDIS_WAIT_REPLICAS", &["-1", "all", "11"]),
    ("ARCHIVE_AFTER_DAYS", &["0", "-1", "a week", "3651"]),
    ("OUTBOX_GRACE_SECS", &["0", "-1", "a minute", "86401"]),
    ("AMQP_URL", &["", "broker:5672", "http://user:hunter2@broker", "amqp://", "amqp://user:hunter2@broker:port"]),
    ("PUBLISH_TIMEOUT_MS", &["0", "-1", "soon", "60001"]),
    ("QUEUE_TYPE", &["stream", "Quorum", "quorum "]),
    ("SIGNUP_QUEUE", &[TOO_LONG]),
    ("SIGNUP_QUEUES", &["0", "9", "-1", "two", "1.5"]),
    ("DEV_USER_HEADER", &["x user id", "x-user-id:", "é"]),
    (
        "MYSQL_URL",
        &[
            "",
            "root:hunter2@db/onrush",
            "mysql://root:hunter2@db",
            "postgres://root:hunter2@db/onrush",
            ANY_CA,
            ANY_HOST,
        ],
    ),
];

const ANY_CA: &str = "mysql://root:hunter2@db/onrush?require_ssl=true&verify_ca=false";
const ANY_HOST: &str = "mysql://root:hunter2@db/onrush?require_ssl=true&verify_identity=false";

/// AMQP names have 255 bytes at most.
const TOO_LONG: &str = concat!(
    "0123456789012345678901234567890123456789012345678901234567890123",
    "0123456789012345678901234567890123456789012345678901234567890123",
    "0123456789012345678901234567890123456789012345678901234567890123",
    "0123456789012345678901234567890123456789012345678901234567890123",
);

fn settings() -> Settings {
    let settings = [
        ("REDIS_URL", "redis://:hunter2@cache:6379"),
        ("AMQP_URL", "amqp://user:hunter2@broker:5672"),
        ("MYSQL_URL", "mysql://user:hunter2@db:3306/onrush"),
    ];
    settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

#[tokio::test]
async fn a_function_with_a_missing_or_malformed_setting_does_not_start_and_says_which() {
    type Start = fn(&Env<'_>) -> Result<(), String>;
    let all =
        ["REDIS_URL", "REDIS_CLUSTER", "REDIS_TIMEOUT_MS", "REDIS_WAIT_REPLICAS", "OUTBOX_GRACE_SECS", "TLS_CA_FILE"];
    let broker = ["TLS_CA_FILE", "AMQP_URL", "PUBLISH_TIMEOUT_MS", "QUEUE_TYPE", "SIGNUP_QUEUE", "SIGNUP_QUEUES"];
    let signup: Start = |env| signup::App::from_env(env).map(drop).map_err(|error| error.to_string());
    let activities: Start = |env| activities::App::from_env(env).map(drop).map_err(|error| error.to_string());
    let consumer: Start = |env| consumer::App::from_env(env).map(drop).map_err(|error| error.to_string());
    let provision: Start = |env| provision::App::from_env(env).map(drop).map_err(|error| error.to_string());
    let reconcile: Start = |env| reconcile::App::from_env(env).map(drop).map_err(|error| error.to_string());
    let functions: [(&str, Start, Vec<&str>); 5] = [
        ("signup", signup, [&all[..], &broker, &["DEV_USER_HEADER"]].concat()),
        ("activities", activities, [&all[..], &["MYSQL_URL", "DEV_USER_HEADER"]].concat()),
        ("consumer", consumer, [&all[..], &broker, &["MYSQL_URL"]].concat()),
        ("reconcile", reconcile, [&all[..], &broker, &["MYSQL_URL", "ARCHIVE_AFTER_DAYS"]].concat()),
        ("provision", provision, [&broker[..], &["MYSQL_URL"]].concat()),
    ];
    for (function, start, reads) in functions {
        let good = settings();
        assert_eq!(start(&Env::new(&|name| good.get(name).cloned())), Ok(()), "{function}");
        for (name, values) in MALFORMED {
            for value in values {
                let mut settings = settings();
                settings.insert(name.to_owned(), (*value).to_owned());
                let started = start(&Env::new(&|name| settings.get(name).cloned()));
                if reads.contains(&name) {
                    let line = started.expect_err(&format!("{function} started with {name}={value}"));
                    let starts_with_name = line.split(' ').next() == Some(name);
                    assert!(starts_with_name && !line.contains('\n') && !line.contains(PASSWORD), "{line}");
                } else {
                    assert_eq!(started, Ok(()), "{function} does not need {name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_login_in_secrets_manager_needs_what_lambda_sets_and_an_address_without_one() {
    let good = [
        ("REDIS_URL", "rediss://cache:6379"),
        ("REDIS_SECRET_ARN", "arn:aws:secretsmanager:eu-central-1:123456789012:secret:redis-a1b2c3"),
        ("AMQP_URL", "amqps://user:hunter2@broker"),
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
    ];
    let start = |name: &str, value: &str| {
        let lookup = |asked: &str| match good.iter().find(|(known, _)| *known == asked) {
            _ if asked == name => Some(value.to_owned()),
            known => known.map(|(_, value)| (*value).to_owned()),
        };
        signup::App::from_env(&Env::new(&lookup)).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(start("", ""), Ok(()));
    for (name, value, blamed) in [
        ("REDIS_URL", "rediss://:hunter2@cache:6379", "REDIS_SECRET_ARN"),
        ("AMQP_SECRET_ARN", "login", "AMQP_SECRET_ARN"),
        ("AWS_REGION", "", "AWS_REGION"),
        ("AWS_ACCESS_KEY_ID", "", "AWS_ACCESS_KEY_ID"),
        ("AWS_SECRET_ACCESS_KEY", "", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_ENDPOINT_URL_SECRETS_MANAGER", "vpce.example", "AWS_ENDPOINT_URL_SECRETS_MANAGER"),
        ("AWS_ENDPOINT_URL_SECRETS_MANAGER", "ftp://vpce.example", "AWS_ENDPOINT_URL_SECRETS_MANAGER"),
    ] {
        let line = start(name, value).expect_err(&format!("started with {name}={value}"));
        assert!(line.starts_with(blamed) && !line.contains('\n') && !line.contains(PASSWORD), "{line}");
    }
}

#[tokio::test]
async fn a_program_without_a_setting_ends_with_one_line_and_an_error_status() {
    let programs = Programs::build(Profile::Dev).await.unwrap();
    for (function, missing) in [
        ("signup", "REDIS_URL"),
        ("activities", "MYSQL_URL"),
        ("consumer", "AMQP_URL"),
        ("reconcile", "AMQP_URL"),
        ("provision", "MYSQL_URL"),
    ] {
        for malformed in ["", "http://user:hunter2@somewhere/path"] {
            let mut settings = settings();
            settings.insert(missing.to_owned(), malformed.to_owned());
            let mut program = tokio::process::Command::new(programs.path(function).unwrap());
            program.env_clear().envs(&settings).stdin(Stdio::null()).kill_on_drop(true);
            let ended = tokio::time::timeout(Duration::from_secs(10), program.output()).await.unwrap().unwrap();
            let said = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
            assert!(!ended.status.success(), "{function}: {said}");
            assert_eq!(said.lines().count(), 1, "{function}: {said}");
            assert!(said.contains(missing) && !said.contains(PASSWORD), "{function}: {said}");
        }
    }
}

#[tokio::test]
async fn an_address_with_a_password_never_shows_in_what_a_function_says_of_a_broken_part() {
    let nowhere = local::servers::free_port().unwrap();
    let mut world = World::new().await;
    world.settings.insert("MYSQL_URL".into(), format!("mysql://user:{PASSWORD}@127.0.0.1:{nowhere}/onrush"));
    let mysql = provision::provision(&world.provision()).await.unwrap_err().to_string();
    world.settings.insert("AMQP_URL".into(), format!("amqp://user:{PASSWORD}@127.0.0.1:{nowhere}"));
    let rabbitmq = shared::broker::declare(&world.broker_config()).await.unwrap_err().to_string();
    world.settings.insert("REDIS_URL".into(), format!("redis://:{PASSWORD}@127.0.0.1:{nowhere}"));
    let asked = world.reservations().reserve(tests::random_activity_id(), &"alice".parse().unwrap()).await;
    for (part, said) in [("mysql", mysql), ("broker", rabbitmq), ("redis", asked.unwrap_err().to_string())] {
        assert!(said.contains(part) && !said.contains(PASSWORD), "{said}");
    }
}
