//! Decides, without I/O, what becomes of each message of a batch.

use std::collections::{BTreeMap, HashMap};

use shared::broker::ParkedCopy;
use shared::domain::{ActivityId, Signup, SignupStatus, Timestamp, UserId};
use shared::message::{self, Barrier};

use crate::event::{Content, Delivery, Envelope};

/// What becomes of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write the fact.
    Upsert(Signup, Envelope),
    /// Say that it came out of this queue, once all before it is done.
    Pass(u16, Barrier),
    /// It can never succeed: put it aside for an operator.
    Park(Parked),
}

/// A message for an operator, as it came, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The body, byte for byte.
    pub body: Vec<u8>,
    /// Why it can never succeed.
    pub reason: String,
    /// What came with it.
    pub envelope: Envelope,
}

impl Parked {
    /// The copy that goes to the parked queue.
    pub fn copy(&self) -> ParkedCopy<'_> {
        let Self { body, reason, envelope: Envelope { message_type, message_id, traceparent, replays } } = self;
        ParkedCopy {
            body,
            reason,
            message_type: message_type.as_deref(),
            message_id: message_id.as_deref(),
            traceparent: traceparent.as_deref(),
            replays: *replays,
        }
    }
}

/// How far a version may lie ahead of this machine's clock. One from further ahead would outrank every later fact.
const MAX_AHEAD_MS: u64 = 24 * 60 * 60 * 1_000;

/// What becomes of this message, which came at `now`.
pub fn decide(delivery: Delivery, now: Timestamp) -> Decision {
    let Delivery { content, envelope } = delivery;
    let (body, reason) = match content {
        Content::Body(body) => match (message::parse_barrier(&body), message::parse(&body)) {
            (Some((queue, barrier)), _) => return Decision::Pass(queue, barrier),
            (None, Ok(signup)) if signup.version.get() <= now.as_ms() + MAX_AHEAD_MS => {
                return Decision::Upsert(signup, envelope);
            }
            (None, Ok(_)) => (body, "the version lies more than a day ahead".to_owned()),
            (None, Err(error)) => (body, error.to_string()),
        },
        Content::Unreadable(body) => (body, "the event holds no base64 body".to_owned()),
    };
    Decision::Park(Parked { body, reason, envelope })
}

/// What a batch comes down to: one fact for each activity and user, the one with the highest version.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Places given back, sorted by activity and user. They go first, since they make room.
    pub cancellations: Vec<Signup>,
    /// Places granted, sorted by activity and user.
    pub signups: Vec<Signup>,
    /// Messages for an operator.
    pub parked: Vec<Parked>,
    /// The latest barrier of each queue.
    pub barriers: BTreeMap<u16, Barrier>,
    /// How often facts were replayed by an operator, of those that were.
    pub replays: HashMap<(ActivityId, UserId), u32>,
}

