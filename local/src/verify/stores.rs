//! Reads Redis, MySQL and RabbitMQ page by page. Reads only; every call has a deadline.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context, bail};
use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params, Row, Value};
use redis::{Cmd, FromRedisValue};
use shared::domain::{ActivityId, SignupStatus, Timestamp, UserId, Version};
use shared::reservations::{ACTIVITIES_KEY, ActivityKeys, StoredReceipt};

use super::Settings;
use crate::redis_link::RedisLink;

/// How many people one page holds.
pub const PAGE: usize = 1_000;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// Milliseconds since 1970 of a `DATETIME(3)` in UTC, whatever the time zone of the session.
const SIGNUP_TIME_MS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', signup_time) DIV 1000";

/// Connections to all three.
pub struct Stores {
    redis: RedisLink,
    mysql: Conn,
    broker: Connection,
    queues: Vec<String>,
    parked_queue: String,
}

/// What Redis keeps of an activity.
pub struct Reserved {
    pub capacity: Option<u64>,
    pub taken: Option<u64>,
    pub sequence: Option<u64>,
    pub receipts: u64,
    pub outbox: u64,
    /// It ended long ago, and the receipts expire, or have.
    pub archived: bool,
}

/// What MySQL keeps of an activity.
pub struct Recorded {
    pub capacity: u64,
    pub active: u64,
    pub closed: bool,
}

/// A page of rows: each user with the row, or with what could not be read of it.
pub type Rows = Vec<(UserId, Result<StoredReceipt, String>)>;

impl Stores {
    /// Connects to all three, or says which of them is not there.
    pub async fn connect(settings: &Settings) -> anyhow::Result<Self> {
        let (redis, broker, mysql) = settings.servers()?;
        let redis = RedisLink::open(&redis.endpoint, redis.cluster, ANSWER_WITHIN);
        let redis = redis.await.context("connecting to Redis at REDIS_URL")?;

        let options = mysql.endpoint.mysql_options(&mysql.endpoint.url().await?).context("MYSQL_URL")?;
        let mysql = within(CONNECT_WITHIN, "connecting to MySQL", Conn::new(options)).await?;

        let broker = async {
            let url = broker.endpoint.url().await?;
            anyhow::Ok(broker.endpoint.amqp_connection(&url, "onrush-verify").await?)
        };
        let broker = within(CONNECT_WITHIN, "connecting to RabbitMQ", broker).await?;
        let topology = settings.topology()?;
        Ok(Self { redis, mysql, broker, queues: topology.queue_names(), parked_queue: topology.parked_queue() })
    }

    /// Closes the connections.
    pub async fn close(self) -> anyhow::Result<()> {
        within(CONNECT_WITHIN, "leaving MySQL", self.mysql.disconnect()).await?;
        within(CONNECT_WITHIN, "leaving RabbitMQ", self.broker.close(200, "done".into())).await
    }

    /// Every activity that Redis or MySQL has heard of.
    pub async fn activity_ids(&mut self) -> anyhow::Result<BTreeSet<ActivityId>> {
        let ids: Vec<u64> = self.ask_redis(redis::cmd("SMEMBERS").arg(ACTIVITIES_KEY)).await?;
        let mut ids: BTreeSet<_> = ids.into_iter().map(ActivityId::new).collect();
        let known: Vec<u64> = self.ask_mysql("SELECT id FROM activity", ()).await?;
        let with_rows: Vec<u64> = self.ask_mysql("SELECT DISTINCT activity_id FROM user_activity", ()).await?;
        ids.extend(known.into_iter().chain(with_rows).map(ActivityId::new));
        Ok(ids)
    }

    /// What Redis keeps of the activity.
    pub async fn reserved(&mut self, id: ActivityId) -> anyhow::Result<Reserved> {
        let keys = ActivityKeys::of(id);
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(&keys.activity).arg(&["capacity", "taken", "sequence", "archived_at_ms"]);
        pipeline.hlen(&keys.signups).zcard(&keys.outbox);
        type Counts = (Option<u64>, Option<u64>, Option<u64>, Option<u64>);
        let (counts, receipts, outbox): (Counts, u64, u64) = pipeline.query_async(&mut self.redis).await?;
        let (capacity, taken, sequence, archived_at_ms) = counts;
        Ok(Reserved { capacity, taken, sequence, receipts, outbox, archived: archived_at_ms.is_some() })
    }

    /// What MySQL keeps of the activity, if it knows it.
    pub async fn recorded(&mut self, id: ActivityId) -> anyhow::Result<Option<Recorded>> {
        let sql = "SELECT capacity, active, COALESCE(closes_at <= UTC_TIMESTAMP(3), 0) FROM activity WHERE id = ?";
        let rows: Vec<(u64, u64, bool)> = self.ask_mysql(sql, (id.get(),)).await?;
        Ok(rows.first().map(|&(capacity, active, closed)| Recorded { capacity, active, closed }))
    }

    /// A page of receipts, and the cursor of the next one; 0 ends. Redis may return a user more than once.
    pub async fn receipts_page(&mut self, id: ActivityId, cursor: u64) -> anyhow::Result<(u64, Vec<(String, String)>)> {
        let mut scan = redis::cmd("HSCAN");
        scan.arg(ActivityKeys::of(id).signups).arg(cursor).arg("COUNT").arg(PAGE);
        let (cursor, flat): (u64, Vec<Vec<u8>>) = self.ask_redis(&scan).await?;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Ok((cursor, flat.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()))
    }

    /// The receipts of these users, in their order.
    pub async fn receipts_of(&mut self, id: ActivityId, users: &[&UserId]) -> anyhow::Result<Vec<Option<String>>> {
        if users.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(ActivityKeys::of(id).signups);
        for user in users {
            get.arg(user.as_str());
        }
        self.ask_redis(&get).await
    }

