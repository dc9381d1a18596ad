//! A private MySQL or MariaDB, whichever is installed; MySQL where both are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use mysql_async::prelude::Queryable;
use shared::config::Secret;

use super::process::{Launch, Process, find_program};
use super::tls::{self, Certificates};
use super::{programs, ready};

const INITIALISE_LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const USER: &str = "onrush";
const DATABASE: &str = "onrush";

/// A running MySQL; see [`super`] for what holds for all servers.
#[derive(Debug)]
pub struct MySql {
    process: Process,
    url: String,
    tls: Option<Certificates>,
}

/// The installed server and which of the two it is.
struct Installed {
    program: PathBuf,
    is_mariadb: bool,
}

impl MySql {
    /// Starts one with its data and log in `dir`.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(dir, None).await
    }

    /// Starts one that takes connections over TLS only.
    pub async fn start_over_tls(dir: &Path, tls: &Certificates) -> anyhow::Result<Self> {
        Self::start_with(dir, Some(tls)).await
    }

    async fn start_with(dir: &Path, tls: Option<&Certificates>) -> anyhow::Result<Self> {
        let dir = ready::create_dir(dir)?;
        let installed = Installed::among(programs::find_all("MySQL or MariaDB", &["mysqld", "mariadbd"])?)?;
        initialise(&dir, &installed).await?;
        ready::on_free_ports(async |[port]: [u16; 1]| Self::start_on(&dir, &installed, port, tls).await).await
    }

    async fn start_on(
        dir: &Path,
        installed: &Installed,
        port: u16,
        tls: Option<&Certificates>,
    ) -> anyhow::Result<Self> {
        let password = ready::password();
        let init_file = dir.join("init.sql");
        std::fs::write(&init_file, init_sql(&password))?;
        let mut launch = Launch::new("MySQL", &installed.program, dir, &dir.join("mysql.log"))
            .args(installed.common_args(dir))
            .args([
                "--bind-address=127.0.0.1",
                &format!("--port={port}"),
                "--socket=mysql.sock",
                "--pid-file=mysql.pid",
            ])
            .arg(format!("--init-file={}", init_file.display()))
            .args(["--skip-name-resolve", "--max-connections=500", "--default-time-zone=+00:00"])
            .args(["--character-set-server=utf8mb4", "--performance-schema=OFF", "--secure-file-priv="]);
        if !installed.is_mariadb {
            launch = launch.arg("--mysqlx=OFF");
        }
        let mut url = format!("mysql://{USER}:{password}@127.0.0.1:{port}/{DATABASE}");
        if let Some(tls) = tls {
            url.push_str("?require_ssl=true");
            launch = launch
                .arg(format!("--ssl-ca={}", tls.authority().display()))
                .arg(format!("--ssl-cert={}", tls.certificate().display()))
                .arg(format!("--ssl-key={}", tls.key().display()))
                .arg("--require-secure-transport=ON");
        }
        let mut mysql = Self { process: launch.start()?, url, tls: tls.cloned() };
        mysql.until_healthy().await?;
        Ok(mysql)
    }

    async fn until_healthy(&mut self) -> anyhow::Result<()> {
        let (url, tls) = (&self.url, self.tls.as_ref());
        ready::until_ready(&mut self.process, START_LIMIT, async || probe(url, tls).await).await
    }

    /// `mysql://user:password@127.0.0.1:port/onrush`, with `?require_ssl=true` over TLS
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's process id; 0 while it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it logs.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// Freezes the server.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.process.pause()
    }

    /// Thaws the server.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.process.resume()
    }

    /// Kills the server and waits until it is gone.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Stops the server in order.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(STOP_LIMIT).await
    }

    /// Starts it again on the same port with the same data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process.start_again()?;
        self.until_healthy().await
    }
}

