//! A private Redis cluster: three primaries, each with a replica.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use redis::{AsyncConnectionConfig, FromRedisValue, Value};

use super::process::{Launch, Process};
use super::ready;
use super::redis::{Redis, probe, tls_listener};
use super::tls::Certificates;

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;

const START_LIMIT: Duration = Duration::from_secs(60);
const AGREE_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A running cluster; see [`super`] for what holds for all servers. Nodes have numbers: at first 0 to 2 are primaries, and
/// each is followed by the node three further.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    process: Process,
    ports: Ports,
    id: String,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    /// Where we look after it, in plain text.
    plain: u16,
    /// Where it talks to the other nodes.
    bus: u16,
    /// Where clients come over TLS.
    tls: Option<u16>,
}

impl Ports {
    /// Where everybody else comes, the other nodes too.
    fn open(self) -> u16 {
        self.tls.unwrap_or(self.plain)
    }
}

/// A slot on its way from one primary to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    slot: u16,
    from: usize,
    to: usize,
}

impl RedisCluster {
    /// Starts one with its data and logs in `dir`, and waits until all nodes agree. A node that stays silent for
    /// `node_timeout` is taken for dead: a busy machine needs more of it, a test of a failover less.
    pub async fn start(dir: &Path, node_timeout: Duration) -> anyhow::Result<Self> {
        Self::start_with(dir, node_timeout, None).await
    }

    /// The same with nodes that talk to each other over TLS, and whose address leads there.
    pub async fn start_over_tls(dir: &Path, node_timeout: Duration, tls: &Certificates) -> anyhow::Result<Self> {
        Self::start_with(dir, node_timeout, Some(tls)).await
    }

    async fn start_with(dir: &Path, node_timeout: Duration, tls: Option<&Certificates>) -> anyhow::Result<Self> {
        let dir = ready::create_dir(dir)?;
        let program = Redis::program()?;
        let mut cluster = ready::on_free_ports(async |ports: [u16; 3 * NODES]| {
            let starts = ports.chunks_exact(3).enumerate().map(|(number, ports)| {
                let ports = Ports { plain: ports[0], bus: ports[1], tls: tls.map(|_| ports[2]) };
                Node::start(dir.join(format!("node-{number}")), &program, ports, tls, node_timeout)
            });
            Ok(Self { nodes: futures::future::try_join_all(starts).await? })
        })
        .await?;
        cluster.form().await.context("forming the cluster")?;
        Ok(cluster)
    }

    async fn form(&mut self) -> anyhow::Result<()> {
        for number in 0..NODES {
            self.nodes[number].id = self.ask(number, "CLUSTER MYID").await?;
            self.tell(number, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await?;
        }
        for number in 0..PRIMARIES {
            let (first, next) = (SLOTS * number / PRIMARIES, SLOTS * (number + 1) / PRIMARIES);
            self.tell(number, &format!("CLUSTER ADDSLOTSRANGE {first} {}", next - 1)).await?;
        }
        for number in 0..NODES {
            for other in self.nodes.iter().skip(number + 1) {
                let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", other.ports.open(), other.ports.bus);
                self.tell(number, &meet).await?;
            }
        }
        self.until("all nodes know each other", START_LIMIT, async |number| {
            let info: String = self.ask(number, "CLUSTER INFO").await?;
            let nodes: String = self.ask(number, "CLUSTER NODES").await?;
            Ok(has_line(&info, &format!("cluster_known_nodes:{NODES}")) && !nodes.contains("handshake"))
        })
        .await?;
        for number in PRIMARIES..NODES {
            self.tell(number, &format!("CLUSTER REPLICATE {}", self.nodes[number - PRIMARIES].id)).await?;
        }
        self.until_well().await
    }

    /// Waits until every node is there and content, and each primary has its replica.
    pub async fn until_well(&self) -> anyhow::Result<()> {
        self.until("the cluster is whole", START_LIMIT, async |number| {
            let info: String = self.ask(number, "CLUSTER INFO").await?;
            let replication: String = self.ask(number, "INFO replication").await?;
            let follows = has_line(&replication, "master_link_status:up");
            let leads = has_line(&replication, "role:master") && has_line(&replication, "connected_slaves:1");
            let nodes = self.slots(number).await?.iter().map(|range| range.nodes.len()).min();
            Ok(has_line(&info, "cluster_state:ok") && (follows || leads) && nodes == Some(2))
        })
        .await
    }

    /// Where clients come in: `redis://127.0.0.1:port/` of the first node, or `rediss://`.
    #[must_use]
    pub fn url(&self) -> String {
        match self.nodes[0].ports.tls {
            Some(port) => format!("rediss://127.0.0.1:{port}/"),
            None => self.url_of(0),
        }
    }

    /// `redis://127.0.0.1:port/` of any node, in plain text always.
    #[must_use]
    pub fn url_of(&self, number: usize) -> String {
        format!("redis://127.0.0.1:{}/", self.nodes[number].ports.plain)
    }

    /// The settings that lead a function or a test there.
    #[must_use]
    pub fn env(&self) -> [(String, String); 2] {
        [("REDIS_URL".to_owned(), self.url()), ("REDIS_CLUSTER".to_owned(), "true".to_owned())]
    }

    /// The process id of a node; 0 while it is down.
    #[must_use]
    pub fn pid(&self, number: usize) -> u32 {
        self.nodes[number].process.pid()
    }

    /// Kills a node and waits until it is gone.
    pub async fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        self.nodes[number].process.kill().await
    }

