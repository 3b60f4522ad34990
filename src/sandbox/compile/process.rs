//! The host's side of the compiler's process: it is given one component, and
//! neither its end nor its silence keeps the host waiting for long.

use std::{
    io,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::Path,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    time::{sleep, timeout},
};

use super::{
    Allowance, Limit, Refusal,
    child::{ARTIFACT, REFUSAL},
    walk,
};
use crate::{model::names::storable, sandbox::UploadError};

/// The subcommand of `outrigger` that is the other side.
pub(super) const SUBCOMMAND: &str = "compile-component";

/// How many times its time on a processor it may take by the clock: whatever
/// else the machine does goes first.
const PATIENCE: u32 = 5;

/// Longest text that is read of what it complains of, in bytes.
const COMPLAINT_MAX: u64 = 4 << 10;

/// Longest refusal, in bytes.
const REFUSAL_MAX: u64 = 64 << 10;

/// How often a process is looked at that is about to end.
const LOOK: Duration = Duration::from_millis(2);

/// Compiles a component in a process of its own. When this is dropped, the
/// process is killed.
pub(super) async fn compile(
    program: &Path,
    bytes: &[u8],
    allowance: Allowance,
) -> Result<Vec<u8>, UploadError> {
    let away = |error: io::Error| {
        tracing::error!(program = %program.display(), %error, "the compiler can't be started");
        UploadError::CompilerAway { message: error.to_string() }
    };
    let (mut running, pipes) = Running::start(program, allowance).map_err(away)?;
    let ended = timeout(allowance.time.get() * PATIENCE, async {
        let said = pipes.talk(bytes).await;
        // Where there is no answer, how it ended says why.
        let status = running.end().await;
        (said, status)
    });
    let Ok((said, status)) = ended.await else {
        return Err(UploadError::CompilerTime { max: allowance.time });
    };
    let status = status.map_err(away)?;
    match said.answer {
        Ok(Answer::Artifact(code)) if status.success() => Ok(code),
        Ok(Answer::Refusal(refusal)) if status.success() => Err(refusal.explain(allowance)),
        Ok(Answer::TooLarge(found)) => {
            Err(UploadError::TooComplex { limit: Limit::Artifact, found })
        }
        _ => Err(crashed(status, &said.complaint, allowance)),
    }
}

/// A process that is killed when this is dropped, and waited for elsewhere.
struct Running(Option<Child>);

impl Running {
    fn start(program: &Path, allowance: Allowance) -> io::Result<(Self, Pipes)> {
        let mut child = Command::new(program)
            .arg0("outrigger")
            .arg(SUBCOMMAND)
            .arg(format!("--memory={}", allowance.memory))
            .arg(format!("--time={}", allowance.time))
            .env_clear()
            // Its allocator would reserve more at once than it may use in all.
            .env("MIMALLOC_ARENA_RESERVE", "0")
            .current_dir("/")
            // What is typed at the host's terminal is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipes = Pipes::of(child.stdin.take(), child.stdout.take(), child.stderr.take());
        let running = Self(Some(child));
        Ok((running, pipes?))
    }

    /// Waits for its end, which is near: it has closed its pipes.
    async fn end(&mut self) -> io::Result<ExitStatus> {
        loop {
            let status = match &mut self.0 {
                Some(child) => child.try_wait()?,
                None => return Err(io::Error::other("it was waited for already")),
            };
            if let Some(status) = status {
                self.0 = None;
                return Ok(status);
            }
            sleep(LOOK).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // Whatever has ended by itself needs no killing.
        let _ = child.kill();
        // Giving back a gigabyte takes a moment, and is not the runtime's work.
        let reap = move || drop(child.wait());
        let _ = std::thread::Builder::new().name("compiler-end".into()).spawn(reap);
    }
}

/// What came of a talk.
enum Answer {
    Artifact(Vec<u8>),
    Refusal(Refusal),
    /// So many bytes were announced.
    TooLarge(u64),
}

struct Pipes {
    to: pipe::Sender,
    from: pipe::Receiver,
    complaints: pipe::Receiver,
}

impl Pipes {
    fn of(
        to: Option<ChildStdin>,
        from: Option<ChildStdout>,
        complaints: Option<ChildStderr>,
    ) -> io::Result<Self> {
        let missing = || io::Error::other("a pipe is missing");
        let receiver = |end: OwnedFd| pipe::Receiver::from_owned_fd(end);
        Ok(Self {
            to: pipe::Sender::from_owned_fd(to.ok_or_else(missing)?.into())?,
            from: receiver(from.ok_or_else(missing)?.into())?,
            complaints: receiver(complaints.ok_or_else(missing)?.into())?,
        })
    }

