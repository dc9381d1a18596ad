//! What the door said. Anything the contract does not name is an error, never taken for the nearest answer.

use std::time::Duration;

use serde::Deserialize;
use shared::domain::{ActivityId, Receipt, ReceiptStatus};

/// An answer to "I want a place".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// 202: a place was granted.
    Granted(Receipt),
    /// 200: this person had a place already.
    Repeated(Receipt),
    /// 409 `sold-out`.
    SoldOut,
    /// 503 or 429: ask again, perhaps not before some time.
    TryLater { reason: String, after: Option<Duration> },
    /// Whatever a sale should not see.
    Unexpected(String),
}

/// Reads the reply to `user`, who asked for a place in `activity`.
pub fn classify(status: u16, retry_after: Option<&str>, body: &[u8], activity: ActivityId, user: &str) -> Reply {
    match status {
        200 | 202 => match own_receipt(body, activity, user) {
            Ok(receipt) if status == 202 => Reply::Granted(receipt),
            Ok(receipt) => Reply::Repeated(receipt),
            Err(flaw) => Reply::Unexpected(format!("{status} {flaw}")),
        },
        409 if problem_code(body).as_deref() == Some("sold-out") => Reply::SoldOut,
        429 | 503 => Reply::TryLater { reason: named(status, body), after: retry_after.and_then(seconds) },
        _ => Reply::Unexpected(named(status, body)),
    }
}

fn own_receipt(body: &[u8], activity: ActivityId, user: &str) -> Result<Receipt, &'static str> {
    let receipt: Receipt = serde_json::from_slice(body).map_err(|_| "without a receipt")?;
    if receipt.activity_id != activity || receipt.user_id.as_str() != user {
        return Err("with the receipt of someone else");
    }
    if receipt.status == ReceiptStatus::Cancelled {
        return Err("with a cancelled receipt");
    }
    Ok(receipt)
}

#[derive(Deserialize)]
struct Problem {
    code: String,
}

/// The code of a problem document, if it looks like one.
fn problem_code(body: &[u8]) -> Option<String> {
    let Problem { code } = serde_json::from_slice(body).ok()?;
    let plain = code.len() <= 40 && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    plain.then_some(code)
}

fn named(status: u16, body: &[u8]) -> String {
    match problem_code(body) {
        Some(code) => format!("{status} {code}"),
        None => status.to_string(),
    }
}

fn seconds(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIVITY: ActivityId = ActivityId::new(42);

    fn receipt(activity: &str, user: &str, status: &str) -> Vec<u8> {
        format!(
            r#"{{"activityId":"{activity}","userId":"{user}","sequence":57,"status":"{status}",
                "signedUpAt":"2026-11-30T12:00:00.123Z"}}"#
        )
        .into_bytes()
    }

    fn problem(code: &str) -> Vec<u8> {
        format!(r#"{{"type":"about:blank","title":"t","status":409,"detail":"d","code":"{code}"}}"#).into_bytes()
    }

    fn reply(status: u16, body: &[u8]) -> Reply {
        classify(status, None, body, ACTIVITY, "alice")
    }

    #[test]
    fn a_202_grants_and_a_200_repeats_the_receipt_of_the_person_who_asked() {
        let expected: Receipt = serde_json::from_slice(&receipt("42", "alice", "queued")).unwrap();
        assert_eq!(reply(202, &receipt("42", "alice", "queued")), Reply::Granted(expected.clone()));
        assert_eq!(reply(200, &receipt("42", "alice", "queued")), Reply::Repeated(expected));
    }

    #[test]
    fn a_receipt_of_someone_else_or_of_another_activity_is_an_error() {
        for body in [receipt("42", "bob", "queued"), receipt("43", "alice", "queued")] {
            assert_eq!(reply(202, &body), Reply::Unexpected("202 with the receipt of someone else".into()));
        }
    }

    #[test]
    fn a_success_without_a_live_receipt_is_an_error() {
        for body in [&b""[..], b"{}", b"ok", &receipt("42", "alice", "lost")] {
            assert_eq!(reply(202, body), Reply::Unexpected("202 without a receipt".into()));
        }
        let cancelled = receipt("42", "alice", "cancelled");
        assert_eq!(reply(200, &cancelled), Reply::Unexpected("200 with a cancelled receipt".into()));
    }

    #[test]
    fn only_the_code_sold_out_is_sold_out() {
        assert_eq!(reply(409, &problem("sold-out")), Reply::SoldOut);
        assert_eq!(reply(409, &problem("not-open")), Reply::Unexpected("409 not-open".into()));
        assert_eq!(reply(409, b"sold-out"), Reply::Unexpected("409".into()));
        assert_eq!(reply(410, &problem("sold-out")), Reply::Unexpected("410 sold-out".into()));
    }

    #[test]
    fn a_503_or_429_asks_to_come_again_and_says_when() {
        let later = |status, retry_after| classify(status, retry_after, b"", ACTIVITY, "alice");
        let after = Some(Duration::from_secs(2));
        assert_eq!(later(503, Some("2")), Reply::TryLater { reason: "503".into(), after });
        assert_eq!(later(429, Some("soon")), Reply::TryLater { reason: "429".into(), after: None });
    }

    #[test]
    fn a_broken_server_is_an_error_and_its_text_stays_out_of_the_report() {
        assert_eq!(reply(500, b"boom"), Reply::Unexpected("500".into()));
        assert_eq!(reply(404, &problem("Not\\nFound")), Reply::Unexpected("404".into()));
    }
}
