//! What came of a sale: counts, latencies, and every receipt that was handed out.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use shared::domain::{Receipt, UserId};

use super::reply::Reply;

/// The longest latency that is told apart, in µs; a request times out sooner.
const LONGEST_US: u64 = 600_000_000;

/// Something that happened at the door.
#[derive(Debug)]
pub enum Event {
    /// A request was answered.
    Answered { reply: Reply, took: Duration },
    /// The sale cut a connection after it had asked, or threw the answer away.
    Cut,
    /// A connection broke, or the answer took too long.
    Broken(&'static str),
    /// A click was never answered, however often it was tried.
    GaveUp(String),
    /// A person left.
    Left,
}

/// What came of a sale.
#[derive(Debug)]
pub struct Sale {
    /// People who came and left.
    pub people: u64,
    /// Requests sent, each attempt and each cut one included.
    pub requests: u64,
    /// Replies with status 200: the receipt once more.
    pub repeated: u64,
    /// Replies that said `sold-out`.
    pub sold_out: u64,
    /// Clicks that got no answer or one that a sale should not see.
    pub errors: u64,
    /// The errors by kind.
    pub error_kinds: BTreeMap<String, u64>,
    /// Attempts without an answer: a 503 or 429, a broken connection.
    pub setbacks: u64,
    /// The setbacks by kind.
    pub setback_kinds: BTreeMap<String, u64>,
    /// Requests whose connection the sale cut itself.
    pub cut: u64,
    /// The different receipts of each person, in the order in which they came. More than one is a place too many.
    pub receipts: BTreeMap<UserId, Vec<Receipt>>,
    /// Latencies of the answered requests, in µs.
    pub latency_us: Histogram<u64>,
    /// From the first person to the last.
    pub elapsed: Duration,
}

/// A stretch of latencies and how many requests fell into it.
#[derive(Debug, PartialEq)]
pub struct Bin {
    /// Where it begins, in ms.
    pub from_ms: f64,
    /// Where it ends, in ms.
    pub to_ms: f64,
    /// How many requests.
    pub requests: u64,
}

impl Sale {
    /// A sale that has not begun.
    pub(super) fn new() -> anyhow::Result<Self> {
        let latency_us = Histogram::new_with_bounds(1, LONGEST_US, 3).context("making the latency histogram")?;
        Ok(Self {
            people: 0,
            requests: 0,
            repeated: 0,
            sold_out: 0,
            errors: 0,
            error_kinds: BTreeMap::new(),
            setbacks: 0,
            setback_kinds: BTreeMap::new(),
            cut: 0,
            receipts: BTreeMap::new(),
            latency_us,
            elapsed: Duration::ZERO,
        })
    }

    /// Takes in what happened.
    pub(super) fn note(&mut self, event: Event) {
        match event {
            Event::Answered { reply, took } => self.answered(reply, took),
            Event::Cut => {
                self.requests += 1;
                self.cut += 1;
            }
            Event::Broken(reason) => {
                self.requests += 1;
                self.setback(reason.to_owned());
            }
            Event::GaveUp(reason) => self.error(reason),
            Event::Left => self.people += 1,
        }
    }

    fn answered(&mut self, reply: Reply, took: Duration) {
        self.requests += 1;
        self.latency_us.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST_US));
        match reply {
            Reply::Granted(receipt) => self.keep(receipt),
            Reply::Repeated(receipt) => {
                self.repeated += 1;
                self.keep(receipt);
            }
            Reply::SoldOut => self.sold_out += 1,
            Reply::TryLater { reason, .. } => self.setback(reason),
            Reply::Unexpected(reason) => self.error(reason),
        }
    }

    /// Keeps a receipt unless the person holds the same one; how far it has come makes no other receipt of it.
    fn keep(&mut self, receipt: Receipt) {
        let held = self.receipts.entry(receipt.user_id.clone()).or_default();
        let same = |other: &Receipt| (other.sequence, other.signed_up_at) == (receipt.sequence, receipt.signed_up_at);
        if !held.iter().any(same) {
            held.push(receipt);
        }
    }

    fn setback(&mut self, reason: String) {
        self.setbacks += 1;
        *self.setback_kinds.entry(reason).or_default() += 1;
    }

    fn error(&mut self, reason: String) {
        self.errors += 1;
        *self.error_kinds.entry(reason).or_default() += 1;
    }

    /// People who hold a receipt.
    pub fn granted(&self) -> u64 {
        self.receipts.len() as u64
    }

    /// People who were handed two different receipts.
    pub fn granted_twice(&self) -> Vec<&UserId> {
        self.receipts.iter().filter(|(_, receipts)| receipts.len() > 1).map(|(user, _)| user).collect()
    }

    /// Requests a second over the whole sale.
    pub fn requests_per_second(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.requests as f64 / self.elapsed.as_secs_f64() }
    }

    /// The latency that this share of the answers stayed within, in ms.
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency_us.value_at_quantile(quantile) as f64 / 1_000.0
    }

    /// The answers by latency, from the fastest to the slowest in stretches that grow by the same factor.
    pub fn latency_bins(&self, bins: u32) -> Vec<Bin> {
        if self.latency_us.is_empty() || bins == 0 {
            return Vec::new();
        }
        let (fastest, slowest) = (self.latency_us.min().max(1), self.latency_us.max().max(2));
        let growth = (slowest as f64 / fastest as f64).powf(1.0 / f64::from(bins));
        let edge = |bin: u32| if bin == bins { slowest } else { (fastest as f64 * growth.powf(f64::from(bin))) as u64 };
        let up_to = |us: u64| if us < fastest { 0 } else { self.latency_us.count_between(0, us) };
        (0..bins)
            .map(|bin| {
                let (from, to) = (edge(bin), edge(bin + 1));
                let before = if bin == 0 { 0 } else { up_to(from) };
                Bin { from_ms: from as f64 / 1_000.0, to_ms: to as f64 / 1_000.0, requests: up_to(to) - before }
            })
            .collect()
    }
}

