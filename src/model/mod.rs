//! What the words mean: pure types and decisions, no I/O.
//!
//! `event` is what an application records, `trigger` what to do with which
//! events, `effect` what a trigger asked for, `outcome` what became of one
//! invocation and what follows from it.

pub mod attempt;
pub mod base64;
pub mod capability;
pub mod effect;
pub mod event;
pub mod http;
pub mod names;
pub mod outcome;
pub mod pattern;
pub mod plugin;
pub mod range;
pub mod retry;
pub mod secret;
pub mod trigger;
pub mod units;

/// Milliseconds since the Unix epoch, by the database's clock.
pub type UnixMillis = i64;

/// A hash class of ordering keys: the unit of ownership between hosts.
pub type Lane = i16;