    /// The first outbox notes: user and the time in ms from which the relay may pick it up.
    pub async fn outbox(&mut self, id: ActivityId, count: usize) -> anyhow::Result<Vec<(String, f64)>> {
        let mut range = redis::cmd("ZRANGE");
        range.arg(ActivityKeys::of(id).outbox).arg(0).arg(count.saturating_sub(1)).arg("WITHSCORES");
        self.ask_redis(&range).await
    }

    /// The rows after this user, at most [`PAGE`], in the order of users.
    pub async fn rows_after(&mut self, id: ActivityId, user: &str) -> anyhow::Result<Rows> {
        let sql = format!(
            "SELECT user_id, status, version, sequence, {SIGNUP_TIME_MS} FROM user_activity
             WHERE activity_id = ? AND user_id > ? ORDER BY user_id LIMIT {PAGE}"
        );
        self.rows(&sql, Params::from((id.get(), user))).await
    }

    /// The rows of these users.
    pub async fn rows_of(
        &mut self,
        id: ActivityId,
        users: &[&UserId],
    ) -> anyhow::Result<HashMap<UserId, Result<StoredReceipt, String>>> {
        if users.is_empty() {
            return Ok(HashMap::new());
        }
        let sql = format!(
            "SELECT user_id, status, version, sequence, {SIGNUP_TIME_MS} FROM user_activity
             WHERE activity_id = ? AND user_id IN ({})",
            vec!["?"; users.len()].join(",")
        );
        let parameters = std::iter::once(Value::from(id.get())).chain(users.iter().map(|user| user.as_str().into()));
        Ok(self.rows(&sql, Params::Positional(parameters.collect())).await?.into_iter().collect())
    }

    async fn rows(&mut self, sql: &str, parameters: Params) -> anyhow::Result<Rows> {
        let rows: Vec<(String, i64, u64, u64, Option<i64>)> = self.ask_mysql(sql, parameters).await?;
        rows.into_iter()
            .map(|(user, status, version, sequence, signed_up_at_ms)| {
                let user: UserId = user.parse().with_context(|| format!("a row of the user {user:?}"))?;
                let row = stored(status, version, sequence, signed_up_at_ms);
                let text = || format!("{status} {version} {sequence} {signed_up_at_ms:?}");
                Ok((user, row.ok_or_else(text)))
            })
            .collect()
    }

    /// Users with more than one row: impossible as long as the table has its primary key.
    pub async fn users_twice(&mut self, id: ActivityId) -> anyhow::Result<Vec<(String, String)>> {
        let sql = "SELECT user_id, GROUP_CONCAT(sequence ORDER BY sequence) FROM user_activity WHERE activity_id = ?
                   GROUP BY user_id HAVING COUNT(*) > 1";
        self.ask_mysql(sql, (id.get(),)).await
    }

    /// Places that several active rows hold, with the users. A producer that does not count writes sequence 0.
    pub async fn places_shared(&mut self, id: ActivityId) -> anyhow::Result<Vec<(u64, String)>> {
        let sql = "SELECT sequence, GROUP_CONCAT(user_id ORDER BY user_id SEPARATOR ' ') FROM user_activity
                   WHERE activity_id = ? AND status = 1 AND sequence > 0 GROUP BY sequence HAVING COUNT(*) > 1";
        self.ask_mysql(sql, (id.get(),)).await
    }

    /// Messages ready in all queues of sign-ups, and in the parked queue.
    pub async fn backlog(&mut self) -> anyhow::Result<(u64, u64)> {
        let channel = within(ANSWER_WITHIN, "opening a channel", self.broker.create_channel()).await?;
        let mut ready = Vec::new();
        for queue in self.queues.iter().chain([&self.parked_queue]) {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let declared = channel.queue_declare(queue.as_str().into(), passive, FieldTable::default());
            let waiting = format!("looking at the queue {queue}; provision declares it");
            ready.push(u64::from(within(ANSWER_WITHIN, &waiting, declared).await?.message_count()));
        }
        within(ANSWER_WITHIN, "closing a channel", channel.close(200, "done".into())).await?;
        let parked = ready.pop().unwrap_or(0);
        Ok((ready.into_iter().sum(), parked))
    }

    async fn ask_redis<T: FromRedisValue>(&mut self, command: &Cmd) -> anyhow::Result<T> {
        command.query_async(&mut self.redis).await.context("asking Redis")
    }

    async fn ask_mysql<T: mysql_async::prelude::FromRow + Send + 'static>(
        &mut self,
        sql: &str,
        parameters: impl Into<Params> + Send,
    ) -> anyhow::Result<Vec<T>> {
        let rows: Vec<Row> = within(ANSWER_WITHIN, "asking MySQL", self.mysql.exec(sql, parameters)).await?;
        rows.into_iter().map(|row| mysql_async::from_row_opt(row).context("a row of another form")).collect()
    }
}

fn stored(status: i64, version: u64, sequence: u64, signed_up_at_ms: Option<i64>) -> Option<StoredReceipt> {
    Some(StoredReceipt {
        status: u8::try_from(status).ok().and_then(SignupStatus::from_code)?,
        version: Version::new(version).ok()?,
        sequence,
        signed_up_at: Timestamp::from_ms(u64::try_from(signed_up_at_ms?).ok()?).ok()?,
    })
}

/// Waits for an answer, but not for ever.
async fn within<T, E>(limit: Duration, doing: &str, answer: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    Result<T, E>: Context<T, E>,
{
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.with_context(|| doing.to_owned()),
        Err(_) => bail!("{doing}: no answer within {} s", limit.as_secs()),
    }
}
