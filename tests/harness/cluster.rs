//! Sales on a Redis cluster of a test's own.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use local::servers::{Certificates, RedisCluster, RunDir};
use shared::domain::ActivityId;
use shared::reservations::ActivityKeys;

use crate::{Reply, Sale, World, empty_database, end_connections, random_activity_id, redis_at, set_redis_login};

/// `REDIS_TIMEOUT_MS` where nothing else is set.
pub const CLUSTER_TIMEOUT: Duration = Duration::from_millis(800);

/// What a loaded machine may add to a deadline.
pub const CLUSTER_MARGIN: Duration = Duration::from_millis(700);

/// A busy machine may keep a node silent for less than this.
const PATIENCE: Duration = Duration::from_secs(60);

const A_WHILE: Duration = Duration::from_secs(60);

/// A cluster of a test's own.
pub struct OwnCluster {
    /// Its nodes.
    pub nodes: RedisCluster,
    /// What its nodes show, where they talk over TLS.
    pub tls: Option<Certificates>,
    dir: RunDir,
}

impl OwnCluster {
    /// In which no node is taken for dead, however busy the machine is.
    pub async fn patient() -> Self {
        Self::start(PATIENCE).await
    }

    /// In which a dead primary is replaced within a few seconds.
    pub async fn hasty() -> Self {
        Self::start(Duration::from_secs(2)).await
    }

    async fn start(node_timeout: Duration) -> Self {
        let dir = RunDir::create("test").unwrap();
        let nodes = RedisCluster::start(dir.path(), node_timeout).await.unwrap();
        Self { nodes, tls: None, dir }
    }

    /// The patient one over TLS.
    pub async fn over_tls() -> Self {
        let dir = RunDir::create("test").unwrap();
        let tls = Certificates::create(&dir.path().join("tls")).unwrap();
        let nodes = RedisCluster::start_over_tls(dir.path(), PATIENCE, &tls).await.unwrap();
        Self { nodes, tls: Some(tls), dir }
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Lets this user in by this password alone, on every node. Who is in stays in.
    pub async fn set_login(&self, user: &str, password: &str) {
        for node in 0..6 {
            set_redis_login(&mut redis_at(&self.nodes.url_of(node)).await, user, password).await;
        }
    }

    /// Ends the connections of this user to a node.
    pub async fn end_connections(&self, node: usize, user: &str) {
        end_connections(&mut redis_at(&self.nodes.url_of(node)).await, user).await;
    }

    /// Stops it and removes its data.
    pub async fn stop(self) {
        self.nodes.stop().await.unwrap();
        self.dir.finish(true).unwrap();
    }

    /// A corner on it, with a database of its own.
    pub async fn world(&self, own: &[(&str, &str)]) -> World {
        let (url, database) = (self.nodes.url(), empty_database().await);
        let timeout = CLUSTER_TIMEOUT.as_millis().to_string();
        let settings = [
            ("REDIS_URL", url.as_str()),
            ("REDIS_CLUSTER", "true"),
            ("REDIS_TIMEOUT_MS", &timeout),
            ("MYSQL_URL", &database),
        ];
        World::with(&[&settings, own].concat()).await
    }

    /// An activity on each primary, in the order of the nodes, and a function for each.
    pub async fn sales<'a>(&self, world: &'a World, capacity: u32) -> [Sale<'a>; 3] {
        let mut found = [None, None, None];
        for _ in 0..200 {
            let id = random_activity_id();
            let place = &mut found[self.nodes.primary_of(&keys_of(id)[0]).await.unwrap()];
            if place.is_none() {
                *place = Some(Sale::open_as(world, world.signup(), id, capacity).await);
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        found.map(Option::unwrap)
    }
}

/// The keys of the activity: what the organiser set, the receipts, the outbox.
pub fn keys_of(id: ActivityId) -> [String; 3] {
    let ActivityKeys { activity, signups, outbox } = ActivityKeys::of(id);
    [activity, signups, outbox]
}

/// What people were told in the end.
#[derive(Debug, Default)]
pub struct Told {
    /// 202, or 200 where an earlier reply was lost.
    pub granted: usize,
    /// 409.
    pub sold_out: usize,
    /// 503, on the way there.
    pub refused: usize,
}

impl Sale<'_> {
    /// Each of these people asks until they are told something final.
    pub async fn insist(&self, users: &[String]) -> Told {
        let told = users.iter().map(async |user| {
            let started = Instant::now();
            let mut refused = 0;
            loop {
                let asked = Instant::now();
                let reply = self.call("POST", user).await;
                assert!(asked.elapsed() < Duration::from_secs(5) + CLUSTER_MARGIN, "{:?}", asked.elapsed());
                match reply.status {
                    200 | 202 => break Told { granted: 1, sold_out: 0, refused },
                    409 => break Told { granted: 0, sold_out: 1, refused },
                    503 => refused += 1,
                    _ => panic!("{user}: {reply:?}"),
                }
                assert!(started.elapsed() < A_WHILE, "{user} is refused for ever: {reply:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let add = async |sum: Told, one: Told| Told {
            granted: sum.granted + one.granted,
            sold_out: sum.sold_out + one.sold_out,
            refused: sum.refused + one.refused,
        };
        futures::stream::iter(told).buffer_unordered(8).fold(Told::default(), add).await
    }

    /// A call that is refused in time, and says when to try again.
    pub async fn unavailable(&self, method: &str, user: &str) {
        let started = Instant::now();
        let reply = self.expect(method, user, 503).await;
        assert!(started.elapsed() < CLUSTER_TIMEOUT + CLUSTER_MARGIN, "{method} took {:?}", started.elapsed());
        assert_eq!(reply.code(), "unavailable", "{reply:?}");
        assert!(reply.header("retry-after").is_some(), "{reply:?}");
    }

    /// The first reply that is not 503; it has one of these statuses.
    pub async fn served(&self, method: &str, user: &str, statuses: &[u16]) -> Reply {
        let started = Instant::now();
        loop {
            let reply = self.call(method, user).await;
            if reply.status != 503 {
                assert!(statuses.contains(&reply.status), "{method} by {user}: {reply:?}");
                return reply;
            }
            assert!(started.elapsed() < A_WHILE, "{method} by {user} is refused for ever: {reply:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
