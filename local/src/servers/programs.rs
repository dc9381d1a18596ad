//! Which servers there are: `ONRUSH_SERVERS` says it, for every command and test alike.
//!
//! The modern programs lie in a tree that `local/setup.sh` makes: `usr` and `etc` of a newer system. Each runs in
//! a mount namespace of its own, in which the tree's `usr` lies over ours; all else, its folder and `/proc` included, is
//! where it always is. Invariants: what leads into the namespace becomes the server, so process id, process group and
//! signals are the server's; the mounts are seen by nobody else and end with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::process::program_dirs;
use super::run_dir::workspace_root;

const SETTING: &str = "ONRUSH_SERVERS";

/// Replaces `usr`, and what `usr` refers to in `etc`, then becomes the program.
const ENTER: &str = r#"mount --bind "$0/etc/alternatives" /etc/alternatives
mount --bind "$0/etc/ld.so.cache" /etc/ld.so.cache
mount --bind "$0/usr" /usr
exec "$@""#;

/// Where the servers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Private ones of the programs that are installed.
    #[default]
    Installed,
    /// Private ones of the newest programs, from the tree.
    Modern,
    /// Those that run at `REDIS_URL`, `AMQP_URL` and `MYSQL_URL`. Private ones beside them are as installed.
    Given,
}

impl Choice {
    /// What the environment says.
    pub fn from_env() -> anyhow::Result<Self> {
        Self::of(std::env::var(SETTING).ok().as_deref())
    }

    /// What a stack of these servers starts, in words.
    #[must_use]
    pub fn starts(self) -> &'static str {
        match self {
            Self::Installed | Self::Modern => "Redis, RabbitMQ, MySQL and the functions",
            Self::Given => "the functions, on the servers that were given",
        }
    }

    fn of(value: Option<&str>) -> anyhow::Result<Self> {
        match value {
            None | Some("" | "installed") => Ok(Self::Installed),
            Some("modern") => Ok(Self::Modern),
            Some("given") => Ok(Self::Given),
            Some(other) => bail!("{SETTING} is {other:?}; it may be installed, modern or given"),
        }
    }
}

/// The first of these programs among those that were chosen; `what` names it in messages.
pub fn find(what: &str, names: &[&str]) -> anyhow::Result<PathBuf> {
    find_all(what, names).map(|mut found| found.swap_remove(0))
}

/// All of these programs among those that were chosen, at least one.
pub fn find_all(what: &str, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let modern = Choice::from_env()? == Choice::Modern;
    // Debian's wrapper of RabbitMQ on the PATH changes to the user `rabbitmq`; the script behind it does not.
    let dirs = if modern {
        ["usr/lib/rabbitmq/bin", "usr/bin", "usr/sbin"].map(|dir| tree().join(dir)).to_vec()
    } else {
        [PathBuf::from("/usr/lib/rabbitmq/bin")].into_iter().chain(program_dirs()).collect()
    };
    let files = names.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    let found: Vec<_> = files.filter(|file| file.is_file()).collect();
    if modern {
        ensure!(!found.is_empty(), "{what} is not in {}; run ONRUSH_SERVERS=modern local/setup.sh", tree().display());
        can_enter()?;
    }
    ensure!(!found.is_empty(), "{what} is not installed; run local/setup.sh");
    Ok(found)
}

/// A command that runs a program that [`find`] found.
pub fn command(program: &Path) -> Command {
    let mut words = entering(program).into_iter().chain([program.into()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// What to write before a program: nothing, or what leads into the tree that it lies in.
pub fn entering(program: &Path) -> Vec<OsString> {
    let tree = tree();
    if !program.starts_with(&tree) {
        return Vec::new();
    }
    let unshare: &[_] =
        if nix::unistd::geteuid().is_root() { &["--mount"] } else { &["--user", "--map-root-user", "--mount"] };
    let mut words: Vec<_> = ["unshare"].iter().chain(unshare).map(OsString::from).collect();
    words.extend(["--", "sh", "-e", "-c", ENTER].map(OsString::from));
    words.push(tree.into());
    words
}

/// Whether the program takes itself for root.
pub fn runs_as_root(program: &Path) -> bool {
    nix::unistd::geteuid().is_root() || program.starts_with(tree())
}

/// Where the modern programs are.
fn tree() -> PathBuf {
    match std::env::var_os("ONRUSH_MODERN_DIR") {
        Some(dir) if !dir.is_empty() => workspace_root().join(dir),
        _ => workspace_root().join("target/modern"),
    }
}

/// Fails, with the way out, where this machine lets us have no mounts of our own.
fn can_enter() -> anyhow::Result<()> {
    for dir in [workspace_root(), &tree()] {
        ensure!(!dir.starts_with("/usr"), "{} lies under /usr, which modern servers replace; move it", dir.display());
    }
    let entered = command(&tree().join("usr/bin/true")).output().context("unshare (util-linux) is not installed")?;
    let said = String::from_utf8_lossy(&entered.stderr);
    ensure!(
        entered.status.success(),
        "modern servers need mounts of their own, which this machine does not allow ({}); run as root, or allow \
         unprivileged user namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)",
        said.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_installed_ones_unless_the_setting_says_another_known_word() {
        for (value, choice) in [
            (None, Choice::Installed),
            (Some(""), Choice::Installed),
            (Some("installed"), Choice::Installed),
            (Some("modern"), Choice::Modern),
            (Some("given"), Choice::Given),
        ] {
            assert_eq!(Choice::of(value).unwrap(), choice, "{value:?}");
        }
        let error = Choice::of(Some("newest")).unwrap_err();
        assert_eq!(error.to_string(), r#"ONRUSH_SERVERS is "newest"; it may be installed, modern or given"#);
    }

    #[test]
    fn only_programs_of_the_tree_are_led_into_it() {
        assert!(entering(Path::new("/usr/bin/redis-server")).is_empty());
        let words = entering(&tree().join("usr/bin/valkey-server"));
        assert_eq!(words.first().unwrap(), "unshare");
        assert_eq!(words.last().unwrap(), tree().as_os_str());
    }
}
