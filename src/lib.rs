//! Outrigger: an event router for the transactional outbox whose triggers are
//! WebAssembly plugins.
//!
//! An application commits an event row in its own transaction. A host claims
//! the row, runs the triggers that match it, each call in a sandbox of its own,
//! and commits what they did together with the acknowledgement.
//!
//! # The map
//!
//! In the order in which it reads best:
//!
//! | Module | What it is |
//! |---|---|
//! | [`model`] | what the words mean: events, triggers, effects, outcomes; pure types and decisions |
//! | [`secrets`] | seals what is secret, and opens it |
//! | [`store`] | everything that is kept, behind three traits; PostgreSQL and SQLite |
//! | [`sandbox`] | checks, compiles and runs plugins, each call in bounds |
//! | [`targets`] | what a trigger delivers to |
//! | [`router`] | from claimed rows to settled ones: claims, order, leases, retries |
//! | [`archive`] | old events as files, before they are deleted |
//! | [`api`] | the HTTP interface |
//! | [`metrics`] | counters of one host, for Prometheus |
//! | [`telemetry`] | what a host says about itself |
//! | [`config`] | what a host is told: `outrigger.toml` and `OUTRIGGER_…` variables |
//! | [`cli`] | the commands: `serve` runs all of the above |
//! | [`embed`] | for applications: the router in one's own process, with closures as targets |
//! | [`outbox`] | for applications: record an event in one's own transaction |
//! | [`inbox`] | for consumers: do each message's work once |
//!
//! `router` knows `store` and `targets` by their traits alone, `api` hands
//! requests to the store, and only `cli` and `embed` put everything together. A row's life:
//! `router::poller` claims and matches it, `router::executor` calls its
//! triggers, `router::settler` writes the results.

pub mod api;
pub mod archive;
pub mod cli;
pub mod config;
pub mod embed;
pub mod inbox;
pub mod metrics;
pub mod model;
pub mod outbox;
pub mod router;
pub mod sandbox;
pub mod secrets;
pub mod store;
pub mod targets;
pub mod telemetry;