    /// Starts it again on the same port with the same data.
    pub async fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        self.nodes[number].process.start_again()?;
        self.nodes[number].until_answering().await
    }

    /// Freezes a node.
    pub fn pause(&self, number: usize) -> anyhow::Result<()> {
        self.nodes[number].process.pause()
    }

    /// Thaws it.
    pub fn resume(&self, number: usize) -> anyhow::Result<()> {
        self.nodes[number].process.resume()
    }

    /// Kills all nodes: nobody will read their data any more.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let kills = self.nodes.iter_mut().map(|node| node.process.kill());
        futures::future::try_join_all(kills).await.map(|_| ())
    }

    /// The node that holds the slot of this key, once all nodes that run say the same.
    pub async fn primary_of(&self, key: &str) -> anyhow::Result<usize> {
        self.agreed(key, |_| true).await.map(|range| range.nodes[0])
    }

    /// The same once it is another node than `old`.
    pub async fn primary_after(&self, key: &str, old: usize) -> anyhow::Result<usize> {
        self.agreed(key, |range| range.nodes[0] != old).await.map(|range| range.nodes[0])
    }

    /// The replica of the node that holds the slot of this key.
    pub async fn replica_of(&self, key: &str) -> anyhow::Result<usize> {
        self.agreed(key, |range| range.nodes.len() == 2).await.map(|range| range.nodes[1])
    }

    /// Lets the replica of the node that holds the slot of this key take over, in order. The number of the new primary.
    pub async fn fail_over(&self, key: &str) -> anyhow::Result<usize> {
        let (old, replica) = (self.primary_of(key).await?, self.replica_of(key).await?);
        self.tell(replica, "CLUSTER FAILOVER").await?;
        self.primary_after(key, old).await
    }

    /// Lets this replica take over whatever the others say, for example with the data of a while ago. The number of the node
    /// that it replaces has to be down.
    pub async fn take_over(&self, replica: usize, key: &str) -> anyhow::Result<()> {
        self.tell(replica, "CLUSTER FAILOVER TAKEOVER").await?;
        self.agreed(key, |range| range.nodes[0] == replica).await.map(|_| ())
    }

    /// Begins to move the slot of this key to another primary: keys that are not there any more are asked for there.
    pub async fn begin_move(&self, key: &str, to: usize) -> anyhow::Result<Move> {
        let (slot, from) = (self.slot_of(key).await?, self.primary_of(key).await?);
        ensure!(from != to, "the slot of {key} is on node {to} already");
        self.tell(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.nodes[from].id)).await?;
        self.tell(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.nodes[to].id)).await?;
        Ok(Move { slot, from, to })
    }

    /// The keys of the slot that have not moved yet.
    pub async fn keys_left(&self, moving: Move) -> anyhow::Result<Vec<String>> {
        self.ask(moving.from, &format!("CLUSTER GETKEYSINSLOT {} 1000", moving.slot)).await
    }

    /// Moves one key of the slot. Tells whether it was there.
    pub async fn move_key(&self, moving: Move, key: &str) -> anyhow::Result<bool> {
        let port = self.nodes[moving.to].ports.open();
        let answer: String = self.ask(moving.from, &format!("MIGRATE 127.0.0.1 {port} {key} 0 5000")).await?;
        Ok(answer != "NOKEY")
    }

    /// Moves what is left, gives the slot to its new primary, and waits until every node knows.
    pub async fn finish_move(&self, moving: Move) -> anyhow::Result<()> {
        let deadline = Instant::now() + AGREE_LIMIT;
        loop {
            for key in self.keys_left(moving).await? {
                self.move_key(moving, &key).await?;
            }
            // The new primary first: the slot has to have one if we end in between. The old one refuses while it has keys.
            let settled = format!("CLUSTER SETSLOT {} NODE {}", moving.slot, self.nodes[moving.to].id);
            self.tell(moving.to, &settled).await?;
            match self.tell(moving.from, &settled).await {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
                Ok(()) => break,
            }
        }
        self.agreed_slot(moving.slot, |range| range.nodes[0] == moving.to).await.map(|_| ())
    }

    /// What the nodes that run say about the slot of this key, once they all say the same and `holds`.
    async fn agreed(&self, key: &str, holds: impl Fn(&Range) -> bool) -> anyhow::Result<Range> {
        self.agreed_slot(self.slot_of(key).await?, holds).await
    }

    async fn slot_of(&self, key: &str) -> anyhow::Result<u16> {
        let any = self.running().next().context("no node of the cluster runs")?;
        self.ask(any, &format!("CLUSTER KEYSLOT {key}")).await
    }

    async fn agreed_slot(&self, slot: u16, holds: impl Fn(&Range) -> bool) -> anyhow::Result<Range> {
        let deadline = Instant::now() + AGREE_LIMIT;
        loop {
            let mut said = Vec::new();
            for number in self.running() {
                let ranges = self.slots(number).await.unwrap_or_default();
                said.push(ranges.into_iter().find(|range| (range.first..=range.last).contains(&slot)));
            }
            let (first, rest) = said.split_first().context("no node of the cluster runs")?;
            if let Some(range) = first
                && holds(range)
                && rest.iter().all(|other| other.as_ref().is_some_and(|other| other.nodes == range.nodes))
            {
                return Ok(range.clone());
            }
            if Instant::now() > deadline {
                bail!("the nodes do not agree about the slot {slot} within {AGREE_LIMIT:?}: {said:?}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Who holds which slots in the eyes of this node, as it answers clients.
    async fn slots(&self, number: usize) -> anyhow::Result<Vec<Range>> {
        let ranges: Vec<Vec<Value>> = self.ask(number, "CLUSTER SLOTS").await?;
        let mut read = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut values = range.into_iter();
            let mut bound = || values.next().context("a range without bounds");
            let (first, last) = (redis::from_redis_value(bound()?)?, redis::from_redis_value(bound()?)?);
            let mut nodes = Vec::new();
            for node in values {
                let (_, port, _, _): (String, u16, String, Value) = redis::from_redis_value(node)?;
                let node = self.nodes.iter().position(|node| node.ports.plain == port);
                nodes.push(node.context("a node of another cluster")?);
            }
            read.push(Range { first, last, nodes });
        }
        Ok(read)
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..NODES).filter(|number| self.pid(*number) != 0)
    }

    async fn until(
        &self,
        what: &str,
        limit: Duration,
        holds: impl AsyncFn(usize) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        for number in 0..NODES {
            loop {
                let answer = holds(number).await;
                if matches!(answer, Ok(true)) {
                    break;
                }
                if Instant::now() > deadline {
                    let log = self.nodes[number].process.log().display();
                    bail!("{what}: not within {limit:?} at node {number} ({answer:?}); see its log: {log}");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    async fn tell(&self, number: usize, command: &str) -> anyhow::Result<()> {
        self.ask::<Value>(number, command).await.map(|_| ())
    }

    /// Asks this very node. The words of the command are those between blanks.
    async fn ask<T: FromRedisValue>(&self, number: usize, command: &str) -> anyhow::Result<T> {
        let doing = || format!("{command} at node {number}");
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let client = redis::Client::open(self.url_of(number))?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.with_context(doing)?;
        let mut words = command.split(' ');
        let mut asked = redis::cmd(words.next().context("no command")?);
        asked.arg(words.collect::<Vec<_>>()).query_async(&mut connection).await.with_context(doing)
    }
}

/// Slots beside each other, and who has them: the primary first.
#[derive(Clone, Debug)]
struct Range {
    first: u16,
    last: u16,
    nodes: Vec<usize>,
}

impl Node {
    async fn start(
        dir: PathBuf,
        program: &Path,
        ports: Ports,
        tls: Option<&Certificates>,
        node_timeout: Duration,
    ) -> anyhow::Result<Self> {
        let dir = ready::create_dir(&dir)?;
        let over_tls = ports.tls.zip(tls).map(|(port, tls)| {
            ["--tls-cluster", "yes", "--tls-replication", "yes"]
                .map(Into::into)
                .into_iter()
                .chain(tls_listener(port, tls))
                .collect::<Vec<_>>()
        });
        let process = Launch::new("a node of the Redis cluster", program, &dir, &dir.join("redis.log"))
            .args(["--bind", "127.0.0.1", "--port", &ports.plain.to_string()])
            .args(["--cluster-port", &ports.bus.to_string()])
            .args(over_tls.unwrap_or_default())
            .args(["--daemonize", "no", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"])
            .args(["--cluster-node-timeout", &node_timeout.as_millis().to_string()])
            // A primary that is gone takes only its own slots along, as services have it.
            .args(["--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no"])
            // Replicas follow at once, rather than after five seconds in which more of them may come; and something is sent
            // to them each second, since nobody is told of a replica that has got nothing.
            .args(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"])
            .arg("--dir")
            .arg(&dir)
            .start()?;
        let mut node = Self { process, ports, id: String::new() };
        node.until_answering().await?;
        Ok(node)
    }

    async fn until_answering(&mut self) -> anyhow::Result<()> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.ports.plain))?;
        let pid = self.process.pid();
        ready::until_ready(&mut self.process, START_LIMIT, async || probe(&client, pid).await).await
    }
}

fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|other| other.trim_end() == line)
}
