//! A sale goes on without the broker: every place is granted, nobody waits for long, and the outbox holds exactly what
//! was not sent. When the broker is back, so is the fast path.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::StreamExt;
use local::servers::{RabbitMq, RunDir, free_port};
use shared::broker::Publisher;
use shared::domain::ActivityId;
use tests::{Proxy, World, call, eventually, message_body, random_activity_id};

/// `PUBLISH_TIMEOUT_MS`, as it is unless a test sets it.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(500);

/// So long that nobody who waits for the broker is overlooked.
const LONG_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Long enough for the breaker to try the broker three times.
const WHILE_OPEN: Duration = Duration::from_millis(1_600);

/// What a loaded machine may add to a deadline.
const MARGIN: Duration = Duration::from_millis(500);

/// How long the fast path may take to come back: the breaker's longest pause, and a connection.
const RECOVERY: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_sale_goes_on_while_the_broker_is_stopped() {
    let dir = RunDir::create("test").unwrap();
    let mut rabbitmq = RabbitMq::start(dir.path()).await.unwrap();
    let world = with_private_broker(&rabbitmq).await;
    let (id, signup) = (world.open_activity(100_000).await, world.signup());
    signup.warm_up().await;

    let healthy = sale(&signup, id, "healthy", 200, 16).await;
    assert_eq!(published(&world).await, healthy.users);

    rabbitmq.pause().unwrap();
    let first = sale(&signup, id, "first", 16, 16).await;
    assert!(first.slowest() < LONG_TIMEOUT + MARGIN, "{first:?}");
    let stopped = sale_for(&signup, id, "stopped", WHILE_OPEN).await;
    assert!(stopped.percentile(50) < healthy.percentile(50) * 3 + Duration::from_millis(5), "{stopped:?} {healthy:?}");
    // One request at a time tries the broker again, and waits for 50 ms.
    assert!(stopped.slowest() < Duration::from_millis(50) + MARGIN, "{stopped:?}");

    rabbitmq.resume().unwrap();
    let back = until_published(&world, &signup, id).await;
    let mut granted = healthy.users.clone();
    for users in [&first.users, &stopped.users, &back] {
        granted.extend(users.iter().cloned());
    }
    assert_eq!(outbox(&world, id).await, granted, "no consumer runs, so every note is there");
    assert_eq!(world.taken(id).await, granted.len() as u64);
    let later = sale(&signup, id, "later", 50, 16).await;
    assert!(published(&world).await.is_superset(&later.users), "the fast path is back for everybody");
    rabbitmq.kill().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn while_the_broker_is_down_the_slowest_hundredth_waits_less_than_three_times_as_long() {
    let (world, signup, proxy) = signup_behind_a_proxy().await;
    let id = world.open_activity(100_000).await;
    signup.warm_up().await;
    sale(&signup, id, "before", 200, 16).await;
    let healthy = sale(&signup, id, "healthy", 4_000, 16).await;
    proxy.cut();
    let refused = sale(&signup, id, "refused", 4_000, 16).await;
    proxy.heal();
    world.purge_signups().await;
    until_published(&world, &signup, id).await;
    proxy.freeze();
    let silent = sale(&signup, id, "silent", 4_000, 16).await;
    proxy.heal();
    let p99 = |sale: &Sale| sale.percentile(99).as_secs_f64() * 1_000.0;
    let (healthy, refused, silent) = (p99(&healthy), p99(&refused), p99(&silent));
    println!("p99 in ms: healthy {healthy:.1}, connection refused {refused:.1}, silent {silent:.1}");
    assert!(refused < healthy * 3.0 && silent < healthy * 3.0, "healthy {healthy}, refused {refused}, silent {silent}");
}

#[tokio::test]
async fn a_broker_with_a_memory_alarm_costs_one_deadline_and_gets_everything_after_it() {
    let dir = RunDir::create("test").unwrap();
    let mut rabbitmq = RabbitMq::start(dir.path()).await.unwrap();
    let world = with_private_broker(&rabbitmq).await;
    let (id, signup) = (world.open_activity(100_000).await, world.signup());
    let healthy = sale(&signup, id, "healthy", 100, 8).await;
    assert_eq!(published(&world).await, healthy.users);

    set_memory_watermark(&rabbitmq, "0").await;
    let first = sale(&signup, id, "first", 8, 8).await;
    assert!(first.slowest() < LONG_TIMEOUT + MARGIN, "{first:?}");
    let blocked = sale_for(&signup, id, "blocked", WHILE_OPEN).await;
    assert!(blocked.percentile(50) < healthy.percentile(50) * 3 + Duration::from_millis(5), "{blocked:?} {healthy:?}");
    assert!(blocked.slowest() < MARGIN, "who knows of the alarm does not wait: {blocked:?}");

    // A function that starts during the alarm learns of it by its first message.
    let newcomer = world.signup();
    newcomer.warm_up().await;
    let learning = sale(&newcomer, id, "learning", 1, 1).await;
    assert!(learning.slowest() < LONG_TIMEOUT + MARGIN, "{learning:?}");
    let learnt = sale_for(&newcomer, id, "learnt", WHILE_OPEN).await;
    assert!(learnt.slowest() < MARGIN, "{learnt:?}");

    set_memory_watermark(&rabbitmq, "0.6").await;
    until_published(&world, &signup, id).await;
    until_published(&world, &newcomer, id).await;
    let later = sale(&signup, id, "later", 50, 8).await;
    assert!(published(&world).await.is_superset(&later.users));
    let outbox = outbox(&world, id).await;
    for sale in [&healthy, &first, &blocked, &learning, &learnt, &later] {
        assert!(outbox.is_superset(&sale.users));
    }
    // No message of them is left, and the outbox brings everybody home.
    world.drain_signups().await;
    world.make_due(id).await;
    world.assert_sound(id, []).await;
    assert_eq!(world.active(id).await, Some(outbox.len() as u64));
    rabbitmq.kill().await.unwrap();
    dir.finish(true).unwrap();
}

#[tokio::test]
async fn a_function_starts_without_a_broker_and_sends_as_soon_as_there_is_one() {
    let (world, signup, proxy) = signup_behind_a_proxy().await;
    let id = world.open_activity(100_000).await;
    proxy.cut();
    let started = Instant::now();
    signup.warm_up().await;
    assert!(started.elapsed() < PUBLISH_TIMEOUT, "{:?}", started.elapsed());
    let sale = sale(&signup, id, "early", 300, 16).await;
    assert_eq!(outbox(&world, id).await, sale.users);
    assert!(sale.slowest() < MARGIN, "a refused connection costs no wait: {:?}", sale.slowest());
    proxy.heal();
    until_published(&world, &signup, id).await;
}

#[tokio::test]
async fn a_broker_that_nobody_answers_for_costs_no_place() {
    let mut world = World::new().await;
    let id = world.open_activity(100_000).await;
    let nowhere = free_port().unwrap();
    world.settings.insert("AMQP_URL".into(), format!("amqp://user:password@127.0.0.1:{nowhere}"));
    let signup = world.signup();
    signup.warm_up().await;
    let sale = sale(&signup, id, "user", 300, 16).await;
    assert_eq!(outbox(&world, id).await, sale.users);
    assert!(sale.slowest() < MARGIN, "{:?}", sale.slowest());
}

#[tokio::test]
async fn a_killed_connection_is_replaced_once_and_the_message_arrives() {
    let (world, signup, proxy) = signup_behind_a_proxy().await;
    let id = world.open_activity(10).await;
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    assert_eq!(published(&world).await, users(["alice"]));
    for user in ["bob", "carol", "dave"] {
        proxy.cut();
        proxy.heal();
        assert_eq!(call(&signup, "POST", id, user).await.status, 202);
        assert_eq!(published(&world).await, users([user]), "the first request after the connection broke");
    }
}

#[tokio::test]
async fn a_message_whose_confirm_got_lost_is_sent_again() {
    let mut world = World::new().await;
    let (proxy, url) = Proxy::before(&world.settings["AMQP_URL"]).await;
    let direct = world.settings.insert("AMQP_URL".into(), url).unwrap();
    let publisher = Publisher::new(&world.broker_config());
    world.settings.insert("AMQP_URL".into(), direct);
    publisher.warm_up().await.unwrap();
    let body = message_body(random_activity_id(), "alice", 1_796_040_000_123, 1, "signed-up");
    let fact = shared::message::parse(&body).unwrap();

    proxy.lose_reply_to(b"signup.v1");
    publisher.publish(&fact, None).await.unwrap();
    assert!(proxy.has_lost_reply());
    let messages = world.drain_signups().await;
    let copies: Vec<_> = messages.iter().map(|message| shared::message::parse(&message.body).unwrap()).collect();
    assert_eq!(copies, [fact.clone(), fact], "twice is harmless: it is the same fact");
}

#[tokio::test]
async fn a_dead_socket_to_the_broker_costs_one_deadline_and_is_replaced() {
    let (world, signup, proxy) = signup_behind_a_proxy().await;
    let id = world.open_activity(100_000).await;
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    assert_eq!(published(&world).await, users(["alice"]));

    proxy.strand();
    let first = sale(&signup, id, "first", 8, 8).await;
    assert!(first.slowest() < PUBLISH_TIMEOUT + MARGIN, "{:?}", first.slowest());
    let started = Instant::now();
    let back = until_published(&world, &signup, id).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(outbox(&world, id).await.is_superset(&first.users), "a message of unknown fate keeps its note");
    assert!(back.iter().all(|user| user.starts_with("again-")));
}

#[tokio::test]
async fn a_connection_that_freezes_for_a_while_loses_nothing() {
    let (world, signup, proxy) = signup_behind_a_proxy().await;
    let id = world.open_activity(100_000).await;
    assert_eq!(call(&signup, "POST", id, "alice").await.status, 202);
    proxy.freeze();
    let frozen = sale(&signup, id, "frozen", 100, 8).await;
    assert!(frozen.slowest() < PUBLISH_TIMEOUT + MARGIN, "{:?}", frozen.slowest());
    proxy.heal();
    let back = until_published(&world, &signup, id).await;
    let mut granted = frozen.users;
    granted.extend(back);
    granted.insert("alice".to_owned());
    assert_eq!(outbox(&world, id).await, granted);
}

/// What became of a crowd.
struct Sale {
    users: BTreeSet<String>,
    waits: Vec<Duration>,
}

impl std::fmt::Debug for Sale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:?}, p99 {:?}, max {:?}", self.percentile(50), self.percentile(99), self.slowest())
    }
}

