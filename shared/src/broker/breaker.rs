//! A circuit breaker: after the broker failed, requests go past it for a moment, so that a dead broker costs nothing
//! per request. When the pause is over one request at a time tries again; each failure doubles the pause.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::PublishError;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Breaker {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
enum State {
    /// All is well.
    #[default]
    Closed,
    /// Nobody tries until then.
    Open { until: Instant, pause: Duration },
    /// One request is trying.
    HalfOpen { pause: Duration },
}

/// Leave to try, to be handed back with what came of it. Dropped without a word, it counts as no news.
pub(super) struct Pass<'a> {
    breaker: &'a Breaker,
    probed_from: Option<State>,
}

impl Breaker {
    /// Leave to try the broker, or none for now.
    pub(super) fn pass(&self) -> Option<Pass<'_>> {
        let mut state = self.state();
        let probed_from = match *state {
            State::Closed => None,
            State::Open { until, pause } if Instant::now() >= until => {
                Some(std::mem::replace(&mut *state, State::HalfOpen { pause }))
            }
            State::Open { .. } | State::HalfOpen { .. } => return None,
        };
        Some(Pass { breaker: self, probed_from })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Whether this is the one request that tries a broker that was down.
    pub(super) fn is_probe(&self) -> bool {
        self.probed_from.is_some()
    }

    /// The broker answered.
    pub(super) fn succeeded(mut self) {
        let was_probe = self.probed_from.take().is_some();
        let mut state = self.breaker.state();
        // A late answer from before the failure says nothing about now.
        if was_probe {
            tracing::info!("the broker answers again");
            *state = State::Closed;
        }
    }

    /// The broker did not answer.
    pub(super) fn failed(mut self, error: &PublishError) {
        self.probed_from = None;
        let mut state = self.breaker.state();
        let pause = match *state {
            State::Closed => FIRST_PAUSE,
            State::HalfOpen { pause } => (pause * 2).min(LONGEST_PAUSE),
            // Requests that were under way when the first one failed.
            State::Open { .. } => return,
        };
        if *state == State::Closed {
            tracing::warn!(%error, "the broker fails; sign-ups stay in the outbox until it answers again");
        }
        *state = State::Open { until: Instant::now() + pause, pause };
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.probed_from.take() {
            *self.breaker.state() = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &Breaker) {
        breaker.pass().unwrap().failed(&PublishError::ConnectTimedOut);
    }

    fn end_pause(breaker: &Breaker) {
        let mut state = breaker.state();
        let State::Open { until, .. } = &mut *state else { panic!("not open") };
        *until = Instant::now();
    }

    #[test]
    fn a_failure_keeps_everybody_away_until_the_pause_is_over_then_one_tries() {
        let breaker = Breaker::default();
        fail(&breaker);
        assert!(breaker.pass().is_none());
        end_pause(&breaker);
        let probe = breaker.pass().unwrap();
        assert!(probe.is_probe());
        assert!(breaker.pass().is_none());
        probe.succeeded();
        assert!(!breaker.pass().unwrap().is_probe());
    }

    #[test]
    fn each_failed_try_doubles_the_pause_up_to_a_bound() {
        let breaker = Breaker::default();
        fail(&breaker);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            end_pause(&breaker);
            fail(&breaker);
            let State::Open { pause, .. } = *breaker.state() else { panic!("not open") };
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [400, 800, 1_600, 3_200, 5_000, 5_000, 5_000]);
    }

    #[test]
    fn a_try_that_was_given_up_leaves_the_next_request_to_try() {
        let breaker = Breaker::default();
        fail(&breaker);
        end_pause(&breaker);
        drop(breaker.pass().unwrap());
        assert!(breaker.pass().unwrap().is_probe());
    }

    #[test]
    fn a_late_answer_from_before_the_failure_does_not_close_it() {
        let breaker = Breaker::default();
        let early = breaker.pass().unwrap();
        fail(&breaker);
        early.succeeded();
        assert!(breaker.pass().is_none());
    }
}
