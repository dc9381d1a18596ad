//! The library behind every Onrush function.
//!
//! One module for each thing a sign-up meets on its way: [`domain`] (what it is, no I/O), [`reservations`] (Redis),
//! [`message`] and [`broker`] (RabbitMQ), [`store`] (MySQL). Around them: [`config`] (settings), [`http`] (callers and
//! replies) and [`telemetry`] (logs).

pub mod broker;
pub mod config;
pub mod domain;
pub mod http;
pub mod message;
pub mod reservations;
pub mod store;
pub mod telemetry;
