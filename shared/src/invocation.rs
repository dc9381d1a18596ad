//! How much time an invocation has.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// How long before the invocation's deadline no new work is begun, so that the reply still leaves.
const RESERVE_BEFORE_DEADLINE: Duration = Duration::from_secs(2);

/// Lambda gives no invocation more than 15 minutes.
const LONGEST_INVOCATION_MS: u64 = 15 * 60 * 1_000;

/// What an invocation is taken to have where its deadline makes no sense: the machine's clock is off.
const ASSUMED: Duration = Duration::from_secs(20);

/// By how much a deadline may have passed when the work begins.
const LATE_MS: u64 = 1_000;

/// When to stop beginning new work: a moment before the invocation ends. Lambda says when that is, in ms since 1970;
/// `cargo lambda watch` says in how many ms.
pub fn working_deadline(invocation_deadline_ms: u64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let left = match invocation_deadline_ms {
        left_ms if left_ms <= LONGEST_INVOCATION_MS => Duration::from_millis(left_ms),
        at_ms if at_ms > now_ms + LONGEST_INVOCATION_MS || at_ms + LATE_MS < now_ms => {
            tracing::warn!(at_ms, now_ms, "the deadline makes no sense; is the clock of this machine off?");
            ASSUMED
        }
        at_ms => Duration::from_millis(at_ms.saturating_sub(now_ms)),
    };
    Instant::now() + left.saturating_sub(RESERVE_BEFORE_DEADLINE.min(left / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(invocation_deadline_ms: u64) -> u64 {
        working_deadline(invocation_deadline_ms).saturating_duration_since(Instant::now()).as_secs_f32().round() as u64
    }

    #[test]
    fn work_ends_two_seconds_before_the_invocation_or_half_way_through_a_short_one() {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert_eq!((left(now_ms + 60_000), left(60_000), left(2_000)), (58, 58, 1));
    }

    #[test]
    fn a_clock_that_is_an_hour_off_leaves_some_time_to_work_and_not_too_much() {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert_eq!((left(now_ms - 3_540_000), left(now_ms + 3_660_000)), (18, 18));
    }
}
