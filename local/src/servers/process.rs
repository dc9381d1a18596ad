//! One child process that cannot outlive us.
//!
//! Invariants: the child leads its own process group, so Ctrl-C reaches only us and we decide the order of stopping;
//! dropping a [`Process`] kills the whole group; where `setpriv` is present the kernel kills the child even when we
//! are killed ourselves.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::programs;

const POLL: Duration = Duration::from_millis(10);
const LAST_LINES: usize = 5;

/// How to start a process, kept so that it can be started again.
#[derive(Debug, Clone)]
pub struct Launch {
    name: &'static str,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    unset: Vec<&'static str>,
    cwd: PathBuf,
    log: PathBuf,
}

impl Launch {
    /// A process called `name` in messages, run in `cwd`, whose output is appended to `log`.
    #[must_use]
    pub fn new(name: &'static str, program: &Path, cwd: &Path, log: &Path) -> Self {
        Self {
            name,
            program: program.to_path_buf(),
            args: Vec::new(),
            env: Vec::new(),
            unset: Vec::new(),
            cwd: cwd.to_path_buf(),
            log: log.to_path_buf(),
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets one variable on top of the inherited environment.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Keeps inherited variables that start with `prefix` from the child.
    #[must_use]
    pub fn unset(mut self, prefix: &'static str) -> Self {
        self.unset.push(prefix);
        self
    }

    /// Starts the process.
    pub fn start(self) -> anyhow::Result<Process> {
        let child = self.spawn()?;
        Ok(Process { launch: self, child: Some(child) })
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("cannot write the log {}; check the folder's owner", self.log.display()))?;
        let mut command = match setpriv() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).args(programs::entering(&self.program)).arg(&self.program);
                command
            }
            None => programs::command(&self.program),
        };
        command.args(&self.args).current_dir(&self.cwd).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        for (key, _) in std::env::vars_os() {
            if self.unset.iter().any(|prefix| key.to_string_lossy().starts_with(prefix)) {
                command.env_remove(key);
            }
        }
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        spawn_from_lasting_thread(command)
            .with_context(|| format!("cannot start {} ({}); is it installed?", self.name, self.program.display()))
    }
}

/// A running process, or the place of one that was killed or stopped.
#[derive(Debug)]
pub struct Process {
    launch: Launch,
    child: Option<Child>,
}

impl Process {
    /// The process id; 0 once it is gone.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.launch.log
    }

    /// Whether it still runs (a paused process does).
    pub fn is_running(&mut self) -> bool {
        if self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_)))) {
            self.child = None; // its id may soon belong to somebody else
        }
        self.child.is_some()
    }

    /// Fails, pointing at the log, if the process has ended.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let (name, log) = (self.launch.name, self.log());
        bail!("{name} ended. The end of its log, {}:\n{}", log.display(), last_lines(log).join("\n"))
    }

    /// Freezes the process group (SIGSTOP).
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal_group(Signal::SIGSTOP)
    }

    /// Thaws the process group (SIGCONT).
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal_group(Signal::SIGCONT)
    }

    /// Waits for the process to end by itself.
    pub async fn wait(&mut self, limit: Duration) -> anyhow::Result<std::process::ExitStatus> {
        let deadline = Instant::now() + limit;
        while let Some(child) = self.child.as_mut() {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(status);
            }
            if Instant::now() > deadline {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{} did not end within {limit:?}; see its log: {}", self.launch.name, self.log().display())
    }

    /// Kills the process group (SIGKILL) and waits until the process is gone.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        if self.child.is_none() {
            return Ok(());
        }
        self.kill_group();
        self.wait(Duration::from_secs(10)).await.map(|_| ())
    }

    /// Asks the process to end (SIGTERM), and kills what is left after `limit`.
    pub async fn stop(&mut self, limit: Duration) -> anyhow::Result<()> {
        if self.is_running() {
            let pid = self.raw_pid()?;
            let _ = self.resume();
            let _ = kill(pid, Signal::SIGTERM);
            if self.wait(limit).await.is_ok() {
                let _ = killpg(pid, Signal::SIGKILL); // stragglers of the group
                return Ok(());
            }
        }
        self.kill().await
    }

    /// Starts it again, after [`Process::kill`] or [`Process::stop`].
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        if self.is_running() {
            bail!("{} still runs; kill or stop it before starting it again", self.launch.name);
        }
        self.child = Some(self.launch.spawn()?);
        Ok(())
    }

    fn signal_group(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.raw_pid()?;
        killpg(pid, signal).with_context(|| format!("cannot send {signal} to {} (pid {pid})", self.launch.name))
    }

    fn raw_pid(&self) -> anyhow::Result<Pid> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.launch.name))?;
        Ok(Pid::from_raw(i32::try_from(child.id())?))
    }

    fn kill_group(&mut self) {
        if let Ok(pid) = self.raw_pid() {
            let _ = killpg(pid, Signal::SIGKILL);
        }
        if let Some(child) = self.child.as_mut() {
            let _ = child.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
        if let Some(child) = self.child.as_mut() {
            let _ = child.wait();
        }
    }
}

/// Finds a program on the PATH or where Debian keeps servers, which a normal user's PATH leaves out.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    program_dirs().into_iter().map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Where [`find_program`] looks.
pub fn program_dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/libexec"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).collect()
}

/// The last few lines that are not blank.
fn last_lines(log: &Path) -> Vec<String> {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines.iter().skip(lines.len().saturating_sub(LAST_LINES)).map(|line| format!("  {line}")).collect()
}

fn setpriv() -> Option<&'static Path> {
    static SETPRIV: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let program = find_program("setpriv")?;
        let help = Command::new(&program).arg("--help").output().ok()?;
        String::from_utf8_lossy(&help.stdout).contains("--pdeathsig").then_some(program)
    });
    SETPRIV.as_deref()
}

/// Spawns from a thread that lives as long as we do: the parent-death signal is sent when the spawning *thread* ends,
/// and a runtime's worker may end long before the process.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Request = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in requests {
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, child) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    SPAWNER.send((command, reply)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