impl Installed {
    /// MySQL, or else MariaDB. That may call itself `mysqld` too, so each program is asked.
    fn among(programs: Vec<PathBuf>) -> anyhow::Result<Self> {
        let mut mariadb = None;
        for program in programs {
            let version = programs::command(&program).args(["--no-defaults", "--version"]).output()?;
            if String::from_utf8_lossy(&version.stdout).contains("MariaDB") {
                mariadb.get_or_insert(program);
            } else if version.status.success() {
                return Ok(Self { program, is_mariadb: false });
            }
        }
        let program = mariadb.context("no MySQL or MariaDB tells its version; run local/setup.sh")?;
        Ok(Self { program, is_mariadb: true })
    }

    /// Small files and buffers for a quick start; durability as a server has it by default.
    fn common_args(&self, dir: &Path) -> Vec<String> {
        let mut args = vec![
            "--no-defaults".to_owned(), // must come first
            format!("--datadir={}", dir.join("data").display()),
            // Servers that share /tmp remove each other's temporary tables while they are set up.
            format!("--tmpdir={}", dir.display()),
            "--skip-log-bin".to_owned(),
            "--innodb-buffer-pool-size=128M".to_owned(),
        ];
        if programs::runs_as_root(&self.program) {
            args.push("--user=root".to_owned());
        }
        args
    }
}

/// Healthy: it accepts our login, which no other server on this port would.
async fn probe(url: &str, tls: Option<&Certificates>) -> anyhow::Result<()> {
    if tls.is_some_and(|tls| !tls.are_good()) {
        return tls::listens(url).await;
    }
    let options = tls::endpoint(url, tls)?.mysql_options(&Secret::new(url))?;
    let mut connection = mysql_async::Conn::new(options).await?;
    connection.query_drop("SELECT 1").await?;
    connection.disconnect().await?;
    Ok(())
}

/// Creates the system tables, once per `dir`.
async fn initialise(dir: &Path, installed: &Installed) -> anyhow::Result<()> {
    let data = dir.join("data");
    if data.join("mysql").exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&data)?;
    let log = dir.join("initialise.log");
    let launch = if installed.is_mariadb {
        let script = ["mariadb-install-db", "mysql_install_db"]
            .into_iter()
            .find_map(find_program)
            .context("mariadb-install-db is not installed; run local/setup.sh")?;
        Launch::new("mariadb-install-db", &script, dir, &log).args(installed.common_args(dir)).args([
            "--skip-test-db",
            "--skip-name-resolve",
            "--auth-root-authentication-method=normal",
        ])
    } else {
        Launch::new("mysqld --initialize", &installed.program, dir, &log)
            .args(installed.common_args(dir))
            .arg("--initialize-insecure")
    };
    let status = launch.start()?.wait(INITIALISE_LIMIT).await?;
    ensure!(status.success(), "the system tables of MySQL could not be created; the log says why: {}", log.display());
    Ok(())
}

/// Run by the server itself before it accepts connections, at each start.
fn init_sql(password: &str) -> String {
    format!(
        "CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n\
         CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         ALTER USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::RunDir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn mysql_is_taken_before_mariadb_whatever_that_calls_itself() {
        let dir = RunDir::create("test").unwrap();
        let program = |name: &str, script: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let broken = program("broken", "exit 1");
        let mariadb = program("mysqld-of-mariadb", "echo 'mysqld  Ver 10.11.14-MariaDB for debian-linux-gnu'");
        let mysql = program("mysqld", "echo 'mysqld  Ver 9.7.4 for Linux on x86_64'");

        let taken = Installed::among(vec![broken.clone(), mariadb.clone(), mysql.clone()]).unwrap();
        assert_eq!((taken.program, taken.is_mariadb), (mysql, false));
        let taken = Installed::among(vec![broken.clone(), mariadb.clone()]).unwrap();
        assert_eq!((taken.program, taken.is_mariadb), (mariadb, true));
        assert!(Installed::among(vec![broken]).is_err());
        dir.finish(true).unwrap();
    }
}
