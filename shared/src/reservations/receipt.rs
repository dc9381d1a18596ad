//! A receipt as Redis keeps it: short text, since a million of them must fit.

use std::fmt;
use std::str::FromStr;

use crate::domain::{ActivityId, Signup, SignupStatus, Timestamp, UserId, Version};

/// `status version sequence [signed_up_at_ms]`: the status is 1 (signed up) or 2 (cancelled); the last field is left
/// out where it equals the version, as it does for a place that was never given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredReceipt {
    /// Whether the user holds a place.
    pub status: SignupStatus,
    /// Orders the facts about this user.
    pub version: Version,
    /// Which place of the activity was granted.
    pub sequence: u64,
    /// When the place was granted.
    pub signed_up_at: Timestamp,
}

impl StoredReceipt {
    /// The receipt of this fact.
    pub fn of(signup: &Signup) -> Self {
        let Signup { status, version, sequence, signed_up_at, .. } = *signup;
        Self { status, version, sequence, signed_up_at }
    }

    /// Whether the user holds a place.
    pub fn is_active(&self) -> bool {
        self.status == SignupStatus::SignedUp
    }

    /// The fact that this receipt records.
    pub fn into_signup(self, activity_id: ActivityId, user_id: UserId) -> Signup {
        let Self { status, version, sequence, signed_up_at } = self;
        Signup { activity_id, user_id, version, sequence, status, signed_up_at }
    }
}

/// The text is no receipt.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a receipt is \"status version sequence [signed_up_at_ms]\"")]
pub struct MalformedReceipt;

impl FromStr for StoredReceipt {
    type Err = MalformedReceipt;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.split(' ').map(|field| field.parse::<u64>().map_err(|_| MalformedReceipt));
        let mut required = || fields.next().unwrap_or(Err(MalformedReceipt));
        let (status, version, sequence) = (required()?, required()?, required()?);
        let signed_up_at_ms = fields.next().unwrap_or(Ok(version))?;
        if fields.next().is_some() {
            return Err(MalformedReceipt);
        }
        let status = u8::try_from(status).ok().and_then(SignupStatus::from_code).ok_or(MalformedReceipt)?;
        Ok(Self {
            status,
            version: Version::new(version).map_err(|_| MalformedReceipt)?,
            sequence,
            signed_up_at: Timestamp::from_ms(signed_up_at_ms).map_err(|_| MalformedReceipt)?,
        })
    }
}

impl fmt::Display for StoredReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.status.code(), self.version, self.sequence)?;
        if self.signed_up_at.as_ms() == self.version.get() {
            Ok(())
        } else {
            write!(f, " {}", self.signed_up_at.as_ms())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_reads_back_as_it_was_written() {
        for text in ["1 1796040000123 57", "2 1796040060456 57 1796040000123"] {
            assert_eq!(text.parse::<StoredReceipt>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn text_of_another_form_is_no_receipt() {
        for text in ["", "1", "1 2", "3 2 1", "1 0 1", "1 2 x", "1 2 3 4 5", "1  2 3", "256 2 3", "-1 2 3"] {
            assert_eq!(text.parse::<StoredReceipt>(), Err(MalformedReceipt), "{text:?}");
        }
    }
}
