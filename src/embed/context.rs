//! What a closure is told and given beside its event.

use std::{fmt, sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    model::UnixMillis,
    sandbox::{Asked, Due, Refusal, Wish},
};

/// What a closure is told and given beside its event.
///
/// What it asks for (events to emit, changes of its state) commits in the
/// transaction that acknowledges the event, exactly once, and only if the call
/// returns `Ok`. It can be cloned into tasks that the call waits for; once the
/// call has ended, it answers with errors.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

pub(super) struct Inner {
    pub(super) trigger: String,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) idempotency_key: String,
    pub(super) now: UnixMillis,
    pub(super) asked: Arc<Asked>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("trigger", &self.0.trigger)
            .field("attempt", &self.0.attempt)
            .field("idempotency_key", &self.0.idempotency_key)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// The trigger that this call is for.
    #[must_use]
    pub fn trigger(&self) -> &str {
        &self.0.trigger
    }

    /// 1 at the first attempt.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Attempts in all; after the last one the event is a dead letter.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.0.max_attempts
    }

    /// The same at every attempt: give it to whatever is called outside, so
    /// that it can tell a repetition.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.0.idempotency_key
    }

    /// The database's clock, as well as the host knows it.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.0.now
    }

    /// Asks for an event to be recorded, and answers the message id that it
    /// will have. If its dedup key is used, it is simply not recorded.
    ///
    /// # Errors
    /// When the event can't be recorded or is beyond a bound: count and size
    /// of one call's events, and hops from the event that an application
    /// recorded.
    pub fn emit(&self, event: Emit) -> Result<Uuid, Refusal> {
        self.0.asked.emit(event.0)
    }

    /// The trigger's state.
    #[must_use]
    pub fn state(&self) -> State<'_> {
        State(&self.0.asked)
    }
}

/// A trigger's state, as one call sees it: serialisable. If what a call read
/// has changed when it is to be acknowledged, the call is run again, which is
/// no attempt.
pub struct State<'a>(&'a Asked);

impl State<'_> {
    /// The value of a key, the call's own changes included; `None` if absent.
    ///
    /// # Errors
    /// When the key is empty or longer than 512 bytes, a bound is reached, or
    /// the database fails.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Refusal> {
        self.0.get(key).await
    }

    /// Up to `limit` keys (1,000 at the most) that begin with `prefix` and come
    /// behind `after`, in byte order.
    ///
    /// # Errors
    /// As [`State::get`].
    pub async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, Refusal> {
        self.0.keys(prefix, after, limit).await
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// When the key is empty or longer than 512 bytes, or a bound is reached.
    pub async fn set(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<(), Refusal> {
        self.0.set(key, value.into()).await
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`State::set`].
    pub async fn delete(&self, key: &str) -> Result<(), Refusal> {
        self.0.delete(key).await
    }

    /// Adds to a key that holds a decimal integer, or is absent, without
    /// reading it: such calls never meet.
    ///
    /// # Errors
    /// As [`State::set`]. A value that turns out to be no integer fails the
    /// attempt when it is to be acknowledged.
    pub async fn increment(&self, key: &str, by: i64) -> Result<(), Refusal> {
        self.0.increment(key, by).await
    }
}

/// An event to emit, of the project of the event that is handled.
#[derive(Debug, Clone)]
pub struct Emit(Wish);

impl Emit {
    /// An event with the required fields; `payload` is JSON text.
    pub fn new(
        resource: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_name: impl Into<String>,
        payload: impl Into<String>,
    ) -> Self {
        Self(Wish {
            resource: resource.into(),
            aggregate_id: aggregate_id.into(),
            event_name: event_name.into(),
            schema_version: 1,
            payload: payload.into(),
            meta: Vec::new(),
            dedup_key: None,
            due: Due::Now,
        })
    }

    /// With this version of the payload's shape, instead of 1.
    #[must_use]
    pub fn schema_version(mut self, version: u32) -> Self {
        self.0.schema_version = version;
        self
    }

    /// With one more field of meta. The trace context of the handled event is
    /// inherited unless `traceparent` is given.
    #[must_use]
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.meta.push((key.into(), value.into()));
        self
    }

    /// With this dedup key: at most one event of a project has it.
    #[must_use]
    pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
        self.0.dedup_key = Some(key.into());
        self
    }

    /// To be delivered so long after this call, in whole milliseconds.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.0.due = Due::AfterMs(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
        self
    }

    /// To be delivered at this time by the database's clock.
    #[must_use]
    pub fn at(mut self, time: UnixMillis) -> Self {
        self.0.due = Due::AtMs(u64::try_from(time).unwrap_or(0));
        self
    }
}
