//! Runs plugins: WebAssembly components that can do only what they are given.
//!
//! [`Sandbox::load`] checks and compiles an upload (`upload`), [`Plugin::call`]
//! runs it once in a store of its own (`call`, `live`) and says everything that
//! came of it in one [`Report`]; [`Batch::call`] may use the store of an earlier
//! call of its trigger. What a guest may use up is in `caps`, and held to it by
//! `limits` (memory; `budget` that of all calls) and `meter` (processor); what it
//! may ask for is in `emit` and `state`, what it printed in `logs`, what went
//! wrong in `failure`; `redact` keeps `secrets` out of both. `v1` alone knows the
//! types that are generated from the WIT.
//! [`Asked`] holds an application's own code to the same bounds and checks.

mod asked;
mod batch;
mod budget;
mod call;
mod caps;
mod data;
mod emit;
mod engine;
mod failure;
mod http;
mod limits;
mod live;
mod logs;
mod meta;
mod meter;
mod redact;
mod refusal;
mod secrets;
mod settings;
mod state;
mod ticker;
mod upload;
mod v1;

pub use asked::Asked;
pub use batch::Batch;
pub use call::{Call, Plugin, Report, StateReader, TriggerView};
pub use emit::{Due, Wish};
pub use engine::{Sandbox, SandboxError};
pub use http::{HttpSettings, Network, Resolve};
pub use refusal::Refusal;
pub use secrets::Secrets;
pub use settings::Settings;
pub use upload::UploadError;
