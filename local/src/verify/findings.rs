//! What a check found: numbers of each activity, and every broken promise by name.

use serde::Serialize;
use shared::domain::{ActivityId, UserId};

/// How many of a kind are named; the others are counted.
pub const NAMED: usize = 20;

/// Things of one kind: how many there are, and the first [`NAMED`] of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Named<T> {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub first: Vec<T>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> Named<T> {
    /// Adds one.
    pub fn note(&mut self, thing: T) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(thing);
        }
    }
}

/// Everything that was found. Fine if every list is empty and nothing waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// The numbers of each activity.
    pub activities: Vec<Standing>,
    /// People who hold a granted receipt and have no active row.
    pub lost: Named<Place>,
    /// People who have an active row and were granted nothing.
    pub unexpected: Named<Place>,
    /// People of whom Redis, MySQL or a receipt tell different things.
    pub differing: Named<Place>,
    /// People with two different granted receipts, or two rows.
    pub twice: Named<Twice>,
    /// Places held by several people.
    pub shared_places: Named<SharedPlace>,
    /// Activities with more people than places.
    pub oversold: Named<Oversold>,
    /// Kept counts that differ from what was counted.
    pub miscounted: Named<Miscounted>,
    /// Activities that only one of Redis and MySQL knows.
    pub missing: Named<Missing>,
    /// Receipts and rows that cannot be read.
    pub malformed: Named<Malformed>,
    /// Outbox notes: sign-ups that MySQL is not known to hold.
    pub outbox: Named<Note>,
    /// Messages in the queue.
    pub queued: u64,
    /// Messages in the parked queue.
    pub parked: u64,
}

/// The numbers of one activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// The activity.
    pub activity_id: ActivityId,
    /// Places, as Redis has it, or MySQL where Redis has none.
    pub capacity: Option<u64>,
    /// Places taken, as Redis counts them; none if the activity is not in Redis.
    pub taken: Option<u64>,
    /// Receipts in Redis that grant a place.
    pub receipts: u64,
    /// Rows in MySQL with status 1.
    pub rows: u64,
    /// Outbox notes.
    pub outbox: u64,
    /// Ended, and its receipts gone from Redis: only MySQL was checked.
    pub archived: bool,
}

/// One person in one activity, as each part has it: `status version sequence [signed_up_at_ms]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The activity.
    pub activity_id: ActivityId,
    /// The person.
    pub user_id: UserId,
    /// The receipt in Redis.
    pub redis: Option<String>,
    /// The row in MySQL.
    pub mysql: Option<String>,
    /// The sequence of the receipt that the person was handed, where that is what differs.
    pub handed_out: Option<u64>,
}

/// A person with more than one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Twice {
    /// The activity.
    pub activity_id: ActivityId,
    /// The person.
    pub user_id: UserId,
    /// The places.
    pub sequences: Vec<u64>,
}

/// A place with more than one person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedPlace {
    /// The activity.
    pub activity_id: ActivityId,
    /// The place.
    pub sequence: u64,
    /// The first people who hold it.
    pub users: String,
}

/// An activity with more people than places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Oversold {
    /// The activity.
    pub activity_id: ActivityId,
    /// What counts too many.
    pub counted: &'static str,
    /// Places.
    pub capacity: u64,
    /// People.
    pub held: u64,
}

impl Oversold {
    /// People without a place of their own.
    pub fn surplus(&self) -> u64 {
        self.held.saturating_sub(self.capacity)
    }
}

/// A kept count that differs from what was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Miscounted {
    /// The activity.
    pub activity_id: ActivityId,
    /// Which count.
    pub count: &'static str,
    /// What it says.
    pub kept: u64,
    /// What it should say.
    pub counted: u64,
}

/// An activity that one part does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// The activity.
    pub activity_id: ActivityId,
    /// The part that does not know it.
    pub from: &'static str,
}

/// A receipt or a row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Malformed {
    /// The activity.
    pub activity_id: ActivityId,
    /// Where it is.
    pub within: &'static str,
    /// The person, as far as it can be told.
    pub user: String,
    /// What was found.
    pub text: String,
}

/// An outbox note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The activity.
    pub activity_id: ActivityId,
    /// The person.
    pub user: String,
    /// When the relay may pick it up.
    pub due_at_ms: u64,
}

impl Findings {
    /// Nothing is broken and nothing waits.
    pub fn is_clean(&self) -> bool {
        self.counts().iter().all(|(_, count)| *count == 0)
    }

    /// Each kind of finding, in words, with its count.
    pub fn counts(&self) -> [(&'static str, u64); 12] {
        [
            ("lost: granted, but no active row", self.lost.count),
            ("unexpected: an active row, but not granted", self.unexpected.count),
            ("differing: not the same in Redis, MySQL and receipt", self.differing.count),
            ("twice: one person, two places", self.twice.count),
            ("shared: one place, two people", self.shared_places.count),
            ("oversold: more people than places", self.oversold.count),
            ("miscounted: a kept count is wrong", self.miscounted.count),
            ("missing: an activity that one part does not know", self.missing.count),
            ("malformed: a receipt or row that cannot be read", self.malformed.count),
            ("outbox: sign-ups on their way to MySQL", self.outbox.count),
            ("queued: messages in the queue", self.queued),
            ("parked: messages given up", self.parked),
        ]
    }

    /// Rows with status 1, over all activities.
    pub fn rows(&self) -> u64 {
        self.activities.iter().map(|standing| standing.rows).sum()
    }

    /// The greatest surplus of an activity.
    pub fn surplus(&self) -> u64 {
        self.oversold.first.iter().map(Oversold::surplus).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_twenty_are_named_and_all_are_counted() {
        let mut named = Named::default();
        (0..25).for_each(|number| named.note(number));
        assert_eq!((named.count, named.first), (25, (0..20).collect::<Vec<_>>()));
    }

    #[test]
    fn any_single_finding_spoils_the_whole() {
        let activity_id = ActivityId::new(42);
        let spoilt: [fn(&mut Findings, ActivityId); 5] = [
            |findings, _| findings.parked = 1,
            |findings, _| findings.queued = 1,
            |findings, activity_id| findings.outbox.note(Note { activity_id, user: "alice".into(), due_at_ms: 1 }),
            |findings, activity_id| findings.missing.note(Missing { activity_id, from: "Redis" }),
            |findings, activity_id| {
                findings.oversold.note(Oversold { activity_id, counted: "rows", capacity: 1, held: 2 });
            },
        ];
        assert!(Findings::default().is_clean());
        for spoil in spoilt {
            let mut findings = Findings::default();
            spoil(&mut findings, activity_id);
            assert!(!findings.is_clean(), "{findings:?}");
        }
    }

    #[test]
    fn every_list_of_findings_counts_against_the_whole() {
        let findings = Findings { queued: 1, parked: 1, ..Findings::default() };
        let lists = serde_json::to_value(&findings).unwrap();
        let lists = lists.as_object().unwrap().keys().filter(|name| *name != "activities").count();
        assert_eq!(lists, findings.counts().len());
    }
}
