//! Building the functions, with Cargo's own progress on the terminal.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::servers::workspace_root;

/// The Cargo profile to build with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Quick to build.
    Dev,
    /// As deployed.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }

    /// The tests compile points into the functions at which they can be killed; what is as deployed goes without.
    fn selection(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--exclude", "tests"],
        }
    }
}

/// The programs that Cargo built, by name.
#[derive(Debug)]
pub struct Programs(HashMap<String, PathBuf>);

impl Programs {
    /// Builds all binaries of the workspace, as the Makefile does: with another selection of packages Cargo would
    /// choose other features for the dependencies and build them all again.
    pub async fn build(profile: Profile) -> anyhow::Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = tokio::process::Command::new(cargo);
        // Cargo and nextest describe the package that runs in the environment. A build script of a dependency looks at
        // it, and would build half of the workspace again.
        for (key, _) in std::env::vars_os() {
            let describes_package = |prefix| key.to_string_lossy().starts_with(prefix);
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].into_iter().any(describes_package) {
                command.env_remove(key);
            }
        }
        let output = command
            .args(["build", "--workspace", "--bins", "--profile", profile.name()])
            .args(profile.selection())
            .arg("--message-format=json-render-diagnostics")
            .current_dir(workspace_root())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot run cargo; install Rust first")?;
        ensure!(output.status.success(), "the functions do not build; see Cargo's messages above");
        let messages = String::from_utf8_lossy(&output.stdout);
        Ok(Self(messages.lines().filter_map(executable).collect()))
    }

    /// The program with this name.
    pub fn path(&self, name: &str) -> anyhow::Result<&Path> {
        self.0.get(name).map(PathBuf::as_path).with_context(|| format!("cargo built no binary {name}"))
    }
}

/// The name and path of the binary that one of Cargo's messages reports.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let name = message.pointer("/target/name")?.as_str()?;
    let path = message.get("executable")?.as_str()?;
    Some((name.to_owned(), path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_binaries_name_a_program() {
        let binary = r#"{"reason":"compiler-artifact","target":{"name":"signup"},"executable":"/target/signup"}"#;
        let library = r#"{"reason":"compiler-artifact","target":{"name":"shared"},"executable":null}"#;
        assert_eq!(executable(binary), Some(("signup".to_owned(), "/target/signup".into())));
        assert_eq!(executable(library), None);
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
