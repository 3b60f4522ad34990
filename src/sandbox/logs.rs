//! An attempt's log: the `log` interface, standard output and standard error,
//! kept whatever the outcome.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::{
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};

use super::{
    Settings,
    caps::{Cap, Caps},
};
use crate::model::{
    attempt::{Level, LogLine, Source},
    names::storable,
    units::Bytes as Size,
};

/// What a line costs beside its text, so that empty ones come to an end too.
const LINE_COST: usize = 32;

/// Bytes that a stream takes at once.
const CHUNK: usize = 64 << 10;

/// Lines of standard error that a failure quotes, and their bytes.
const TAIL: (usize, usize) = (6, 2 << 10);

/// What every panic in Rust ends with; guests have no environment.
const HINT: &str = "note: run with `RUST_BACKTRACE";

/// The log of a call that runs; its streams share it, and stay with the guest
/// when another call follows.
#[derive(Debug, Clone)]
pub(super) struct Logs(Arc<Mutex<Book>>);

#[derive(Debug)]
struct Book {
    began: Instant,
    max: Cap<Size>,
    line_max: usize,
    lines: Vec<LogLine>,
    bytes: usize,
    dropped: Dropped,
    stdout: Partial,
    stderr: Partial,
    tail: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Dropped {
    lines: u64,
    bytes: u64,
}

/// A line whose end hasn't come yet.
#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    cut: bool,
}

impl Logs {
    /// An empty log that begins now.
    pub(super) fn new(caps: &Caps, settings: &Settings) -> Self {
        Self(Arc::new(Mutex::new(Book::new(caps, settings))))
    }

    /// Begins the log of the next call.
    pub(super) fn begin(&self, caps: &Caps, settings: &Settings) {
        *self.book() = Book::new(caps, settings);
    }

    /// Adds a message.
    pub(super) fn push(&self, level: Level, source: Source, text: &str) {
        self.book().push(level, source, text);
    }

    /// A stream that adds each line printed.
    pub(super) fn stream(&self, source: Source) -> Printed {
        Printed { logs: self.clone(), source }
    }

    /// Ends the log: unfinished lines are added, and a mark if lines are missing.
    /// Also returns the last lines of standard error.
    pub(super) fn finish(&self) -> (Vec<LogLine>, String) {
        let mut book = self.book();
        book.end_line(Source::Stdout);
        book.end_line(Source::Stderr);
        let Dropped { lines, bytes } = book.dropped;
        if lines > 0 {
            let cap = book.max;
            let text = format!("{lines} more lines ({bytes} bytes) were dropped; {cap}");
            let mark = book.line(Level::Warn, Source::Host, text);
            book.lines.push(mark);
        }
        let tail = std::mem::take(&mut book.tail);
        (std::mem::take(&mut book.lines), Vec::from(tail).join("\n"))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn new(caps: &Caps, settings: &Settings) -> Self {
        Self {
            began: Instant::now(),
            max: caps.log_bytes,
            line_max: settings.log_line_bytes.as_usize(),
            lines: Vec::new(),
            bytes: 0,
            dropped: Dropped::default(),
            stdout: Partial::default(),
            stderr: Partial::default(),
            tail: VecDeque::new(),
        }
    }

    fn line(&self, level: Level, source: Source, text: String) -> LogLine {
        let at_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        LogLine { at_us, level, source, text }
    }

    fn push(&mut self, level: Level, source: Source, text: &str) {
        let cost = text.len().min(self.line_max) + LINE_COST;
        // What follows a dropped line is dropped too: a log has no holes.
        if self.dropped.lines > 0 || self.bytes + cost > self.max.max.as_usize() {
            self.dropped.lines += 1;
            self.dropped.bytes += text.len() as u64;
            return;
        }
        self.bytes += cost;
        let line = self.line(level, source, storable(text, self.line_max));
        self.lines.push(line);
    }

    fn print(&mut self, source: Source, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.append(source, &bytes[..end]);
            self.end_line(source);
            bytes = &bytes[end + 1..];
        }
        self.append(source, bytes);
    }

