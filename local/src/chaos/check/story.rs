//! What one person and one activity may have come to, as far as the replies tell.
//!
//! A reply narrows the possible states down. A request without a clear reply may still take effect, also later and, where
//! a part of Onrush tries again, more than once, but not later than [`HORIZON_MS`] after we gave it up: no freeze, no
//! queue and no timeout of a run together last as long. A reply that no possible state explains is a flaw, and the
//! story goes on from what that reply says, so that one flaw is found once.

use std::collections::BTreeSet;

use super::super::history::{Entry, Operation, Outcome};

/// How long after we gave up on a request it may still take effect.
pub const HORIZON_MS: u64 = 30_000;

/// Which place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// This one.
    Exactly(u64),
    /// We were not told which: a later one than this.
    After(u64),
}

/// A possible state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The person never had a place.
    Never,
    /// The person has a place.
    Holds(Place),
    /// The person has given the place back.
    GaveBack(Place),
}

/// What is wrong with a reply or with what a server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something acknowledged is missing.
    Lost,
    /// Two places where one was granted.
    Twice,
    /// Something that nothing in the history explains.
    Unexpected,
}

/// What a reply or a server says a person has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No place, whatever there was before.
    Without,
    /// Never had a place.
    Never,
    /// Has this place.
    Holds(u64),
    /// Got this place just now.
    Got(u64),
    /// Gave back this place.
    GaveBack(u64),
    /// Gave back this place just now.
    Returned(u64),
}

/// By what something seen came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Explained {
    /// By the state before.
    Plainly,
    /// By a request that had no clear reply.
    ByAnOpenRequest,
    /// By the request itself: it took effect, its reply was lost inside, and it was tried again.
    ByItself,
}

/// What a story says to one more thing that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The flaw, if it has one.
    pub flaw: Option<Kind>,
    /// It shows that an open request took effect.
    pub recovered: bool,
}

/// The story of one person and one activity.
#[derive(Clone, Debug)]
pub struct Story {
    states: BTreeSet<State>,
    /// Until when an open sign-up, and an open cancel, may take effect.
    open_sign_up_until_ms: Option<u64>,
    open_cancel_until_ms: Option<u64>,
    /// When the last clear reply was there.
    clear_since_ms: u64,
}

impl Place {
    fn admits(self, sequence: u64) -> bool {
        match self {
            Self::Exactly(exactly) => exactly == sequence,
            Self::After(after) => sequence > after,
        }
    }

    fn least(self) -> u64 {
        match self {
            Self::Exactly(least) | Self::After(least) => least,
        }
    }
}

impl State {
    /// The last place that the person had, at least.
    fn least(self) -> u64 {
        match self {
            Self::Never => 0,
            Self::Holds(place) | Self::GaveBack(place) => place.least(),
        }
    }

    /// Whether a person in this state, before the request, may be told this.
    fn explains(self, seen: Seen) -> bool {
        match (self, seen) {
            (Self::Never, Seen::Never | Seen::Without) | (Self::GaveBack(_), Seen::Without) => true,
            (Self::Holds(place), Seen::Holds(sequence) | Seen::Returned(sequence))
            | (Self::GaveBack(place), Seen::GaveBack(sequence)) => place.admits(sequence),
            (Self::Never | Self::GaveBack(_), Seen::Got(sequence)) => sequence > self.least(),
            _ => false,
        }
    }

    /// The same, where the request itself may have taken effect before.
    fn explains_after(self, operation: Operation, seen: Seen) -> bool {
        match (operation, self, seen) {
            (Operation::SignUp, Self::Never | Self::GaveBack(_), Seen::Holds(sequence)) => sequence > self.least(),
            (Operation::Cancel, Self::Holds(place), Seen::GaveBack(sequence)) => place.admits(sequence),
            _ => false,
        }
    }
}

impl Seen {
    /// What a reply says; nothing if it leaves that open.
    fn of(outcome: &Outcome) -> Option<Self> {
        match *outcome {
            Outcome::Granted { sequence } => Some(Self::Got(sequence)),
            Outcome::Held { sequence, .. } => Some(Self::Holds(sequence)),
            Outcome::Cancelled { sequence } => Some(Self::Returned(sequence)),
            Outcome::WasCancelled { sequence } => Some(Self::GaveBack(sequence)),
            Outcome::SoldOut => Some(Self::Without),
            Outcome::NotSignedUp => Some(Self::Never),
            Outcome::Unknown { .. } | Outcome::Strange { .. } => None,
        }
    }

