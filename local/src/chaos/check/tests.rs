//! Each verdict is provoked by a history written by hand, and each near miss is shown to be none.

use std::collections::BTreeMap;

use shared::domain::{SignupStatus, Timestamp, Version};

use super::super::history::Places;
use super::story::HORIZON_MS;
use super::*;

const CAPACITY: u64 = 2;

/// A request, as (when it was sent, who, what, what came back). Each takes 10 ms.
type Line<'a> = (u64, &'a str, Operation, Outcome);

fn pair(user: &str) -> Pair {
    Pair { activity: ActivityId::new(1), user: user.parse().unwrap() }
}

fn entry((began_ms, user, operation, outcome): Line<'_>) -> Entry {
    let status = match outcome {
        Outcome::Granted { .. } | Outcome::Cancelled { .. } => Some(202),
        Outcome::Held { .. } | Outcome::WasCancelled { .. } => Some(200),
        Outcome::SoldOut => Some(409),
        Outcome::NotSignedUp => Some(404),
        Outcome::Unknown { .. } | Outcome::Strange { .. } => None,
    };
    Entry { began_ms, took_ms: 10.0, pair: pair(user), operation, status, outcome }
}

fn granted(at_ms: u64, user: &str, sequence: u64) -> Line<'_> {
    (at_ms, user, Operation::SignUp, Outcome::Granted { sequence })
}

fn cancelled(at_ms: u64, user: &str, sequence: u64) -> Line<'_> {
    (at_ms, user, Operation::Cancel, Outcome::Cancelled { sequence })
}

fn open(at_ms: u64, user: &str, operation: Operation) -> Line<'_> {
    (at_ms, user, operation, Outcome::Unknown { why: "no reply in time".into() })
}

fn looked(at_ms: u64, user: &str, sequence: u64) -> Line<'_> {
    (at_ms, user, Operation::Look, Outcome::Held { sequence, queued: false })
}

fn sold_out(at_ms: u64, user: &str) -> Line<'_> {
    (at_ms, user, Operation::SignUp, Outcome::SoldOut)
}

/// What MySQL and Redis both hold: a place of 1 and above is held, one below 0 was given back.
fn held(people: &[(&str, i64)]) -> [Held; 2] {
    let stored = |sequence: i64| StoredReceipt {
        status: if sequence > 0 { SignupStatus::SignedUp } else { SignupStatus::Cancelled },
        version: Version::new(1_000).unwrap(),
        sequence: sequence.unsigned_abs(),
        signed_up_at: Timestamp::from_ms(1_000).unwrap(),
    };
    let people: BTreeMap<_, _> = people.iter().map(|(user, sequence)| (pair(user), stored(*sequence))).collect();
    let capacities = BTreeMap::from([(ActivityId::new(1), CAPACITY)]);
    ["MySQL", "Redis"].map(|by| Held { by, people: people.clone(), capacities: capacities.clone() })
}

fn verdict(lines: Vec<Line<'_>>, people: &[(&str, i64)]) -> Verdict {
    let places = vec![Places { began_ms: 0, activity: ActivityId::new(1), capacity: CAPACITY }];
    check(&History { entries: lines.into_iter().map(entry).collect(), places }, &held(people))
}

/// (lost, twice, oversold, unexpected)
fn flaws(lines: Vec<Line<'_>>, people: &[(&str, i64)]) -> (u64, u64, u64, u64) {
    let verdict = verdict(lines, people);
    (verdict.lost.count, verdict.twice.count, verdict.oversold.count, verdict.unexpected.count)
}

const CLEAN: (u64, u64, u64, u64) = (0, 0, 0, 0);
const LOST: (u64, u64, u64, u64) = (1, 0, 0, 0);
const TWICE: (u64, u64, u64, u64) = (0, 1, 0, 0);
const OVERSOLD: (u64, u64, u64, u64) = (0, 0, 1, 0);
const UNEXPECTED: (u64, u64, u64, u64) = (0, 0, 0, 1);