/// Kinds of trouble in words: `3 x 503, 1 x timed out`.
pub fn in_words(kinds: &BTreeMap<String, u64>) -> String {
    let kinds: Vec<String> = kinds.iter().map(|(kind, times)| format!("{times} x {kind}")).collect();
    kinds.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(user: &str, sequence: u64, status: &str) -> Receipt {
        let text = format!(
            r#"{{"activityId":"42","userId":"{user}","sequence":{sequence},"status":"{status}",
                "signedUpAt":"2026-11-30T12:00:00.123Z"}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn sale(replies: Vec<Reply>) -> Sale {
        let mut sale = Sale::new().unwrap();
        for (ms, reply) in (1..).zip(replies) {
            sale.note(Event::Answered { reply, took: Duration::from_millis(ms) });
        }
        sale
    }

    #[test]
    fn a_receipt_seen_again_counts_as_repeated_and_grants_one_place() {
        let sale = sale(vec![
            Reply::Granted(receipt("alice", 1, "queued")),
            Reply::Repeated(receipt("alice", 1, "queued")),
            Reply::Repeated(receipt("alice", 1, "confirmed")),
        ]);
        assert_eq!((sale.granted(), sale.repeated, sale.granted_twice().len()), (1, 2, 0));
    }

    #[test]
    fn a_person_whose_first_reply_was_lost_still_counts_as_granted() {
        let mut sale = sale(vec![Reply::Repeated(receipt("alice", 1, "queued"))]);
        sale.note(Event::Cut);
        assert_eq!((sale.granted(), sale.requests, sale.cut), (1, 2, 1));
    }

    #[test]
    fn two_different_receipts_of_one_person_show_as_granted_twice() {
        let sale = sale(vec![
            Reply::Granted(receipt("alice", 1, "queued")),
            Reply::Granted(receipt("alice", 2, "queued")),
            Reply::Granted(receipt("bob", 3, "queued")),
        ]);
        let twice: Vec<&str> = sale.granted_twice().into_iter().map(UserId::as_str).collect();
        assert_eq!((sale.granted(), twice), (2, vec!["alice"]));
    }

    #[test]
    fn a_setback_that_was_answered_later_is_no_error_and_one_that_never_was_is() {
        let later = Reply::TryLater { reason: "503".into(), after: None };
        let mut sale = sale(vec![later, Reply::SoldOut]);
        sale.note(Event::Broken("timed out"));
        assert_eq!((sale.setbacks, sale.errors, sale.sold_out, sale.requests), (2, 0, 1, 3));
        assert_eq!(in_words(&sale.setback_kinds), "1 x 503, 1 x timed out");
        sale.note(Event::GaveUp("503".into()));
        sale.note(Event::Answered { reply: Reply::Unexpected("500".into()), took: Duration::ZERO });
        assert_eq!((sale.errors, in_words(&sale.error_kinds)), (2, "1 x 500, 1 x 503".into()));
    }

    #[test]
    fn every_answer_falls_into_exactly_one_stretch_of_latency() {
        let sale = sale((0..1_000).map(|_| Reply::SoldOut).collect());
        for bins in [1, 7, 24] {
            let bins = sale.latency_bins(bins);
            assert_eq!(bins.iter().map(|bin| bin.requests).sum::<u64>(), 1_000);
        }
        assert_eq!(Sale::new().unwrap().latency_bins(24), []);
    }
}
