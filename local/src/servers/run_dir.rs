//! The folder of one run: `target/local/PURPOSE-TIME-PID-COUNT`, with the data and logs of its servers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// The folder of one run. Nothing removes it but [`RunDir::finish`].
#[derive(Debug)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Creates a folder that no other run has.
    pub fn create(purpose: &str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S");
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let parent = workspace_root().join("target/local");
        let dir = parent.join(format!("{purpose}-{now}-{pid}-{count}"));
        std::fs::create_dir_all(&parent)
            .and_then(|()| std::fs::create_dir(&dir))
            .with_context(|| format!("cannot create {}; check who owns `target`", dir.display()))?;
        Ok(Self(dir))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Removes it after a success. After a failure the logs stay, and the path to them is returned.
    pub fn finish(self, success: bool) -> anyhow::Result<Option<PathBuf>> {
        if success {
            std::fs::remove_dir_all(&self.0)?;
            return Ok(None);
        }
        keep_logs(&self.0)?;
        Ok(Some(self.0))
    }
}

/// The folder with the workspace's Cargo.toml.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Removes what is not a log or a folder of logs.
fn keep_logs(dir: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if path.is_dir() {
            keep_logs(&path)?;
            let _ = std::fs::remove_dir(&path); // refused, as it should be, unless it is empty
        } else if !is_log {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_run_keeps_its_logs_and_a_good_one_leaves_nothing() {
        for success in [true, false] {
            let run = RunDir::create("test").unwrap();
            let dir = run.path().to_path_buf();
            std::fs::create_dir_all(dir.join("mysql/data")).unwrap();
            std::fs::write(dir.join("mysql/data/rows"), "1").unwrap();
            std::fs::write(dir.join("mysql/mysql.log"), "ready").unwrap();
            let kept = run.finish(success).unwrap();
            assert_eq!(kept, (!success).then(|| dir.clone()));
            assert_eq!(dir.join("mysql/mysql.log").exists(), !success);
            assert!(!dir.join("mysql/data").exists());
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
