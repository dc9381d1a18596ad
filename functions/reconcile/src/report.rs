//! What a run found and did, as its reply.

use std::collections::BTreeSet;

use serde::Serialize;
use shared::broker::{PublishError, Replayed};
use shared::comparison::{Comparison, ComparisonError};
use shared::domain::{ActivityId, UserId};
use shared::metrics;
use shared::reservations::ReservationsError;
use shared::store::StoreError;

use crate::{Failed, measured};

/// What a run did. A part is missing where the run was not asked for it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Nothing was changed, only looked at.
    pub dry_run: bool,
    /// Activities that were left alone, since their data has another form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
    /// What there is to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survey: Option<Step<Surveyed>>,
    /// Overdue outbox notes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<Step<Relayed>>,
    /// The same once more, for what the other steps noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_again: Option<Step<Relayed>>,
    /// How long sign-ups have been on their way. Missing where the run is for one activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underway: Option<Step<Underway>>,
    /// Activities that Redis lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<Step<Rebuilt>>,
    /// Activities compared person by person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Step<Compared>>,
    /// Activities with more holders than places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surplus: Option<Step<Vec<Surplus>>>,
    /// Activities that ended long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<Step<Archived>>,
    /// Parked messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Step<Replayed>>,
}

/// A step's report, or why it stopped.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Step<T> {
    /// It came to its end.
    Done(T),
    /// It did not. What it did before stays.
    Failed {
        /// Why.
        error: String,
    },
}

impl<T> Step<T> {
    /// The report of a step that came to its end.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(report) => Some(report),
            Self::Failed { .. } => None,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.done().is_none()
    }
}

impl<T> From<Result<T, StepError>> for Step<T> {
    fn from(outcome: Result<T, StepError>) -> Self {
        match outcome {
            Ok(report) => Self::Done(report),
            Err(error) => Self::Failed { error: error.to_string() },
        }
    }
}

/// A step stopped. The next run goes on.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// MySQL's part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Redis's part.
    #[error(transparent)]
    Reservations(#[from] ReservationsError),
    /// The broker's part.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The comparison's part.
    #[error(transparent)]
    Comparison(#[from] ComparisonError),
}

/// What the survey of all activities found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Surveyed {
    /// Activities looked at.
    pub activities: u64,
    /// Activities that Redis lost.
    pub missing: u64,
    /// Activities whose counts in Redis and MySQL cannot both be right.
    pub disagreeing: u64,
    /// Sign-ups on their way to MySQL.
    pub outbox: u64,
}

/// What came of the outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Relayed {
    /// Notes that were overdue.
    pub overdue: u64,
    /// Facts published again, and confirmed.
    pub sent: u64,
    /// Notes beside receipts of another form, which an operator has to look at.
    pub damaged: u64,
    /// The age of the oldest fact that was sent, or held back for its queue, in ms.
    pub oldest_ms: u64,
    /// Messages waiting in all queues.
    pub backlog: u32,
    /// Messages waiting in queues beyond `SIGNUP_QUEUES`, while notes are overdue.
    pub left_over: u32,
    /// Messages waiting in each queue that is there. With a backlog, overdue notes of its users wait their turn: their messages
    /// are in it.
    pub backlogs: Vec<Option<u32>>,
    /// Messages waiting for an operator.
    pub parked: Option<u32>,
    /// Queues that are not there: run `provision`. Overdue notes of their users wait until they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// Sign-ups on their way to MySQL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Underway {
    /// Activities that have some, and were looked at.
    pub activities: u64,
    /// Activities that have some, and for which no time was left.
    pub skipped: u64,
    /// How long the oldest has been on its way, in ms; a parked one is.
    pub oldest_ms: u64,
}

/// What came of lost activities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rebuilt {
    /// Those that are back.
    pub rebuilt: Vec<ActivityId>,
    /// Those that wait until the queues have run out.
    pub waiting: Vec<ActivityId>,
    /// The queues that have not, by name; also one beyond `SIGNUP_QUEUES` that holds messages.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub held_up_by: BTreeSet<String>,
}

/// What came of the comparisons.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Activities compared person by person.
    pub walked: u64,
    /// Activities that another run was comparing, or for which no time was left.
    pub skipped: u64,
    /// What was found, of those where something was.
    pub found: Vec<Comparison>,
    /// Those where both sides tell the same of everybody, and nothing moved meanwhile.
    #[serde(skip)]
    pub at_rest: BTreeSet<ActivityId>,
}

/// An activity with more holders than places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Surplus {
    /// The activity.
    pub activity_id: ActivityId,
    /// Places.
    pub capacity: u32,
    /// People who were told that they hold one.
    pub taken: u64,
    /// Those who came last and found no place in MySQL, the last first.
    pub people: Vec<SurplusPerson>,
    /// How many of them were cancelled, on the operator's word.
    pub released: u64,
}

/// Somebody who was granted a place that there is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SurplusPerson {
    /// Who.
    pub user_id: UserId,
    /// Which place.
    pub sequence: u64,
}

/// What came of activities that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Archived {
    /// Those whose sign-ups are from now on in MySQL only.
    pub archived: Vec<ActivityId>,
    /// Those that still have sign-ups on their way, or that differ.
    pub held_back: Vec<ActivityId>,
}

impl Report {
    /// Whether another step left notes for the relay.
    pub(crate) fn has_new_notes(&self) -> bool {
        let compared = self.compare.as_ref().and_then(Step::done);
        let resent = compared.is_some_and(|compared| compared.found.iter().any(|found| found.lost_in_mysql.count > 0));
        let surplus = self.surplus.as_ref().and_then(Step::done);
        resent || surplus.is_some_and(|surplus| surplus.iter().any(|surplus| surplus.released > 0))
    }

    /// Says once what an operator should know.
    pub(crate) fn log(&self) {
        if !self.dry_run {
            metrics::write(&measured::measured(self));
        }
        log_failure("survey", self.survey.as_ref());
        log_failure("relay", self.relay.as_ref());
        log_failure("relay", self.relay_again.as_ref());
        log_failure("underway", self.underway.as_ref());
        log_failure("rebuild", self.rebuild.as_ref());
        log_failure("compare", self.compare.as_ref());
        log_failure("surplus", self.surplus.as_ref());
        log_failure("archive", self.archive.as_ref());
        log_failure("replay", self.replay.as_ref());
        for queue in self.relay.iter().filter_map(Step::done).flat_map(|relayed| &relayed.missing) {
            tracing::error!(queue, "the broker has no such queue; run provision");
        }
        for found in self.compare.iter().filter_map(Step::done).flat_map(|compared| &compared.found) {
            let found = serde_json::to_string(found).unwrap_or_default();
            tracing::error!(%found, "redis and mysql told different things");
        }
        for surplus in self.surplus.iter().filter_map(Step::done).flatten() {
            let surplus = serde_json::to_string(surplus).unwrap_or_default();
            tracing::error!(%surplus, "more holders than places: raise the capacity or release the surplus");
        }
        if let Ok(report) = serde_json::to_string(self) {
            tracing::info!(%report, "reconciled");
        }
    }
}

fn log_failure<T>(step: &'static str, report: Option<&Step<T>>) {
    if let Some(Step::Failed { error }) = report {
        tracing::error!(step, error, "a step stopped; the next run goes on");
    }
}