impl Sale {
    fn percentile(&self, percent: usize) -> Duration {
        self.waits[(self.waits.len() - 1) * percent / 100]
    }

    fn slowest(&self) -> Duration {
        self.percentile(100)
    }
}

/// This many people sign up, so many at a time; each must be granted a place.
async fn sale(app: &signup::App, id: ActivityId, name: &str, people: usize, concurrency: usize) -> Sale {
    let users: Vec<_> = (0..people).map(|n| format!("{name}-{n}")).collect();
    let requests = users.iter().map(|user| async move {
        let started = Instant::now();
        let reply = call(app, "POST", id, user).await;
        assert_eq!((reply.status, &reply.body["status"]), (202, &"queued".into()), "{reply:?}");
        started.elapsed()
    });
    let mut waits: Vec<_> = futures::stream::iter(requests).buffer_unordered(concurrency).collect().await;
    waits.sort();
    Sale { users: users.into_iter().collect(), waits }
}

/// People sign up, 16 at a time, for as long as this.
async fn sale_for(app: &signup::App, id: ActivityId, name: &str, duration: Duration) -> Sale {
    let started = Instant::now();
    let mut all = Sale { users: BTreeSet::new(), waits: Vec::new() };
    while started.elapsed() < duration {
        let mut some = sale(app, id, &format!("{name}-{}", all.users.len()), 64, 16).await;
        all.users.append(&mut some.users);
        all.waits.append(&mut some.waits);
    }
    all.waits.sort();
    all
}