impl Batch {
    /// Sorts out the messages, which came at `now`.
    pub fn of(deliveries: Vec<Delivery>, now: Timestamp) -> Self {
        let mut newest: BTreeMap<(ActivityId, UserId), Signup> = BTreeMap::new();
        let (mut parked, mut barriers, mut replays) = (Vec::new(), BTreeMap::new(), HashMap::new());
        for delivery in deliveries {
            match decide(delivery, now) {
                Decision::Upsert(signup, envelope) => {
                    let key = (signup.activity_id, signup.user_id.clone());
                    if envelope.replays > 0 {
                        replays.insert(key.clone(), envelope.replays);
                    }
                    match newest.get(&key) {
                        Some(known) if known.version >= signup.version => {}
                        _ => {
                            newest.insert(key, signup);
                        }
                    }
                }
                Decision::Pass(queue, passed) => {
                    barriers
                        .entry(queue)
                        .and_modify(|latest: &mut Barrier| *latest = passed.max(*latest))
                        .or_insert(passed);
                }
                Decision::Park(message) => parked.push(message),
            }
        }
        let (cancellations, signups) = newest.into_values().partition(|fact| fact.status == SignupStatus::Cancelled);
        Self { cancellations, signups, parked, barriers, replays }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(body: &[u8]) -> Delivery {
        Delivery { content: Content::Body(body.to_vec()), envelope: Envelope::default() }
    }

    fn body(user: &str, version: u64, status: &str) -> Delivery {
        let fact = serde_json::json!({
            "activityId": "42", "userId": user, "version": version, "sequence": 1, "status": status,
            "signedUpAt": "2026-11-30T12:00:00.123Z"
        });
        delivery(fact.to_string().as_bytes())
    }

    fn summary(facts: &[Signup]) -> Vec<(&str, u64)> {
        facts.iter().map(|fact| (fact.user_id.as_str(), fact.version.get())).collect()
    }

    #[test]
    fn the_highest_version_of_each_user_is_written_in_the_order_of_the_key() {
        let batch = Batch::of(
            vec![
                body("bob", 7, "cancelled"),
                body("eve", 2, "signed-up"),
                body("ann", 3, "signed-up"),
                body("bob", 5, "signed-up"),
                body("ann", 4, "cancelled"),
                body("ann", 4, "cancelled"),
                body("cid", 1, "cancelled"),
                body("cid", 2, "signed-up"),
            ],
            Timestamp::now(),
        );
        assert_eq!(summary(&batch.cancellations), [("ann", 4), ("bob", 7)]);
        assert_eq!(summary(&batch.signups), [("cid", 2), ("eve", 2)]);
        assert!(batch.parked.is_empty());
    }

    #[test]
    fn a_message_that_can_never_succeed_is_parked_as_it_came_and_the_others_go_on() {
        let poison = [&b"{"[..], b"", b"\xff", b"{\"activityId\":42}", b"1:2"];
        let mut deliveries: Vec<_> = poison.iter().map(|body| delivery(body)).collect();
        deliveries.push(body("ann", 3, "signed-up"));
        deliveries
            .push(Delivery { content: Content::Unreadable(b"no base64".to_vec()), envelope: Envelope::default() });
        let batch = Batch::of(deliveries, Timestamp::now());
        assert_eq!(summary(&batch.signups), [("ann", 3)]);
        let parked: Vec<_> = batch.parked.iter().map(|message| message.body.as_slice()).collect();
        assert_eq!(parked, [&b"{"[..], b"", b"\xff", b"{\"activityId\":42}", b"1:2", b"no base64"]);
        assert!(batch.parked.iter().all(|message| !message.reason.is_empty()));
    }

    #[test]
    fn a_version_more_than_a_day_ahead_is_parked() {
        let now = Timestamp::from_ms(1_796_040_000_000).unwrap();
        let ahead = |ms: u64| decide(body("ann", now.as_ms() + ms, "signed-up"), now);
        assert!(matches!(ahead(MAX_AHEAD_MS), Decision::Upsert(..)));
        assert!(matches!(ahead(MAX_AHEAD_MS + 1), Decision::Park(_)));
    }

    #[test]
    fn the_latest_barrier_of_each_queue_counts() {
        let of = |bodies: &[&str]| {
            Batch::of(bodies.iter().map(|body| delivery(body.as_bytes())).collect(), Timestamp::now())
        };
        let batch = of(&[
            r#"{"barrier":5}"#,
            r#"{"barrier":9,"queue":2}"#,
            r#"{"barrier":7}"#,
            r#"{"barrier":6}"#,
            r#"{"barrier":8,"queue":2}"#,
        ]);
        assert_eq!(batch.barriers, [(0, Barrier::new(7)), (2, Barrier::new(9))].into());
        let batch = of(&["1001:42:1796040000123"]);
        assert_eq!((batch.barriers.len(), batch.signups.len()), (0, 1));
    }
}
