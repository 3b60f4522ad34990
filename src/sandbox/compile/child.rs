//! The compiler's own process: it binds itself before it reads a byte that a
//! stranger wrote, compiles one component, and ends.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
    thread,
};

use wasmtime::Engine;

use super::{super::engine, Refusal, artifact};
use crate::{
    model::units::{Bytes, Span},
    sandbox::Settings,
};

/// What comes before an answer's bytes: what they are, and their number.
pub(super) const ARTIFACT: u8 = b'a';
pub(super) const REFUSAL: u8 = b'r';

/// What a compilation may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Address space of its process.
    pub memory: Bytes,
    /// Time on a processor.
    pub time: Span,
}

impl Allowance {
    /// What the settings allow.
    pub(super) fn of(settings: &Settings) -> Self {
        Self { memory: settings.compile_memory, time: settings.compile_time }
    }
}

/// Compiles one component for the process that started this one: its length
/// (8 bytes, little-endian) and its bytes come from standard input, which stays
/// open for as long as somebody waits. The answer goes to standard output.
#[must_use]
pub fn serve(allowance: Allowance) -> ExitCode {
    match run(allowance) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(allowance: Allowance) -> io::Result<()> {
    bind(allowance)?;
    let bytes = component()?;
    thread::Builder::new().stack_size(256 << 10).spawn(end_with_parent)?;
    let mut config = engine::config_without_pool(&Settings::default());
    // One thread, so that the limit on its time is one by the clock too, and
    // the other processors are left to events.
    config.parallel_compilation(false);
    let answer = match Engine::new(&config) {
        Ok(engine) => artifact(&engine, &bytes),
        Err(error) => return Err(io::Error::other(error.to_string())),
    };
    let mut out = io::stdout().lock();
    match answer {
        Ok(code) => send(&mut out, ARTIFACT, &code),
        Err(refusal) => send(&mut out, REFUSAL, &encoded(&refusal)?),
    }
}

fn encoded(refusal: &Refusal) -> io::Result<Vec<u8>> {
    serde_json::to_vec(refusal).map_err(io::Error::from)
}

fn send(out: &mut impl Write, what: u8, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&[what])?;
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)?;
    out.flush()
}

fn component() -> io::Result<Vec<u8>> {
    let mut from = io::stdin().lock();
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_le_bytes(length)).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Nothing more is ever sent: when there is an end, the host is gone. (A signal
/// at the parent's death comes at that of the thread already that started this
/// process, which in an application may be any.)
fn end_with_parent() {
    // Whatever it is, it is not what was agreed.
    let _ = io::stdin().lock().read(&mut [0]);
    std::process::abort();
}

/// Gives up all that compiling doesn't need.
#[cfg(unix)]
fn bind(allowance: Allowance) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

    // Where the machine has no memory left, it is this process that goes; and
    // it is called what it is. Not everywhere are there such files.
    for (file, text) in [("oom_score_adj", "1000"), ("comm", "outrigger-compi")] {
        let _ = std::fs::write(format!("/proc/self/{file}"), text);
    }
    // Threads inherit it, and there are none yet.
    setpriority_process(None, 19)?;
    let seconds = allowance.time.get().as_secs().max(1);
    let memory = allowance.memory.get();
    for (resource, soft, hard) in [
        (Resource::As, memory, memory),
        // At the first it is told that its time is up, which says more to the
        // host than how it ends at the second.
        (Resource::Cpu, seconds, seconds + 1),
        // It writes to pipes alone.
        (Resource::Fsize, 0, 0),
        (Resource::Nofile, 16, 16),
        (Resource::Core, 0, 0),
    ] {
        // The operator's own limits may be lower; they can't be raised.
        let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limit = Rlimit { current: Some(soft.min(most)), maximum: Some(hard.min(most)) };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn bind(_: Allowance) -> io::Result<()> {
    Ok(())
}
