//! The library behind every Onrush function.
//!
//! One module for each thing a sign-up meets on its way: [`domain`] (what it is, no I/O), [`reservations`] (Redis),
//! [`message`] and [`broker`] (RabbitMQ), [`store`] (MySQL); [`comparison`] looks whether the two ends agree. Around them:
//! [`config`] (settings), [`endpoint`] (addresses, logins, trust), [`http`] (callers and replies), [`telemetry`] (logs) and
//! [`metrics`].

pub mod broker;
pub mod comparison;
pub mod config;
pub mod domain;
pub mod endpoint;
pub mod http;
pub mod invocation;
pub mod message;
pub mod metrics;
pub mod reservations;
pub mod store;
pub mod telemetry;

/// A named point at which a test may end the process. Compiled only with the feature `failpoints`.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {
        $crate::fail::fail_point!($name);
    };
}

/// A named point at which a test may end the process. Compiled only with the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {};
}

#[cfg(feature = "failpoints")]
#[doc(hidden)]
pub use fail;
