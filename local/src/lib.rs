//! The whole Onrush system on one machine: private servers, the functions under `cargo lambda watch`, the broker
//! trigger, the sale, and the checks of the promises.

pub mod exec;
pub mod https;
pub mod report;
pub mod sale;
pub mod servers;
pub mod verify;
