//! Clocks that are off: a small C library that is preloaded into a process of ours.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The clock of processes that were started with [`Clock::env`].
pub struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// Builds the library in `dir`, with the linker that Rust needs too. The clock is right.
    pub fn in_dir(dir: &Path) -> Self {
        let clock = Self { library: dir.join("clock.so"), offset: dir.join("clock-offset") };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/harness/clock.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.library).arg(source).status();
        assert!(built.unwrap().success(), "cc does not build {source}");
        clock.set_off(0);
        clock
    }

    /// The variables for the process.
    pub fn env(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("CLOCK_OFFSET_FILE", &self.offset)]
    }

    /// From now on the clock is off by so many seconds.
    pub fn set_off(&self, secs: i64) {
        let next = self.offset.with_extension("next");
        std::fs::write(&next, secs.to_string()).unwrap();
        std::fs::rename(next, &self.offset).unwrap();
    }
}
