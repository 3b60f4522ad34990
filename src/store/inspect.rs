//! What people look at and set in motion again.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Destination, HostId, Operation, OperationKind, ReplayBatch, ReplayFilter, Replayed, Requeued,
    StoreError,
};
use crate::model::{Lane, UnixMillis, attempt::Attempt, event::Event, outcome::FailureKind};

/// Which part of a list to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// Items at the most.
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<i64>,
    /// Not older than this.
    pub since: Option<UnixMillis>,
    /// Older than this.
    pub until: Option<UnixMillis>,
}

/// A part of a list, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins, if there may be one.
    pub next: Option<i64>,
}

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EventStatus {
    /// It waits to be claimed.
    Pending,
    /// A host is at it.
    Claimed,
    /// It isn't due yet.
    Scheduled,
    /// It is acknowledged; pairs that didn't end are deliveries.
    Dispatched,
}

/// Which events to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Of this resource.
    pub resource: Option<String>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Of this name.
    pub event_name: Option<String>,
    /// With this dedup key.
    pub dedup_key: Option<String>,
    /// In this status.
    pub status: Option<EventStatus>,
}

/// An event and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// The event.
    pub event: Event,
    /// Where it stands.
    pub status: EventStatus,
    /// How often it was claimed.
    pub claims: u32,
    /// When it was acknowledged.
    pub dispatched_at: Option<UnixMillis>,
    /// Per trigger: attempt, outcome, digest, duration. JSON text.
    pub result: Option<String>,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeliveryState {
    /// It runs as soon as it is due and its trigger has room.
    Ready,
    /// It waits for an earlier one of its key.
    Blocked,
    /// It ended well.
    Done,
    /// It used up its attempts or was rejected.
    Dead,
}

impl DeliveryState {
    /// Its name in SQL, JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Blocked => "blocked",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }

    /// The state of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Ready, Self::Blocked, Self::Done, Self::Dead]
            .into_iter()
            .find(|state| state.as_str() == name)
    }
}

/// Which deliveries to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Of this trigger.
    pub trigger: Option<String>,
    /// In this state; open ones (ready and blocked) if absent.
    pub state: Option<DeliveryState>,
    /// Of this event, in any state unless `state` says otherwise.
    pub message_id: Option<Uuid>,
}

/// Which dead letters are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeadLetterFilter {
    /// Of this trigger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Of this event name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_name: Option<String>,
    /// Of this aggregate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
    /// That died of this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<FailureKind>,
    /// That died at or after this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// That died before this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
}

/// A pair of event and trigger with a row of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct DeliveryRow {
    /// Its id.
    pub id: i64,
    /// The event.
    pub message_id: Uuid,
    /// The trigger.
    pub trigger: String,
    /// The event's resource.
    pub resource: String,
    /// The event's aggregate.
    pub aggregate_id: String,
    /// The event's name.
    pub event_name: String,
    /// The event's lane.
    pub lane: Lane,
    /// 0 for the event's own, else the number of the replay.
    pub generation: u32,
    /// Where it stands.
    pub state: DeliveryState,
    /// Why it exists: `failed`, `blocked`, `paused`, `limit`, `replay`.
    pub cause: String,
    /// Attempts so far.
    pub attempts: u32,
    /// When it may run.
    pub due_at: UnixMillis,
    /// Whether a host is at it.
    pub claimed: bool,
    /// Kind of the last failure.
    pub kind: Option<FailureKind>,
    /// Its message.
    pub last_error: Option<String>,
    /// When it was created.
    pub created_at: UnixMillis,
    /// When it ended.
    pub ended_at: Option<UnixMillis>,
    /// The event that it waits for, if it is blocked.
    pub blocked_by: Option<Uuid>,
}

/// An event that may be deleted, with all that goes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct AgedEvent {
    /// The event.
    pub row: EventRow,
    /// Its deliveries, in the order in which they were made.
    pub deliveries: Vec<DeliveryRow>,
    /// Its attempts that were kept, in the order in which they were settled.
    pub attempts: Vec<Attempt>,
}

impl AgedEvent {
    /// What [`Inspect::forget`] needs of it.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Trace {
            pk: self.row.event.pk,
            deliveries: count(self.deliveries.len()),
            attempts: count(self.attempts.len()),
        }
    }
}

