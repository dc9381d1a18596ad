//! Databases of a test's own, and looks into what the server is doing there.

use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, Pool};

use shared::domain::ActivityId;

use crate::World;

impl World {
    /// A corner with a database of its own, for a test that changes tables or looks for sessions that wait.
    pub async fn with_own_database() -> Self {
        Self::with(&[("MYSQL_URL", &empty_database().await)]).await
    }

    /// Runs one statement.
    pub async fn sql(&self, statement: &str) {
        self.mysql.get_conn().await.unwrap().query_drop(statement).await.unwrap();
    }

    /// When the row says that the place was granted.
    pub async fn signup_time(&self, id: ActivityId, user: &str) -> String {
        let sql = "SELECT DATE_FORMAT(signup_time, '%Y-%m-%dT%H:%i:%s.%f') FROM user_activity \
            WHERE activity_id = ? AND user_id = ?";
        let time: String =
            self.mysql.get_conn().await.unwrap().exec_first(sql, (id.get(), user)).await.unwrap().unwrap();
        format!("{}Z", time.strip_suffix("000").unwrap())
    }

    /// Removes the rows of an activity, as if none had come.
    pub async fn forget_rows(&self, id: ActivityId) {
        self.sql(&format!("DELETE FROM user_activity WHERE activity_id = {id}")).await;
        self.sql(&format!("UPDATE activity SET active = 0 WHERE id = {id}")).await;
    }

    /// The statements that other sessions run in this database now. With a lock held, those are the ones that wait.
    pub async fn running_statements(&self) -> Vec<String> {
        let sql = "SELECT INFO FROM information_schema.PROCESSLIST \
            WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO IS NOT NULL";
        self.mysql.get_conn().await.unwrap().query(sql).await.unwrap()
    }
}

/// The address of a new database on the shared server.
pub async fn empty_database() -> String {
    let shared = std::env::var("MYSQL_URL").unwrap();
    let (server, _) = shared.rsplit_once('/').unwrap();
    let name = format!("test_{:016x}", rand::random::<u64>());
    let pool = Pool::new(OptsBuilder::from_opts(Opts::from_url(&shared).unwrap()).prefer_socket(false));
    pool.get_conn().await.unwrap().query_drop(format!("CREATE DATABASE {name} CHARACTER SET utf8mb4")).await.unwrap();
    pool.disconnect().await.unwrap();
    format!("{server}/{name}")
}
