//! What the router lets others know: how it fares, and when an event is settled.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{Notify, futures::Notified, oneshot};
use uuid::Uuid;

use crate::store::StoreError;

/// How a router fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Since when it has neither claimed nor settled, or not renewed its
    /// leases, although it tried, if so.
    pub stalled_for: Option<Duration>,
    /// The last fault, and how long ago it was.
    pub last_error: Option<(String, Duration)>,
    /// What anybody may be told of that fault.
    pub reason: Option<&'static str>,
    /// Outbox rows and deliveries that it holds.
    pub in_flight: usize,
}

/// A router's public side; shared by all that want to know.
#[derive(Debug)]
pub struct Pulse {
    inner: Mutex<Inner>,
    in_flight: AtomicUsize,
    /// Rung when attempts have been written.
    attempts: Notify,
}

#[derive(Debug)]
struct Inner {
    /// Claims and settles.
    work: Trace,
    /// Renewals of leases: reading may go well where writing doesn't.
    leases: Trace,
    last_error: Option<(String, Instant)>,
    reason: Option<&'static str>,
    watchers: HashMap<Uuid, Vec<oneshot::Sender<()>>>,
}

/// When one kind of exchange with the database last succeeded, and failed.
#[derive(Debug)]
struct Trace {
    good: Instant,
    bad: Option<Instant>,
}

impl Trace {
    fn new() -> Self {
        Self { good: Instant::now(), bad: None }
    }

    /// For how long it has failed, if it does.
    fn failing_for(&self) -> Option<Duration> {
        self.bad.filter(|at| *at > self.good).map(|_| self.good.elapsed())
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                work: Trace::new(),
                leases: Trace::new(),
                last_error: None,
                reason: None,
                watchers: HashMap::new(),
            }),
            in_flight: AtomicUsize::new(0),
            attempts: Notify::new(),
        }
    }
}

impl Pulse {
    /// How the router fares. It counts as stalled when its last exchange with
    /// the database failed and none of that kind has succeeded for `patience`.
    #[must_use]
    pub fn health(&self, patience: Duration) -> Health {
        let inner = self.inner();
        let silence = inner.work.failing_for().max(inner.leases.failing_for());
        Health {
            stalled_for: silence.filter(|silence| *silence > patience),
            last_error: inner.last_error.as_ref().map(|(e, at)| (e.clone(), at.elapsed())),
            reason: inner.reason,
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }

    /// Resolves when this host settles the event. Another host may do so
    /// unseen: whoever waits looks at the row now and then as well.
    #[must_use]
    pub fn watch(&self, message_id: Uuid) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut inner = self.inner();
        let watchers = inner.watchers.entry(message_id).or_default();
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.push(sender);
        receiver
    }

    /// Forgets watchers that have given up on this event.
    pub fn unwatch(&self, message_id: Uuid) {
        let mut inner = self.inner();
        if let Some(watchers) = inner.watchers.get_mut(&message_id) {
            watchers.retain(|watcher| !watcher.is_closed());
            if watchers.is_empty() {
                inner.watchers.remove(&message_id);
            }
        }
    }

    /// Resolves when this host has written attempts, from now on.
    pub fn attempts(&self) -> Notified<'_> {
        self.attempts.notified()
    }

    pub(super) fn kept(&self) {
        self.attempts.notify_waiters();
    }

    pub(super) fn settled(&self, ids: impl IntoIterator<Item = Uuid>) {
        let mut inner = self.inner();
        if inner.watchers.is_empty() {
            return;
        }
        for id in ids {
            for watcher in inner.watchers.remove(&id).into_iter().flatten() {
                // Whoever waited may have gone.
                let _ = watcher.send(());
            }
        }
    }

    pub(super) fn good(&self) {
        self.inner().work.good = Instant::now();
    }

    pub(super) fn renewed(&self) {
        self.inner().leases.good = Instant::now();
    }

    pub(super) fn bad(&self, error: &StoreError) {
        self.inner().note(error, |inner| &mut inner.work);
    }

    pub(super) fn not_renewed(&self, error: &StoreError) {
        self.inner().note(error, |inner| &mut inner.leases);
    }

    pub(super) fn holds(&self, in_flight: usize) {
        self.in_flight.store(in_flight, Ordering::Relaxed);
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn note(&mut self, error: &StoreError, trace: impl FnOnce(&mut Self) -> &mut Trace) {
        let now = Instant::now();
        self.last_error = Some((error.to_string(), now));
        self.reason = Some(error.reason());
        trace(self).bad = Some(now);
    }
}