/// An event that was read to be deleted: if it has more or less by then than
/// it had, it has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// The event.
    pub pk: i64,
    /// Deliveries that it had.
    pub deliveries: u32,
    /// Attempts that it had.
    pub attempts: u32,
}

/// Events that may be deleted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Aged {
    /// In the order of their pk.
    pub events: Vec<AgedEvent>,
    /// Where to go on, if there may be more.
    pub next: Option<i64>,
}

/// Which attempts to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptFilter {
    /// Of this trigger.
    pub trigger: Option<String>,
    /// Of this event.
    pub message_id: Option<Uuid>,
    /// Failures alone.
    pub failed: bool,
    /// Failures of this kind alone.
    pub kind: Option<FailureKind>,
}

/// An attempt that was kept, and what it was made for.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// Its id: higher where it was settled later, but for those that were
    /// settled at the same time.
    pub id: i64,
    /// The attempt.
    pub attempt: Attempt,
    /// The event, unless it is gone.
    pub subject: Option<Subject>,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The event's resource.
    pub resource: String,
    /// The event's aggregate.
    pub aggregate_id: String,
    /// The event's name.
    pub event_name: String,
}

/// One entry of a trigger's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// How often it was written.
    pub version: i64,
}

/// Counts of one trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerCounts {
    /// Calls that ended well, since the project was created.
    pub done: i64,
    /// Calls that failed, since then.
    pub failed: i64,
    /// Deliveries that are ready, now or later.
    pub retrying: i64,
    /// Deliveries that wait for an earlier one.
    pub blocked: i64,
    /// Dead letters.
    pub dead: i64,
    /// Message of the last failure among open and dead deliveries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Counts of one project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProjectCounts {
    /// Events that wait to be claimed.
    pub pending: i64,
    /// Events that are claimed.
    pub in_flight: i64,
    /// Events that aren't due yet.
    pub scheduled: i64,
    /// Events acknowledged since the project was created.
    pub dispatched: i64,
    /// Age of the oldest event that waits, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_ms: Option<i64>,
    /// Whether the project exists; events of one that doesn't wait for it.
    pub exists: bool,
    /// Per trigger.
    pub triggers: std::collections::BTreeMap<String, TriggerCounts>,
}

/// Counts of everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The database's clock.
    pub now: UnixMillis,
    /// Per project, those that don't exist but have events included.
    pub projects: std::collections::BTreeMap<String, ProjectCounts>,
}