/// People sign up, one after the other, until the message of one of them arrives. Returns who did.
async fn until_published(world: &World, app: &signup::App, id: ActivityId) -> BTreeSet<String> {
    let name = format!("again-{}", rand::random::<u32>());
    let asked = std::cell::RefCell::new(BTreeSet::new());
    let arrived = async || {
        let user = format!("{name}-{}", asked.borrow().len());
        assert_eq!(call(app, "POST", id, &user).await.status, 202);
        asked.borrow_mut().insert(user.clone());
        published(world).await.contains(&user)
    };
    eventually("a message", RECOVERY, arrived).await;
    asked.into_inner()
}

/// Whose messages are in the queue. They are taken out.
async fn published(world: &World) -> BTreeSet<String> {
    let messages = world.drain_signups().await;
    messages.iter().map(|message| message.json()["userId"].as_str().unwrap().to_owned()).collect()
}

async fn outbox(world: &World, id: ActivityId) -> BTreeSet<String> {
    world.outbox(id).await.into_iter().collect()
}

fn users<const N: usize>(users: [&str; N]) -> BTreeSet<String> {
    users.map(str::to_owned).into()
}

async fn with_private_broker(rabbitmq: &RabbitMq) -> World {
    let timeout_ms = LONG_TIMEOUT.as_millis().to_string();
    World::with(&[("AMQP_URL", rabbitmq.url()), ("PUBLISH_TIMEOUT_MS", &timeout_ms)]).await
}

/// A function whose connection to the broker the proxy can hurt.
async fn signup_behind_a_proxy() -> (World, signup::App, Proxy) {
    let mut world = World::new().await;
    let (proxy, url) = Proxy::before(&world.settings["AMQP_URL"]).await;
    let direct = world.settings.insert("AMQP_URL".into(), url).unwrap();
    let signup = world.signup();
    world.settings.insert("AMQP_URL".into(), direct);
    (world, signup, proxy)
}

/// The share of the memory above which the broker takes no more messages; 0 raises the alarm. Asked of the broker by
/// `rabbitmqctl`, which needs to know its home and its port mapper.
async fn set_memory_watermark(rabbitmq: &RabbitMq, share: &str) {
    let environ = std::fs::read(format!("/proc/{}/environ", rabbitmq.pid())).unwrap();
    let environ = String::from_utf8(environ).unwrap();
    let own = environ.split('\0').filter_map(|variable| variable.split_once('='));
    let mut command = tokio::process::Command::from(RabbitMq::control().unwrap());
    command.envs(own.filter(|(name, _)| ["HOME", "ERL_EPMD_PORT", "RABBITMQ_NODENAME"].contains(name)));
    let done = command.args(["set_vm_memory_high_watermark", share]).output().await.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
