//! Tests on real parts: components built from source, SQLite, and the
//! PostgreSQL cluster that `scripts/test` starts.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod api;
mod archive;
mod cli;
mod conformance;
mod database;
mod embed;
mod faults;
mod guests;
mod hostile;
mod hosts;
mod layers;
mod mutants;
mod neighbours;
mod plugin_test;
mod poison;
mod recording;
mod router;
mod sandbox;
mod scenarios;
mod secrets;
mod stream;
mod web;
