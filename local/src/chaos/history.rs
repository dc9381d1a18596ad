//! Every request and its reply, in memory for the check and as a line of a file for people.
//!
//! Invariant: a person waits for the answer about one activity before asking about it again, so that the entries of a
//! person and an activity are in the order in which they happened.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use shared::domain::{ActivityId, UserId};

/// Milliseconds since the first request.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time on it.
    #[must_use]
    pub fn ms(self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A person and an activity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Pair {
    /// The activity.
    pub activity: ActivityId,
    /// The person.
    pub user: UserId,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A place.
    SignUp,
    /// To give the place back.
    Cancel,
    /// The receipt.
    Look,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// A place, now.
    Granted {
        /// Which.
        sequence: u64,
    },
    /// A receipt for a place that the person holds.
    Held {
        /// Which.
        sequence: u64,
        /// MySQL may not know it yet.
        queued: bool,
    },
    /// The place was given back, now.
    Cancelled {
        /// Which.
        sequence: u64,
    },
    /// A receipt for a place that was given back.
    WasCancelled {
        /// Which.
        sequence: u64,
    },
    /// No place is left.
    SoldOut,
    /// The person never had a place.
    NotSignedUp,
    /// No reply, or one that leaves open what happened.
    Unknown {
        /// In words.
        why: String,
    },
    /// A reply that the API does not have; what happened is open.
    Strange {
        /// In words.
        what: String,
    },
}

impl Outcome {
    /// Whether it leaves open what happened.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Strange { .. })
    }
}

/// One request and its reply.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When it was sent.
    pub began_ms: u64,
    /// How long until the reply, or until we gave up.
    pub took_ms: f64,
    /// Who asked about which activity.
    #[serde(flatten)]
    pub pair: Pair,
    /// For what.
    pub operation: Operation,
    /// The status of the reply, if there was one.
    pub status: Option<u16>,
    /// What came back.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Entry {
    /// When the reply was there; rounded up, so that nothing seems earlier than it was.
    #[must_use]
    pub fn ended_ms(&self) -> u64 {
        self.began_ms + self.took_ms.ceil() as u64
    }
}

/// An activity was created, or given more places; noted when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Places {
    /// When it was asked for.
    pub began_ms: u64,
    /// The activity.
    pub activity: ActivityId,
    /// How many places it may have from now on.
    pub capacity: u64,
}

/// Everything that was asked and answered.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The requests of people.
    pub entries: Vec<Entry>,
    /// The places that there were.
    pub places: Vec<Places>,
}

/// Writes the history down while it happens.
#[derive(Debug)]
pub struct Recorder(Mutex<Recorded>);

#[derive(Debug)]
struct Recorded {
    history: History,
    file: BufWriter<File>,
    problem: Option<std::io::Error>,
}

impl Recorder {
    /// Begins a new history in this file.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        let file = BufWriter::new(file);
        Ok(Self(Mutex::new(Recorded { history: History::default(), file, problem: None })))
    }

    /// Adds a request and its reply.
    pub fn note(&self, entry: Entry) {
        let mut recorded = self.lock();
        recorded.write(&entry);
        recorded.history.entries.push(entry);
    }

    /// Adds places.
    pub fn note_places(&self, places: Places) {
        let mut recorded = self.lock();
        recorded.write(&places);
        recorded.history.places.push(places);
    }

    /// How many requests there are, and those from `from` on as `read` sees them.
    pub fn since<T>(&self, from: usize, read: impl Fn(&Entry) -> T) -> (usize, Vec<T>) {
        let recorded = self.lock();
        let entries = &recorded.history.entries;
        (entries.len(), entries.iter().skip(from).map(read).collect())
    }

    /// Finishes the file and gives the history.
    pub fn finish(&self) -> anyhow::Result<History> {
        let mut recorded = self.lock();
        if let Some(problem) = recorded.problem.take() {
            return Err(problem).context("writing the history");
        }
        recorded.file.flush().context("writing the history")?;
        Ok(std::mem::take(&mut recorded.history))
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorded {
    /// A full disk must not stop the people; it is told at the end.
    fn write(&mut self, line: &impl Serialize) {
        let written = serde_json::to_writer(&mut self.file, line).map_err(std::io::Error::from);
        if let Err(problem) = written.and_then(|()| self.file.write_all(b"\n")) {
            self.problem.get_or_insert(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_flat_line() {
        let entry = Entry {
            began_ms: 12,
            took_ms: 3.25,
            pair: Pair { activity: ActivityId::new(42), user: "alice".parse().unwrap() },
            operation: Operation::SignUp,
            status: Some(202),
            outcome: Outcome::Granted { sequence: 57 },
        };
        assert_eq!(entry.ended_ms(), 16);
        let path = std::env::temp_dir().join(format!("onrush-history-{}", std::process::id()));
        let recorder = Recorder::create(&path).unwrap();
        recorder.note(entry.clone());
        assert_eq!(recorder.since(0, Entry::ended_ms), (1, vec![16]));
        assert_eq!(recorder.since(1, Entry::ended_ms), (1, vec![]));
        assert_eq!(recorder.finish().unwrap().entries, [entry]);
        let line = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(
            line,
            r#"{"beganMs":12,"tookMs":3.25,"activity":"42","user":"alice","operation":"sign-up","status":202,"#
                .to_owned()
                + r#""outcome":"granted","sequence":57}"#
                + "\n"
        );
    }
}
