//! Who gets in: decides, without I/O, which facts of a batch may be written.

use std::collections::{BTreeMap, HashMap};

use crate::domain::{Signup, SignupStatus, Version};

/// An activity as the transaction has locked it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) capacity: u32,
    pub(super) active: u32,
}

/// A row as the transaction has locked it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) status: SignupStatus,
    pub(super) version: Version,
}

/// What is known before the decision.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By activity id. An activity that MySQL does not know has no guard.
    pub(super) rooms: HashMap<u64, Room>,
    /// By activity id and user id.
    pub(super) held: HashMap<(u64, String), Held>,
}

/// What to do.
#[derive(Debug, Default)]
pub(super) struct Admission<'a> {
    /// Facts to write.
    pub(super) writes: Vec<&'a Signup>,
    /// Facts that MySQL has already, or newer ones: with the version that it has.
    pub(super) stale: Vec<(&'a Signup, Version)>,
    /// Sign-ups for which there is no room.
    pub(super) surplus: Vec<&'a Signup>,
    /// The new counts, of the activities whose count changes.
    pub(super) active: BTreeMap<u64, u32>,
}

/// Cancellations first, since they make room; then sign-ups, in the order in which they were granted, as long as they
/// fit. `rows` hold one fact for each user and activity.
pub(super) fn admit<'a>(rows: &'a [Signup], known: &Known) -> Admission<'a> {
    let mut admission = Admission::default();
    let mut rooms = known.rooms.clone();
    let mut signups = Vec::new();
    for row in rows {
        let held = known.held.get(&(row.activity_id.get(), row.user_id.as_str().to_owned()));
        let holds_a_place = held.is_some_and(|held| held.status == SignupStatus::SignedUp);
        match held {
            Some(held) if held.version >= row.version => admission.stale.push((row, held.version)),
            _ if row.status == SignupStatus::SignedUp && !holds_a_place => signups.push(row),
            _ => {
                if row.status == SignupStatus::Cancelled && holds_a_place {
                    rooms.entry(row.activity_id.get()).and_modify(|room| room.active = room.active.saturating_sub(1));
                }
                admission.writes.push(row);
            }
        }
    }
    signups.sort_by_key(|row| (row.activity_id, row.sequence, row.version));
    for row in signups {
        match rooms.get_mut(&row.activity_id.get()) {
            Some(room) if room.active >= room.capacity => admission.surplus.push(row),
            Some(room) => {
                room.active += 1;
                admission.writes.push(row);
            }
            None => admission.writes.push(row),
        }
    }
    // Rows are written in the order of the primary key, as every writer does.
    admission.writes.sort_by(|a, b| (a.activity_id, &a.user_id).cmp(&(b.activity_id, &b.user_id)));
    let changed =
        rooms.into_iter().filter(|(id, room)| known.rooms.get(id).is_some_and(|old| old.active != room.active));
    admission.active = changed.map(|(id, room)| (id, room.active)).collect();
    admission
}

#[cfg(test)]
mod tests {
    use super::*;
    use SignupStatus::{Cancelled, SignedUp};

    fn fact(user: &str, status: SignupStatus, version: u64) -> Signup {
        Signup {
            activity_id: "42".parse().unwrap(),
            user_id: user.parse().unwrap(),
            version: Version::new(version).unwrap(),
            sequence: version,
            status,
            signed_up_at: crate::domain::Timestamp::from_ms(version).unwrap(),
        }
    }

    fn known(capacity: u32, active: u32, held: &[(&str, SignupStatus, u64)]) -> Known {
        let held = held.iter().map(|(user, status, version)| {
            ((42, (*user).to_owned()), Held { status: *status, version: Version::new(*version).unwrap() })
        });
        Known { rooms: [(42, Room { capacity, active })].into(), held: held.collect() }
    }

    fn users<'a>(rows: impl IntoIterator<Item = &'a &'a Signup>) -> Vec<&'a str> {
        rows.into_iter().map(|row| row.user_id.as_str()).collect()
    }

    #[test]
    fn a_cancellation_makes_room_for_a_sign_up_of_the_same_batch() {
        let rows = [fact("ann", SignedUp, 5), fact("bob", Cancelled, 6)];
        let admission = admit(&rows, &known(1, 1, &[("bob", SignedUp, 1)]));
        assert_eq!(users(&admission.writes), ["ann", "bob"]);
        assert!(admission.active.is_empty(), "one left, one came: {:?}", admission.active);
    }

    #[test]
    fn sign_ups_beyond_the_capacity_stay_out_and_the_first_granted_get_in() {
        let rows = [fact("ann", SignedUp, 9), fact("bob", SignedUp, 7), fact("cid", SignedUp, 8)];
        let admission = admit(&rows, &known(2, 0, &[]));
        assert_eq!(users(&admission.writes), ["bob", "cid"]);
        assert_eq!(users(&admission.surplus), ["ann"]);
        assert_eq!(admission.active, [(42, 2)].into());
    }

    #[test]
    fn an_older_or_equal_fact_is_stale_and_changes_nothing() {
        let rows = [fact("ann", SignedUp, 5), fact("bob", Cancelled, 5)];
        let admission = admit(&rows, &known(9, 1, &[("ann", Cancelled, 6), ("bob", SignedUp, 5)]));
        assert!(admission.writes.is_empty() && admission.active.is_empty());
        let versions: Vec<_> = admission.stale.iter().map(|(_, version)| version.get()).collect();
        assert_eq!(versions, [6, 5]);
    }

    #[test]
    fn a_newer_sign_up_of_a_holder_takes_no_second_place() {
        let rows = [fact("ann", SignedUp, 5)];
        let admission = admit(&rows, &known(1, 1, &[("ann", SignedUp, 3)]));
        assert_eq!(users(&admission.writes), ["ann"]);
        assert!(admission.surplus.is_empty() && admission.active.is_empty());
    }

    #[test]
    fn a_cancellation_of_somebody_unknown_frees_nothing() {
        let rows = [fact("ann", Cancelled, 5), fact("bob", Cancelled, 5)];
        let admission = admit(&rows, &known(5, 3, &[("bob", Cancelled, 4)]));
        assert_eq!(users(&admission.writes), ["ann", "bob"]);
        assert!(admission.active.is_empty());
    }

    #[test]
    fn an_activity_that_mysql_does_not_know_has_no_guard() {
        let rows = [fact("ann", SignedUp, 5)];
        let admission = admit(&rows, &Known::default());
        assert_eq!(users(&admission.writes), ["ann"]);
        assert!(admission.active.is_empty());
    }
}