    fn append(&mut self, source: Source, bytes: &[u8]) {
        // One more than fits, so that `storable` sees that there was more.
        let max = self.line_max + 1;
        let partial = self.partial(source);
        let room = max.saturating_sub(partial.bytes.len());
        partial.cut |= bytes.len() > room;
        partial.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self, source: Source) {
        let partial = std::mem::take(self.partial(source));
        if partial.bytes.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&partial.bytes);
        let text = if partial.cut { &text } else { text.strip_suffix('\r').unwrap_or(&text) };
        let level = if source == Source::Stderr { Level::Warn } else { Level::Info };
        if source == Source::Stderr && !text.starts_with(HINT) {
            self.tail.push_back(storable(text, TAIL.1 / 2));
            while self.tail.len() > TAIL.0
                || self.tail.iter().map(String::len).sum::<usize>() > TAIL.1
            {
                self.tail.pop_front();
            }
        }
        self.push(level, source, text);
    }

    fn partial(&mut self, source: Source) -> &mut Partial {
        match source {
            Source::Stderr => &mut self.stderr,
            _ => &mut self.stdout,
        }
    }
}

/// Standard output or error of a guest.
#[derive(Debug, Clone)]
pub(super) struct Printed {
    logs: Logs,
    source: Source,
}

impl IsTerminal for Printed {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Printed {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    /// Asked for by WASI 0.3 alone, which isn't offered.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }
}

#[async_trait::async_trait]
impl Pollable for Printed {
    async fn ready(&mut self) {}
}

impl OutputStream for Printed {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.logs.book().print(self.source, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::trigger::Limits;

    fn caps(settings: &Settings) -> Caps {
        Caps::of(&Limits::default(), settings)
    }

    fn logs_of(settings: &Settings) -> Logs {
        Logs::new(&caps(settings), settings)
    }

    fn logs() -> Logs {
        logs_of(&Settings {
            log_bytes: Size::kib(1),
            log_line_bytes: Size::kib(0),
            ..Settings::default()
        })
    }

    fn texts(lines: &[LogLine]) -> Vec<(Source, &str)> {
        lines.iter().map(|line| (line.source, line.text.as_str())).collect()
    }

    #[test]
    fn output_is_kept_by_line_to_the_last_partial_one() {
        let logs = logs_of(&Settings::default());
        let mut out = logs.stream(Source::Stdout);
        let mut err = logs.stream(Source::Stderr);
        out.write(Bytes::from_static(b"one\r\ntw")).expect("written");
        err.write(Bytes::from_static(b"oops\xff\n")).expect("written");
        out.write(Bytes::from_static(b"o\n\n\0three")).expect("written");
        logs.push(Level::Debug, Source::Log, "two\nlines");
        let (lines, tail) = logs.finish();
        assert_eq!(
            texts(&lines),
            [
                (Source::Stdout, "one"),
                (Source::Stderr, "oops\u{fffd}"),
                (Source::Stdout, "two"),
                (Source::Log, "two\nlines"),
                (Source::Stdout, "\u{fffd}three"),
            ]
        );
        assert_eq!(tail, "oops\u{fffd}");
    }

    #[test]
    fn a_log_and_its_lines_have_an_end() {
        let logs = logs_of(&Settings {
            log_bytes: Size::kib(1),
            log_line_bytes: "100B".parse().expect("a size"),
            ..Settings::default()
        });
        let mut err = logs.stream(Source::Stderr);
        for n in 0..100 {
            err.write(Bytes::from(vec![b'x'; 60])).expect("written");
            err.write(Bytes::from(format!("{n}{}\n", "y".repeat(60)))).expect("written");
        }
        let (lines, tail) = logs.finish();
        assert_eq!(lines.len(), 8);
        assert!(lines[0].text.ends_with("y… (cut)"), "{}", lines[0].text);
        assert!(lines[7].text.starts_with("93 more lines"), "{}", lines[7].text);
        assert!(lines[7].text.ends_with("`sandbox.log_bytes` is 1KiB"), "{}", lines[7].text);
        assert!(tail.contains("x99y"), "the tail goes on: {tail}");
    }

    #[test]
    fn the_next_call_has_a_log_of_its_own() {
        let logs = logs();
        let mut out = logs.stream(Source::Stdout);
        (0..1000).for_each(|_| logs.push(Level::Info, Source::Log, ""));
        out.write(Bytes::from_static(b"cut of")).expect("written");
        assert_eq!(logs.finish().0.len(), 33);
        logs.begin(&caps(&Settings::default()), &Settings::default());
        out.write(Bytes::from_static(b"new\n")).expect("written");
        assert_eq!(texts(&logs.finish().0), [(Source::Stdout, "new")]);
    }

    #[test]
    fn empty_lines_come_to_an_end_too() {
        let logs = logs();
        (0..1000).for_each(|_| logs.push(Level::Info, Source::Log, ""));
        assert_eq!(logs.finish().0.len(), 33);
    }
}
