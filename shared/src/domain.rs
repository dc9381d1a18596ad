//! What Onrush is about: activities, people, places. No I/O: nothing here can fail on a network.
//!
//! Ids, times and versions are parsed once, at the edge; a value of these types is valid for good.

mod activity;
mod ids;
mod signup;
mod time;

pub use activity::{Activity, ActivityState, Capacity, InvalidActivity, MAX_TITLE_CHARS, Occupancy};
pub use ids::{ActivityId, InvalidActivityId, InvalidUserId, MAX_USER_ID_BYTES, UserId};
pub use signup::{InvalidVersion, Receipt, ReceiptStatus, Signup, SignupStatus, Version};
pub use time::{InvalidTimestamp, Timestamp};