/// What people look at and set in motion again.
#[async_trait]
pub trait Inspect: Send + Sync + 'static {
    /// One event.
    async fn event(&self, project: &str, message_id: Uuid) -> Result<Option<EventRow>, StoreError>;

    /// Events, the newest first.
    async fn events(
        &self,
        project: &str,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, StoreError>;

    /// Deliveries, the newest first.
    async fn deliveries(
        &self,
        project: &str,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError>;

    /// Dead letters, the newest first. `since` and `until` are the filter's.
    async fn dead_letters(
        &self,
        project: &str,
        filter: &DeadLetterFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, StoreError>;

    /// Attempts, the newest first.
    async fn attempts(
        &self,
        project: &str,
        filter: &AttemptFilter,
        page: &PageRequest,
    ) -> Result<Page<AttemptRow>, StoreError>;

    /// The highest id that an attempt of any project has, 0 if there is none.
    async fn newest_attempt(&self) -> Result<i64, StoreError>;

    /// Ids of a project's attempts above one, rising: the last `limit` of them.
    /// Those settled at the same time don't become visible in their order: an id
    /// that is lower than one that was seen may come moments later. It costs
    /// what all projects have above that id.
    async fn attempt_ids(
        &self,
        project: &str,
        above: i64,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError>;

    /// A project's attempts with these ids, rising.
    async fn attempts_by_id(
        &self,
        project: &str,
        ids: &[i64],
    ) -> Result<Vec<AttemptRow>, StoreError>;

    /// Gives one dead letter new attempts, under the same message id.
    async fn requeue(&self, project: &str, id: i64) -> Result<Requeued, StoreError>;

    /// Deletes one dead letter. Answers whether there was one.
    async fn purge(&self, project: &str, id: i64) -> Result<bool, StoreError>;

    /// How many dead letters a filter means.
    async fn count_dead(&self, project: &str, filter: &DeadLetterFilter)
    -> Result<i64, StoreError>;

    /// Stores bulk work; it is carried out by [`Inspect::advance`].
    async fn start(
        &self,
        project: &str,
        kind: OperationKind,
        filter: &DeadLetterFilter,
        limit: Option<i64>,
    ) -> Result<Operation, StoreError>;

    /// Bulk work of a project.
    async fn operation(&self, project: &str, id: Uuid) -> Result<Option<Operation>, StoreError>;

    /// Stops bulk work; what is done stays done. Answers it as it is then.
    async fn cancel(&self, project: &str, id: Uuid) -> Result<Option<Operation>, StoreError>;

    /// Does up to `batch` of one running operation on dead letters, in one
    /// transaction with its progress, so that any host can go on where another
    /// stopped. Answers whether there may be more to do.
    async fn advance(&self, batch: u32) -> Result<bool, StoreError>;

    /// Delivers a dispatched event again, to those of these triggers that have
    /// no open delivery of it.
    async fn replay(
        &self,
        project: &str,
        message_id: Uuid,
        to: &[Destination],
    ) -> Result<Replayed, StoreError>;

    /// How many events a filter means, dispatched or not; its trigger is not
    /// looked at.
    async fn count_events(&self, project: &str, filter: &ReplayFilter) -> Result<i64, StoreError>;

    /// Stores a replay of `limit` events at the most; it is carried out by
    /// [`Inspect::replay_batch`] and [`Inspect::replay_part`].
    async fn start_replay(
        &self,
        project: &str,
        filter: &ReplayFilter,
        limit: Option<i64>,
    ) -> Result<Operation, StoreError>;

    /// The next events of a running replay, `batch` at the most, or nothing if
    /// none is running. It claims nothing: who is first to write goes on.
    async fn replay_batch(&self, batch: u32) -> Result<Option<ReplayBatch>, StoreError>;

    /// Delivers the events of a batch again, `to` saying for each of them to
    /// which triggers, in one transaction with the operation's progress. Does
    /// nothing if the operation was cancelled or has gone on meanwhile.
    async fn replay_part(
        &self,
        batch: &ReplayBatch,
        to: &[Vec<Destination>],
    ) -> Result<(), StoreError>;

    /// How many open and dead deliveries a trigger has.
    async fn count_deliveries(&self, project: &str, trigger: &str) -> Result<i64, StoreError>;

    /// Ends a deleted trigger's open deliveries: dead letters if `dead`, else
    /// deleted, dead ones included; and deletes its state.
    async fn end_trigger(&self, project: &str, trigger: &str, dead: bool)
    -> Result<(), StoreError>;

    /// A trigger's state, by key.
    async fn state(
        &self,
        project: &str,
        trigger: &str,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StateEntry>, StoreError>;

    /// Deletes every row of a project: events, deliveries, attempts, state.
    async fn delete_project_data(&self, project: &str) -> Result<(), StoreError>;

    /// Who holds a lane.
    async fn lane_holder(&self, lane: Lane) -> Result<Option<HostId>, StoreError>;

    /// Counts of everything, from bounded queries.
    async fn status(&self) -> Result<Status, StoreError>;

    /// Deletes up to `batch` events that were acknowledged longer than
    /// `retention` ago and have no open or dead delivery, with their attempts
    /// and ended deliveries. Answers how many events went.
    async fn sweep(&self, retention: Duration, batch: u32) -> Result<u64, StoreError>;

    /// Up to `batch` events of these lanes that [`Inspect::sweep`] would delete,
    /// whole, from behind the pk `after` on; fewer where they are large. Deletes
    /// nothing.
    async fn aged(
        &self,
        lanes: &[Lane],
        retention: Duration,
        after: i64,
        batch: u32,
    ) -> Result<Aged, StoreError>;

    /// Deletes events that were read by [`Inspect::aged`], in one transaction,
    /// but for those that have changed since. Answers how many events went.
    async fn forget(&self, traces: &[Trace]) -> Result<u64, StoreError>;
}