    /// The state after this; of several, those that `states` has.
    fn after(self, states: &BTreeSet<State>) -> BTreeSet<State> {
        match self {
            Self::Never => [State::Never].into(),
            Self::Holds(sequence) | Self::Got(sequence) => [State::Holds(Place::Exactly(sequence))].into(),
            Self::GaveBack(sequence) | Self::Returned(sequence) => [State::GaveBack(Place::Exactly(sequence))].into(),
            Self::Without => {
                let without: BTreeSet<_> = states.iter().copied().filter(|state| state.explains(self)).collect();
                if without.is_empty() {
                    states.iter().map(|state| State::GaveBack(Place::After(state.least().saturating_sub(1)))).collect()
                } else {
                    without
                }
            }
        }
    }
}

impl Default for Story {
    fn default() -> Self {
        let states = [State::Never].into();
        Self { states, open_sign_up_until_ms: None, open_cancel_until_ms: None, clear_since_ms: 0 }
    }
}

impl Story {
    /// Goes on with a request and its reply.
    pub fn note(&mut self, entry: &Entry) -> Judged {
        let ended_ms = entry.ended_ms();
        let Some(seen) = Seen::of(&entry.outcome) else {
            let until = Some(ended_ms + HORIZON_MS);
            match entry.operation {
                Operation::SignUp => self.open_sign_up_until_ms = until,
                Operation::Cancel => self.open_cancel_until_ms = until,
                Operation::Look => {}
            }
            return Judged::default();
        };
        let judged = self.see(seen, Some(entry.operation));
        self.clear_since_ms = ended_ms;
        judged
    }

    /// Goes on with what a server holds at the end, when nothing is on its way any more.
    pub fn note_held(&mut self, seen: Seen) -> Judged {
        self.see(seen, None)
    }

    /// The place that the person holds for certain, also if an open request took effect now.
    #[must_use]
    pub fn certainly_holds(&self) -> bool {
        let mut states = self.spread().into_iter();
        states.all(|state| matches!(state, State::Holds(_)))
    }

    fn see(&mut self, seen: Seen, operation: Option<Operation>) -> Judged {
        let spread = self.spread();
        let explained = self.explained(&spread, seen, operation);
        let flaw = if explained.is_none() { Some(kind(&spread, seen)) } else { None };
        self.states = seen.after(&spread);
        Judged { flaw, recovered: explained == Some(Explained::ByAnOpenRequest) }
    }

    fn explained(&self, spread: &BTreeSet<State>, seen: Seen, operation: Option<Operation>) -> Option<Explained> {
        if self.states.iter().any(|state| state.explains(seen)) {
            Some(Explained::Plainly)
        } else if spread.iter().any(|state| state.explains(seen)) {
            Some(Explained::ByAnOpenRequest)
        } else if operation.is_some_and(|done| spread.iter().any(|state| state.explains_after(done, seen))) {
            Some(Explained::ByItself)
        } else {
            None
        }
    }

    /// The possible states once open requests have taken effect, or not, in any order.
    fn spread(&self) -> BTreeSet<State> {
        let open = |until: Option<u64>| until.is_some_and(|until| until >= self.clear_since_ms);
        let (sign_up, cancel) = (open(self.open_sign_up_until_ms), open(self.open_cancel_until_ms));
        let mut states = self.states.clone();
        loop {
            let next = states.iter().filter_map(|state| match *state {
                State::Holds(place) => cancel.then_some(State::GaveBack(place)),
                State::Never | State::GaveBack(_) => sign_up.then_some(State::Holds(Place::After(state.least()))),
            });
            let grown: BTreeSet<_> = states.iter().copied().chain(next).collect();
            if grown.len() == states.len() {
                return states;
            }
            states = grown;
        }
    }
}

/// What it means that none of these states explains what was seen.
fn kind(states: &BTreeSet<State>, seen: Seen) -> Kind {
    let known = states.iter().map(|state| state.least()).max().unwrap_or(0);
    let held = states.iter().any(|state| matches!(state, State::Holds(_)));
    match seen {
        Seen::Holds(sequence) | Seen::Returned(sequence) if held && sequence < known => Kind::Lost,
        Seen::Got(_) | Seen::Holds(_) | Seen::Returned(_) if held => Kind::Twice,
        Seen::Got(_) | Seen::Holds(_) | Seen::Returned(_) => Kind::Unexpected,
        Seen::GaveBack(sequence) if sequence > known => Kind::Unexpected,
        Seen::Without | Seen::Never | Seen::GaveBack(_) => Kind::Lost,
    }
}