#[test]
fn a_history_in_which_everything_arrived_is_clean() {
    let lines = vec![
        granted(0, "alice", 1),
        granted(0, "bob", 2),
        sold_out(20, "carol"),
        cancelled(40, "alice", 1),
        granted(60, "carol", 3),
        looked(80, "carol", 3),
        (90, "dave", Operation::Cancel, Outcome::NotSignedUp),
    ];
    let verdict = verdict(lines, &[("alice", -1), ("bob", 2), ("carol", 3)]);
    assert_eq!((verdict.attempted, verdict.acknowledged, verdict.ambiguous, verdict.recovered), (6, 4, 0, 0));
    assert!(verdict.kinds().iter().all(|(_, found)| found.count == 0), "{verdict:?}");
}

#[test]
fn a_granted_place_without_its_row_is_lost() {
    assert_eq!(flaws(vec![granted(0, "alice", 1)], &[]), LOST);
    assert_eq!(flaws(vec![granted(0, "alice", 1)], &[("alice", -1)]), LOST);
}

#[test]
fn a_place_that_only_one_of_mysql_and_redis_forgot_is_lost() {
    for forgetful in 0..2 {
        let mut held = held(&[("alice", 1)]);
        held[forgetful].people.clear();
        let history = History { entries: vec![entry(granted(0, "alice", 1))], places: Vec::new() };
        let verdict = check(&history, &held);
        assert_eq!(verdict.lost.count, 1, "{}", held[forgetful].by);
        assert!(verdict.lost.first[0].what.starts_with(held[forgetful].by), "{:?}", verdict.lost.first);
    }
}

#[test]
fn a_row_that_stayed_at_an_earlier_place_lost_the_later_one() {
    let again = vec![granted(0, "alice", 1), cancelled(20, "alice", 1), granted(40, "alice", 2)];
    assert_eq!(flaws(again.clone(), &[("alice", 2)]), CLEAN);
    assert_eq!(flaws(again.clone(), &[("alice", 1)]), LOST);
    assert_eq!(flaws(again, &[("alice", -1)]), LOST);
}

#[test]
fn a_granted_place_of_which_a_later_reply_knows_nothing_is_lost() {
    for (operation, outcome) in [
        (Operation::SignUp, Outcome::SoldOut),
        (Operation::Look, Outcome::NotSignedUp),
        (Operation::Look, Outcome::WasCancelled { sequence: 1 }),
        (Operation::Cancel, Outcome::NotSignedUp),
    ] {
        let lines = vec![granted(0, "alice", 1), (20, "alice", operation, outcome.clone())];
        assert_eq!(verdict(lines, &[]).lost.count, 1, "{operation:?} {outcome:?}");
    }
}

#[test]
fn a_cancelled_place_needs_its_row_too() {
    let lines = vec![granted(0, "alice", 1), cancelled(20, "alice", 1)];
    assert_eq!(flaws(lines.clone(), &[("alice", -1)]), CLEAN);
    assert_eq!(flaws(lines, &[]), LOST);
}

#[test]
fn a_place_that_was_given_back_and_is_held_in_the_end_is_unexpected() {
    assert_eq!(flaws(vec![granted(0, "alice", 1), cancelled(20, "alice", 1)], &[("alice", 1)]), UNEXPECTED);
}

#[test]
fn a_row_of_somebody_who_never_asked_or_was_refused_is_unexpected() {
    assert_eq!(flaws(vec![], &[("mallory", 1)]), UNEXPECTED);
    assert_eq!(flaws(vec![], &[("mallory", -1)]), UNEXPECTED);
    assert_eq!(flaws(vec![sold_out(0, "alice")], &[("alice", 1)]), UNEXPECTED);
}

#[test]
fn a_receipt_that_nobody_granted_is_unexpected_also_when_it_is_gone_in_the_end() {
    assert_eq!(verdict(vec![looked(0, "alice", 1)], &[("alice", 1)]).unexpected.count, 1);
    let back = vec![granted(0, "alice", 1), cancelled(20, "alice", 1), looked(40, "alice", 1)];
    assert_eq!(verdict(back, &[("alice", -1)]).unexpected.count, 1);
}

