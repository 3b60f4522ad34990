//! One call's use of HTTP: what it may still send, what it was refused.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use wasmtime_wasi_http::Error;

use super::client::Share;
use crate::{
    model::{
        attempt::{Level, Source},
        http::Outgoing,
        units::Bytes,
    },
    sandbox::{caps::Cap, logs::Logs, refusal::Refusal},
};

/// Bytes that the heads of all responses of one call may have, interim ones
/// included.
const HEADS: u64 = 1 << 20;

/// What a call's requests share; it lives as long as the last of them.
pub(super) struct Session {
    /// A permit for each request until its response has been read.
    pub(super) turns: Arc<Semaphore>,
    pub(super) share: Arc<Share>,
    pub(super) sent: Ration,
    pub(super) received: Ration,
    /// Bytes that may still be read, of whatever kind.
    arriving: AtomicU64,
    /// Set when the call has ended: what is open then is closed.
    pub(super) ended: CancellationToken,
    logs: Logs,
    requests: Cap<u32>,
    refused: OnceLock<Refusal>,
}

impl Session {
    pub(super) fn new(
        share: Arc<Share>,
        requests: Cap<u32>,
        sent: Ration,
        received: Ration,
        logs: Logs,
    ) -> Self {
        // A body may come in parts so small that it takes as much again.
        let arriving = received.cap.max.get().saturating_mul(2).saturating_add(HEADS);
        Self {
            arriving: AtomicU64::new(arriving),
            turns: Arc::new(Semaphore::new(requests.max as usize)),
            share,
            sent,
            received,
            ended: CancellationToken::new(),
            logs,
            requests,
            refused: OnceLock::new(),
        }
    }

    /// What was refused first, for want of a grant or by a limit.
    pub(super) fn refused(&self) -> Option<&Refusal> {
        self.refused.get()
    }

    /// Takes note of bytes that were read: of bodies, and of all around them.
    ///
    /// # Errors
    /// When the call has read more than bodies within its ration can take.
    pub(super) fn arrive(&self, bytes: u64) -> Result<(), &'static str> {
        let less = |left: u64| left.checked_sub(bytes);
        let taken = self.arriving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(drop).map_err(|_| {
            self.received.excess(self);
            "the call has read too much"
        })
    }

    /// Refuses a request that no grant covers.
    pub(super) fn deny(&self, why: String) -> Error {
        self.refuse(Refusal::Denied(why));
        Error::HttpRequestDenied
    }

    /// Refuses a request whose host has no address that it may go to. Which
    /// addresses it has is not for strangers to know.
    pub(super) fn prohibit(&self, request: &Outgoing, kind: &str) -> Error {
        self.refuse(Refusal::Denied(format!(
            "{request} was not sent: its address is {kind}, not public; the operator of this host \
             can allow it with `http.allow`"
        )));
        Error::DestinationIpProhibited
    }

    /// Refuses a request that found no room in time.
    pub(super) fn crowd(&self, request: &Outgoing) -> Error {
        self.refuse(Refusal::Limit(format!(
            "{request} was not sent: too many requests are under way; {}, and this host's \
             `http.connections` holds for all",
            self.requests
        )));
        Error::ConnectionLimitReached
    }

    /// Says why a request that was not refused has no response, where that
    /// hasn't been said: guests often print no more than that there is none.
    pub(super) fn failed(&self, request: &Outgoing, error: &Error) {
        let why = match error {
            Error::DnsError { .. } => "the name has no address",
            Error::ConnectionRefused => "the connection was refused",
            Error::ConnectionTimeout => "there was no connection in time",
            Error::DestinationIpUnroutable | Error::DestinationUnavailable => "it can't be reached",
            Error::ConnectionReadTimeout => "there was no response in time",
            Error::ConnectionTerminated => "the connection broke off",
            Error::HttpResponseIncomplete => "the response broke off",
            Error::HttpResponseHeaderSectionSize(_) => "the response's head is too large",
            Error::HttpProtocolError => "that is no HTTP/1.1 that this host speaks",
            Error::ConfigurationError => "this host trusts no certificate authority",
            _ => return,
        };
        self.say(&format!("{request} failed: {why}"));
    }

    /// Remembers a refusal, and tells the plugin's author.
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.say(&refusal.to_string());
        let _ = self.refused.set(refusal);
    }

    /// Tells the plugin's author through the attempt's log.
    pub(super) fn say(&self, text: &str) {
        // Another call's log may have begun; this line is none of it.
        if !self.ended.is_cancelled() {
            self.logs.push(Level::Warn, Source::Host, text);
        }
    }
}

/// Bytes that may still pass, of all of a call's requests or responses.
pub(super) struct Ration {
    what: &'static str,
    cap: Cap<Bytes>,
    left: AtomicU64,
}

impl Ration {
    /// As many as the cap says.
    pub(super) fn new(what: &'static str, cap: Cap<Bytes>) -> Self {
        Self { what, cap, left: AtomicU64::new(cap.max.get()) }
    }

    /// Whether so many bytes could still pass.
    ///
    /// # Errors
    /// The whole ration, if they could not.
    pub(super) fn admit(&self, bytes: u64, session: &Session) -> Result<(), u64> {
        if bytes <= self.left.load(Ordering::Relaxed) { Ok(()) } else { Err(self.excess(session)) }
    }

    /// Takes bytes that are about to pass.
    ///
    /// # Errors
    /// The whole ration, if there are not so many left.
    pub(super) fn take(&self, bytes: u64, session: &Session) -> Result<(), u64> {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| self.excess(session))
    }

    fn excess(&self, session: &Session) -> u64 {
        let Self { what, cap, .. } = self;
        session.refuse(Refusal::Limit(format!("the {what} of one call have more bytes; {cap}")));
        cap.max.get()
    }
}