    /// Sends a component; answers what came of it, and what was complained of.
    async fn talk(self, bytes: &[u8]) -> Said {
        let Self { mut to, mut from, complaints } = self;
        let talk = async move {
            let sent = async {
                to.write_all(&(bytes.len() as u64).to_le_bytes()).await?;
                to.write_all(bytes).await?;
                answer(&mut from).await
            };
            (sent.await, to)
        };
        let complaint = async move {
            let mut text = Vec::new();
            // What can't be read says nothing.
            let _ = complaints.take(COMPLAINT_MAX).read_to_end(&mut text).await;
            storable(String::from_utf8_lossy(&text).trim(), 1 << 10)
        };
        let ((answer, open), complaint) = tokio::join!(talk, complaint);
        Said { answer, complaint, _open: open }
    }
}

/// What a process said before its end.
struct Said {
    answer: io::Result<Answer>,
    complaint: String,
    /// Says to the process that somebody waits.
    _open: pipe::Sender,
}

async fn answer(from: &mut pipe::Receiver) -> io::Result<Answer> {
    let what = from.read_u8().await?;
    let length = from.read_u64_le().await?;
    match what {
        ARTIFACT if walk::within(Limit::Artifact, length).is_err() => Ok(Answer::TooLarge(length)),
        ARTIFACT => Ok(Answer::Artifact(read(from, length).await?)),
        REFUSAL if length <= REFUSAL_MAX => {
            let bytes = read(from, length).await?;
            serde_json::from_slice(&bytes).map(Answer::Refusal).map_err(io::Error::from)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn read(from: &mut pipe::Receiver, length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Why a process ended without an answer.
fn crashed(status: ExitStatus, complaint: &str, allowance: Allowance) -> UploadError {
    let signal = status.signal();
    if signal == Some(Signal::XCPU.as_raw()) {
        return UploadError::CompilerTime { max: allowance.time };
    }
    // The kernel's choice when the machine has none left, or its allocator's.
    let starved = complaint.contains("memory allocation of") || complaint.contains("out of memory");
    if starved || signal == Some(Signal::KILL.as_raw()) {
        return UploadError::CompilerMemory { max: allowance.memory };
    }
    let complaint = complaint.lines().find(|line| !line.is_empty()).unwrap_or("it said nothing");
    UploadError::CompilerCrashed { message: format!("{status}: {complaint}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::{Bytes, Span};

    const ALLOWANCE: Allowance = Allowance { memory: Bytes::mib(7), time: Span::from_secs(3) };

    #[test]
    fn how_it_ended_says_why() {
        let of = |wait: i32, complaint: &str| {
            crashed(ExitStatus::from_raw(wait), complaint, ALLOWANCE).to_string()
        };
        let (abort, segv) = (Signal::ABORT.as_raw(), Signal::SEGV.as_raw());
        assert!(of(Signal::XCPU.as_raw(), "").contains("`compile_time` is 3s"));
        assert!(of(Signal::KILL.as_raw(), "").contains("`compile_memory` is 7MiB"));
        let memory = of(abort, "memory allocation of 64 bytes failed");
        assert!(memory.contains("`compile_memory` is 7MiB"), "{memory}");
        assert!(of(segv, "").contains("SIGSEGV"), "{}", of(segv, ""));
        let panic = of(101 << 8, "\nthread 'main' panicked at x.rs:1:2:\nindex out of bounds");
        assert!(panic.contains("exit status: 101: thread 'main' panicked"), "{panic}");
    }

    #[tokio::test]
    async fn a_program_that_is_none_is_the_hosts_fault() {
        for program in ["/nowhere/outrigger", "/"] {
            let error = compile(Path::new(program), b"", ALLOWANCE).await.expect_err(program);
            assert_eq!(error.reason(), "compilerAway", "{error}");
        }
    }

    #[tokio::test]
    async fn a_program_that_talks_otherwise_is_refused() {
        for program in ["/bin/true", "/bin/cat", "/bin/false"] {
            let error = compile(Path::new(program), b"x", ALLOWANCE).await.expect_err(program);
            assert_eq!(error.reason(), "compilerCrashed", "{program}: {error}");
        }
    }
}
