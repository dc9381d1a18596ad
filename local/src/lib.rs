//! The whole Onrush system on one machine: private servers, the functions under `cargo lambda watch`, the broker
//! trigger and the schedule, the sale, the chaos, and the checks of the promises.

pub mod chaos;
pub mod cold_start;
pub mod demo;
pub mod exec;
pub mod functions;
pub mod https;
pub mod redis_link;
pub mod report;
pub mod sale;
pub mod schedule;
pub mod servers;
pub mod trigger;
pub mod up;
pub mod verify;