#[test]
fn a_person_with_two_live_receipts_has_a_place_twice() {
    assert_eq!(flaws(vec![granted(0, "alice", 1), granted(20, "alice", 2)], &[("alice", 2)]), TWICE);
    assert_eq!(flaws(vec![granted(0, "alice", 1), looked(20, "alice", 2)], &[("alice", 2)]), TWICE);
    assert_eq!(flaws(vec![granted(0, "alice", 1)], &[("alice", 2)]), TWICE);
}

#[test]
fn a_place_that_is_granted_again_after_it_was_given_back_is_unexpected() {
    let lines = vec![granted(0, "alice", 1), cancelled(20, "alice", 1), granted(40, "alice", 1)];
    assert_eq!(flaws(lines, &[("alice", 1)]), UNEXPECTED);
}

#[test]
fn a_place_with_two_people_is_twice_in_replies_and_in_rows() {
    assert_eq!(flaws(vec![granted(0, "alice", 1), granted(20, "bob", 1)], &[("alice", 1), ("bob", 1)]), TWICE);
    let lines = vec![granted(0, "alice", 1), cancelled(20, "alice", 1), granted(40, "bob", 1)];
    assert_eq!(flaws(lines, &[("alice", -1), ("bob", 1)]), TWICE);
    let lines = vec![granted(0, "alice", 1), open(0, "bob", Operation::SignUp)];
    assert_eq!(flaws(lines, &[("alice", 1), ("bob", 1)]), TWICE);
}

#[test]
fn more_people_than_places_in_the_end_are_oversold() {
    let lines = vec![granted(0, "alice", 1), granted(0, "bob", 2), open(0, "carol", Operation::SignUp)];
    // Found in MySQL and in Redis.
    assert_eq!(flaws(lines.clone(), &[("alice", 1), ("bob", 2), ("carol", 3)]), (0, 0, 2, 0));
    assert_eq!(flaws(lines, &[("alice", 1), ("bob", 2)]), CLEAN);
}

#[test]
fn more_people_than_places_for_a_moment_are_oversold_although_they_are_not_in_the_end() {
    let moment = vec![granted(0, "alice", 1), granted(0, "bob", 2), granted(20, "carol", 3), cancelled(40, "alice", 1)];
    assert_eq!(flaws(moment, &[("alice", -1), ("bob", 2), ("carol", 3)]), OVERSOLD);
}

#[test]
fn a_place_counts_as_held_only_while_that_is_certain() {
    let before = [granted(0, "alice", 1), granted(0, "bob", 2)];
    let end = [("alice", -1), ("bob", 2), ("carol", 3)];
    // Each takes 10 ms, and is noted when it has ended.
    for (cancel_ms, grant_ms) in [(20, 25), (20, 18), (30, 25)] {
        let mut after = [cancelled(cancel_ms, "alice", 1), granted(grant_ms, "carol", 3)];
        after.sort_by_key(|(began_ms, ..)| *began_ms);
        let lines = before.iter().cloned().chain(after).collect();
        assert_eq!(flaws(lines, &end), CLEAN, "alice's cancel at {cancel_ms} may have come before the {grant_ms}");
    }
    let open_cancel = [open(20, "alice", Operation::Cancel), granted(40, "carol", 3)];
    assert_eq!(flaws(before.iter().cloned().chain(open_cancel).collect(), &end), CLEAN, "it may have happened");
}

#[test]
fn places_that_were_added_count_from_the_moment_they_were_asked_for() {
    let entries: Vec<_> =
        [granted(0, "alice", 1), granted(0, "bob", 2), granted(200, "carol", 3)].into_iter().map(entry).collect();
    let places = |began_ms, capacity| Places { began_ms, activity: ActivityId::new(1), capacity };
    let mut held = held(&[("alice", 1), ("bob", 2), ("carol", 3)]);
    for held in &mut held {
        held.capacities.insert(ActivityId::new(1), 3);
    }
    for (added_ms, oversold) in [(100, 0), (300, 1)] {
        let places = vec![places(0, 2), places(added_ms, 3)];
        let verdict = check(&History { entries: entries.clone(), places }, &held);
        assert_eq!(verdict.oversold.count, oversold, "added at {added_ms} ms");
    }
}

