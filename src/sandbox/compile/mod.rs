//! From a component's bytes to an artifact: native code in the engine's format.
//!
//! What a stranger wrote is counted first (`walk`, `limit`), then compiled by a
//! child process that can use up only what it is given: `process` is the
//! host's side of it, `child` the other. `turns` says who is next.

mod child;
mod limit;
#[cfg(unix)]
mod process;
mod turns;
mod walk;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasmtime::{Engine, OutOfMemory};

pub use child::{Allowance, serve as compile_for_parent};
use limit::Excess;
pub use limit::Limit;
pub use turns::Reservation;
pub(super) use turns::{Turn, Turns};

use super::{Sandbox, UploadError, upload};

/// What compiles components.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Compiler {
    /// This process. What a component consists of is checked, but the memory
    /// and the time that compiling it takes have no bound: for components of
    /// one's own.
    #[default]
    Inside,
    /// The program `outrigger` of this version, at this path: run once for
    /// each component, within bounds. On Unix alone; elsewhere it is as
    /// [`Compiler::Inside`].
    Program(PathBuf),
}

impl Compiler {
    /// The program that runs at the moment, which must be `outrigger`.
    #[must_use]
    pub fn own() -> Self {
        // The very file that this process runs, even if an upgrade has put
        // another one in its place by now.
        if cfg!(target_os = "linux") {
            return Self::Program("/proc/self/exe".into());
        }
        std::env::current_exe().map_or(Self::Inside, Self::Program)
    }
}

/// What compiling a component came to.
pub(super) struct Artifact {
    /// Holds the code, behind what a cache has put before it.
    bytes: Vec<u8>,
    start: usize,
    /// How long it took when it was compiled.
    pub(super) took: Duration,
}

impl Artifact {
    /// An artifact that begins at `start` of these bytes.
    pub(super) fn new(bytes: Vec<u8>, start: usize, took: Duration) -> Self {
        Self { bytes, start, took }
    }

    /// Native code in the engine's format.
    pub(super) fn code(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Sandbox {
    /// Compiles a component on a turn, which is kept until nothing of it runs
    /// any more.
    pub(super) async fn compile(
        &self,
        bytes: Bytes,
        turn: &Arc<Turn>,
    ) -> Result<Vec<u8>, UploadError> {
        match &self.settings.compiler {
            #[cfg(unix)]
            Compiler::Program(program) => {
                process::compile(program, &bytes, Allowance::of(&self.settings)).await
            }
            _ => {
                let (engine, turn) = (self.engine.clone(), Arc::clone(turn));
                let inside = move || {
                    // Held until the end, even if nobody waits for it.
                    let _turn = turn;
                    artifact(&engine, &bytes)
                };
                let allowance = Allowance::of(&self.settings);
                off_runtime(inside).await?.map_err(|refusal| refusal.explain(allowance))
            }
        }
    }
}

/// Why there is no artifact, on its way from the child to the host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Refusal {
    /// There is too much of something.
    Excess(Excess),
    /// There was not enough memory.
    Memory,
    /// The compiler's message and its causes.
    Broken(String),
}

impl Refusal {
    /// The same for its author.
    fn explain(self, allowance: Allowance) -> UploadError {
        match self {
            Self::Excess(Excess { limit, found }) => UploadError::TooComplex { limit, found },
            Self::Memory => UploadError::CompilerMemory { max: allowance.memory },
            Self::Broken(message) => upload::broken(message),
        }
    }
}

/// Checks a component and compiles it.
fn artifact(engine: &Engine, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    walk::check(bytes).map_err(Refusal::Excess)?;
    let code = engine.precompile_component(bytes).map_err(|error| {
        if error.is::<OutOfMemory>() {
            Refusal::Memory
        } else {
            Refusal::Broken(upload::chain(&error))
        }
    })?;
    walk::within(Limit::Artifact, code.len() as u64).map_err(Refusal::Excess)?;
    Ok(code)
}

/// Off the runtime: what reads files or hashes megabytes.
pub(super) async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, UploadError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| UploadError::CompilerCrashed { message: error.to_string() })
}
