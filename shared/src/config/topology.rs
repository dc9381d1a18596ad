//! The names on the broker, and which queue takes whose sign-ups.

use std::hash::Hasher;
use std::str::FromStr;

use fnv::FnvHasher;

use super::{ConfigError, Env};
use crate::domain::UserId;

/// What kind of queue the broker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    /// Replicated and durable; the default.
    Quorum,
    /// For brokers without quorum queues.
    Classic,
}

impl FromStr for QueueType {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "quorum" => Ok(Self::Quorum),
            "classic" => Ok(Self::Classic),
            _ => Err(()),
        }
    }
}

/// The most queues of sign-ups that there may be.
pub const MAX_QUEUES: u16 = 8;

/// Leaves room for `.parked` and for the number of a queue.
pub(super) const LONGEST_NAME: usize = 255 - ".parked".len();

/// The names on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// `SIGNUP_EXCHANGE` (`activity.signup.direct`).
    pub exchange: String,
    /// `SIGNUP_QUEUE` (`activity.signup.queue`): queue 0.
    pub queue: String,
    /// `SIGNUP_ROUTING_KEY` (`activity.signup.routing`): the one of queue 0.
    pub routing_key: String,
    /// `SIGNUP_QUEUES` (1): how many queues share the sign-ups, 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// `QUEUE_TYPE` (`quorum`), or `classic`.
    pub queue_type: QueueType,
}

impl Topology {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let (name, expected) = ("SIGNUP_QUEUES", "a number of queues, from 1 to 8");
        let queues = env.parse_or(name, expected, 1)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(ConfigError::Malformed { name, expected });
        }
        Ok(Self {
            queues,
            exchange: env.short_string("SIGNUP_EXCHANGE", "activity.signup.direct")?,
            queue: env.short_string("SIGNUP_QUEUE", "activity.signup.queue")?,
            routing_key: env.short_string("SIGNUP_ROUTING_KEY", "activity.signup.routing")?,
            queue_type: env.parse_or("QUEUE_TYPE", "quorum or classic", QueueType::Quorum)?,
        })
    }

    /// The queue that takes the sign-ups of this user: FNV-1a of the user id in 64 bits, its halves folded by exclusive
    /// or, modulo the number of queues. It must never change: facts of one user would overtake each other, and outbox
    /// notes be sent past the queue in which their messages wait.
    pub fn shard_of(&self, user_id: &UserId) -> u16 {
        let mut hasher = FnvHasher::default();
        hasher.write(user_id.as_str().as_bytes());
        let hash = hasher.finish();
        // The lowest bits alone would hardly mix, and so split some kinds of ids unevenly.
        let folded = (hash >> 32) ^ (hash & 0xffff_ffff);
        (folded % u64::from(self.queues)) as u16
    }

    /// The name of a queue: `activity.signup.queue`, `activity.signup.queue.1`, …
    pub fn queue_name(&self, queue: u16) -> String {
        numbered(&self.queue, queue)
    }

    /// What leads to a queue: `activity.signup.routing`, `activity.signup.routing.1`, …
    pub fn routing_key_of(&self, queue: u16) -> String {
        numbered(&self.routing_key, queue)
    }

    /// The names of all queues, in their order.
    pub fn queue_names(&self) -> Vec<String> {
        (0..self.queues).map(|queue| self.queue_name(queue)).collect()
    }

    /// Where messages go that the consumer or the broker gave up: `activity.signup.dlx` for `activity.signup.queue`.
    pub fn dead_letter_exchange(&self) -> String {
        format!("{}.dlx", self.stem())
    }

    /// Where they wait for an operator: `activity.signup.parked` for `activity.signup.queue`.
    pub fn parked_queue(&self) -> String {
        format!("{}.parked", self.stem())
    }

    fn stem(&self) -> &str {
        self.queue.strip_suffix(".queue").unwrap_or(&self.queue)
    }
}

/// Queue 0 has the bare name, as the only queue has.
fn numbered(name: &str, queue: u16) -> String {
    if queue == 0 { name.to_owned() } else { format!("{name}.{queue}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology_of(queues: u16) -> Topology {
        Topology { queues, ..Topology::from_env(&Env::new(&|_| None)).unwrap() }
    }

    fn shard(user: &str, queues: u16) -> u16 {
        topology_of(queues).shard_of(&user.parse().unwrap())
    }

    #[test]
    fn queue_0_keeps_the_bare_name_and_the_others_are_numbered() {
        assert_eq!(topology_of(1).queue_names(), ["activity.signup.queue"]);
        assert_eq!(
            topology_of(3).queue_names(),
            ["activity.signup.queue", "activity.signup.queue.1", "activity.signup.queue.2"]
        );
        let keys = [0, 1, 7].map(|queue| topology_of(8).routing_key_of(queue));
        assert_eq!(keys, ["activity.signup.routing", "activity.signup.routing.1", "activity.signup.routing.7"]);
    }

    #[test]
    fn the_queue_of_a_user_never_changes_between_releases() {
        let users = ["alice", "bob", "1001", "1002", "auth0|5f7c8ec7c33c6c004bbafe82", "~", &"x".repeat(128)];
        let shards = |queues| users.map(|user| shard(user, queues));
        assert_eq!(shards(1), [0; 7]);
        assert_eq!(shards(2), [0, 1, 1, 0, 1, 1, 1]);
        assert_eq!(shards(3), [0, 1, 2, 0, 0, 2, 0]);
        assert_eq!(shards(8), [4, 5, 7, 2, 3, 5, 3]);
    }

    #[test]
    fn users_are_spread_evenly_whatever_their_ids_look_like() {
        type Id = fn(u64) -> String;
        let kinds: [(&str, Id); 7] = [
            ("numbers", |n| n.to_string()),
            ("even numbers", |n| (n * 2).to_string()),
            ("thousands", |n| (n * 1_000).to_string()),
            ("names", |n| format!("user-{n:08}")),
            ("addresses", |n| format!("{n}@example.org")),
            ("two letters", |n| format!("{n:014b}").replace('0', "a").replace('1', "c")),
            ("hexadecimal", |n| format!("{:032x}", u128::from(n) * 0x9e37_79b9_7f4a_7c15_f39c_c060)),
        ];
        for (kind, id) in kinds {
            for queues in 2..=MAX_QUEUES {
                let (topology, mut counts) = (topology_of(queues), vec![0_u32; usize::from(queues)]);
                (0..8_000).for_each(|n| counts[usize::from(topology.shard_of(&id(n).parse().unwrap()))] += 1);
                let fair = 8_000 / u32::from(queues);
                assert!(counts.iter().all(|count| count.abs_diff(fair) < fair / 5), "{kind}, {queues}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_longest_names_leave_room_for_their_endings() {
        let longest = "q".repeat(LONGEST_NAME);
        let lookup = |asked: &str| (asked == "SIGNUP_QUEUE").then(|| longest.clone());
        let topology = Topology::from_env(&Env::new(&lookup)).unwrap();
        assert!(topology.parked_queue().len() <= 255 && topology.queue_name(MAX_QUEUES - 1).len() <= 255);
    }
}