#[test]
fn an_ambiguous_sign_up_may_have_happened_or_not() {
    let lines = || vec![open(0, "alice", Operation::SignUp)];
    let (there, gone) = (verdict(lines(), &[("alice", 1)]), verdict(lines(), &[]));
    assert_eq!((there.attempted, there.acknowledged, there.ambiguous, there.recovered), (1, 0, 1, 1));
    assert_eq!((gone.ambiguous, gone.recovered), (1, 0));
    assert_eq!((flaws(lines(), &[("alice", 1)]), flaws(lines(), &[])), (CLEAN, CLEAN));
}

#[test]
fn an_ambiguous_cancel_may_have_happened_or_not() {
    let lines = || vec![granted(0, "alice", 1), open(20, "alice", Operation::Cancel)];
    assert_eq!((flaws(lines(), &[("alice", 1)]), flaws(lines(), &[("alice", -1)])), (CLEAN, CLEAN));
    assert_eq!(flaws(lines(), &[]), LOST, "in both cases there is a row");
    assert_eq!(verdict(lines(), &[("alice", -1)]).recovered, 1);
}

#[test]
fn a_retry_that_shows_the_first_try_happened_recovers_it_once() {
    let lines = vec![
        open(0, "alice", Operation::SignUp),
        (20, "alice", Operation::SignUp, Outcome::Held { sequence: 1, queued: true }),
        looked(40, "alice", 1),
    ];
    let verdict = verdict(lines.clone(), &[("alice", 1)]);
    assert_eq!((verdict.acknowledged, verdict.ambiguous, verdict.recovered), (1, 1, 1));
    assert_eq!(flaws(lines, &[("alice", 1)]), CLEAN);
}

#[test]
fn a_clear_reply_settles_what_was_ambiguous_long_before() {
    let long_after = HORIZON_MS + 100;
    let settled = |at_ms| vec![granted(0, "alice", 1), open(20, "alice", Operation::Cancel), looked(at_ms, "alice", 1)];
    assert_eq!(flaws(settled(long_after), &[("alice", 1)]), CLEAN);
    assert_eq!(flaws(settled(long_after), &[("alice", -1)]), LOST);
    assert_eq!(flaws(settled(40), &[("alice", -1)]), CLEAN, "it may still be on its way");
}

#[test]
fn a_reply_that_was_lost_inside_and_asked_for_again_is_no_flaw() {
    let sign_up = vec![(0, "alice", Operation::SignUp, Outcome::Held { sequence: 1, queued: true })];
    assert_eq!(flaws(sign_up, &[("alice", 1)]), CLEAN);
    let cancel = vec![granted(0, "alice", 1), (20, "alice", Operation::Cancel, Outcome::WasCancelled { sequence: 1 })];
    assert_eq!(flaws(cancel, &[("alice", -1)]), CLEAN);
    let other = vec![granted(0, "alice", 1), (20, "alice", Operation::Cancel, Outcome::WasCancelled { sequence: 2 })];
    assert_ne!(flaws(other, &[("alice", -2)]), CLEAN);
}

#[test]
fn one_flaw_counts_once_however_often_it_is_seen() {
    let lines = vec![granted(0, "alice", 1), sold_out(20, "alice"), sold_out(40, "alice")];
    assert_eq!(flaws(lines, &[]).0, 1);
}

#[test]
fn after_a_flaw_the_story_goes_on_from_what_was_seen() {
    let gone = (20, "alice", Operation::Look, Outcome::NotSignedUp);
    assert_eq!(flaws(vec![granted(0, "alice", 1), gone, granted(40, "alice", 5)], &[("alice", 5)]), LOST);
}

#[test]
fn a_strange_reply_is_told_and_leaves_open_what_happened() {
    let strange = Outcome::Strange { what: "500 internal-error".into() };
    let asked = Entry { status: Some(202), ..entry((0, "alice", Operation::SignUp, strange)) };
    let found = check(&History { entries: vec![asked], places: Vec::new() }, &held(&[("alice", 1)]));
    assert_eq!((found.acknowledged, found.ambiguous, found.unexpected.count), (0, 1, 0));
    assert_eq!(found.strange.count, 1);
    assert!(found.strange.first[0].what.contains("500 internal-error"), "{:?}", found.strange.first);
}
