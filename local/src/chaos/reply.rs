//! What a reply says. Anything that the API does not name is strange, never taken for the nearest answer.

use serde::Deserialize;
use shared::domain::{Receipt, ReceiptStatus};

use super::history::{Operation, Outcome, Pair};

#[derive(Deserialize)]
struct Problem {
    code: String,
}

/// Reads the reply to a request of this person.
pub fn read(operation: Operation, status: u16, body: &[u8], pair: &Pair) -> Outcome {
    if matches!(status, 200 | 202) {
        return match own_receipt(body, pair) {
            Ok(receipt) => of_receipt(operation, status, &receipt),
            Err(flaw) => Outcome::Strange { what: format!("{status} {flaw}") },
        };
    }
    let code = serde_json::from_slice(body).map(|Problem { code }| code).ok();
    let named = |code: Option<String>| code.map_or_else(|| status.to_string(), |code| format!("{status} {code}"));
    match (operation, status, code.as_deref()) {
        (Operation::SignUp, 409, Some("sold-out")) => Outcome::SoldOut,
        (Operation::Look | Operation::Cancel, 404, Some("not-signed-up")) => Outcome::NotSignedUp,
        (_, 503, Some("unavailable")) => Outcome::Unknown { why: named(code) },
        // The emulator's own, where the function ended; API Gateway's would be the same.
        (_, 500..=599, None) => Outcome::Unknown { why: named(None) },
        _ => Outcome::Strange { what: named(code) },
    }
}

fn own_receipt(body: &[u8], pair: &Pair) -> Result<Receipt, &'static str> {
    let receipt: Receipt = serde_json::from_slice(body).map_err(|_| "without a receipt")?;
    if receipt.activity_id != pair.activity || receipt.user_id != pair.user {
        return Err("with the receipt of someone else");
    }
    Ok(receipt)
}

fn of_receipt(operation: Operation, status: u16, receipt: &Receipt) -> Outcome {
    let sequence = receipt.sequence;
    match (operation, status, receipt.status) {
        (Operation::SignUp, 202, ReceiptStatus::Queued) => Outcome::Granted { sequence },
        (Operation::Cancel, 202, ReceiptStatus::Cancelled) => Outcome::Cancelled { sequence },
        (Operation::Cancel | Operation::Look, 200, ReceiptStatus::Cancelled) => Outcome::WasCancelled { sequence },
        (Operation::SignUp | Operation::Look, 200, ReceiptStatus::Queued) => Outcome::Held { sequence, queued: true },
        (Operation::SignUp | Operation::Look, 200, ReceiptStatus::Confirmed) => {
            Outcome::Held { sequence, queued: false }
        }
        (_, _, now) => Outcome::Strange { what: format!("{status} with a receipt that is {now:?}") },
    }
}

#[cfg(test)]
mod tests {
    use shared::domain::ActivityId;

    use super::*;

    fn reply(operation: Operation, status: u16, body: &str) -> Outcome {
        let pair = Pair { activity: ActivityId::new(42), user: "alice".parse().unwrap() };
        read(operation, status, body.as_bytes(), &pair)
    }

    fn receipt(status: &str) -> String {
        format!(
            r#"{{"activityId":"42","userId":"alice","sequence":57,"status":"{status}",
                "signedUpAt":"2026-11-30T12:00:00.123Z"}}"#
        )
    }

    fn problem(code: &str) -> String {
        format!(r#"{{"code":"{code}"}}"#)
    }

    #[test]
    fn each_reply_of_the_api_is_understood() {
        let sequence = 57;
        for (operation, status, body, outcome) in [
            (Operation::SignUp, 202, receipt("queued"), Outcome::Granted { sequence }),
            (Operation::SignUp, 200, receipt("queued"), Outcome::Held { sequence, queued: true }),
            (Operation::SignUp, 200, receipt("confirmed"), Outcome::Held { sequence, queued: false }),
            (Operation::SignUp, 409, problem("sold-out"), Outcome::SoldOut),
            (Operation::Cancel, 202, receipt("cancelled"), Outcome::Cancelled { sequence }),
            (Operation::Cancel, 200, receipt("cancelled"), Outcome::WasCancelled { sequence }),
            (Operation::Cancel, 404, problem("not-signed-up"), Outcome::NotSignedUp),
            (Operation::Look, 200, receipt("confirmed"), Outcome::Held { sequence, queued: false }),
            (Operation::Look, 200, receipt("cancelled"), Outcome::WasCancelled { sequence }),
            (Operation::Look, 404, problem("not-signed-up"), Outcome::NotSignedUp),
            (Operation::Look, 503, problem("unavailable"), Outcome::Unknown { why: "503 unavailable".into() }),
            (Operation::Look, 502, "bad gateway".into(), Outcome::Unknown { why: "502".into() }),
        ] {
            assert_eq!(reply(operation, status, &body), outcome, "{operation:?} {status} {body}");
        }
    }

    #[test]
    fn any_other_reply_is_strange() {
        for (operation, status, body) in [
            (Operation::SignUp, 202, receipt("confirmed")),
            (Operation::SignUp, 202, receipt("queued").replace("alice", "bob")),
            (Operation::SignUp, 202, receipt("queued").replace("\"42\"", "\"43\"")),
            (Operation::SignUp, 200, receipt("cancelled")),
            (Operation::Cancel, 202, receipt("queued")),
            (Operation::Cancel, 409, problem("sold-out")),
            (Operation::SignUp, 404, problem("not-signed-up")),
            (Operation::SignUp, 404, problem("activity-not-found")),
            (Operation::Look, 500, problem("internal-error")),
            (Operation::Look, 400, problem("bad-request")),
            (Operation::SignUp, 202, String::new()),
            (Operation::SignUp, 302, String::new()),
        ] {
            let outcome = reply(operation, status, &body);
            assert!(matches!(outcome, Outcome::Strange { .. }), "{operation:?} {status} {body}: {outcome:?}");
        }
    }
}
