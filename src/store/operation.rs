//! Bulk work: what it does, to what, and how it gets on.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{DeadLetterFilter, ReplayCounts, ReplayFilter, StoreError, rows::from_json};
use crate::model::UnixMillis;

/// What became of a dead letter that was to be requeued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeued {
    /// It is ready, its attempts start anew.
    Yes,
    /// There is no dead letter of that id.
    Unknown,
    /// Its event is being delivered to its trigger again already.
    Open,
}

/// What bulk work does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OperationKind {
    /// Give dead letters new attempts.
    RequeueDeadLetters,
    /// Delete dead letters.
    PurgeDeadLetters,
    /// Deliver events again.
    ReplayEvents,
}

impl OperationKind {
    /// Its name in SQL.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RequeueDeadLetters => "requeue",
            Self::PurgeDeadLetters => "purge",
            Self::ReplayEvents => "replay",
        }
    }

    /// The kind of that name.
    pub(super) fn parse(name: &str) -> Result<Self, StoreError> {
        [Self::RequeueDeadLetters, Self::PurgeDeadLetters, Self::ReplayEvents]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| StoreError::Schema(format!("an operation of the kind `{name}`")))
    }
}

/// Where bulk work stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OperationState {
    /// It goes on.
    Running,
    /// It is through.
    Done,
    /// Somebody stopped it; what was done stays done.
    Cancelled,
}

impl OperationState {
    /// The state of that name in SQL.
    pub(super) fn parse(name: &str) -> Self {
        match name {
            "running" => Self::Running,
            "cancelled" => Self::Cancelled,
            _ => Self::Done,
        }
    }
}

/// What bulk work is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum OperationFilter {
    /// These dead letters.
    DeadLetters(DeadLetterFilter),
    /// These events.
    Events(ReplayFilter),
}

impl OperationFilter {
    /// The filter of an operation, from the JSON that it is kept as.
    pub(super) fn parse(kind: OperationKind, text: &str) -> Result<Self, StoreError> {
        match kind {
            OperationKind::ReplayEvents => from_json("a filter", text).map(Self::Events),
            OperationKind::RequeueDeadLetters | OperationKind::PurgeDeadLetters => {
                from_json("a filter", text).map(Self::DeadLetters)
            }
        }
    }

    /// Which dead letters are meant.
    pub(super) fn dead_letters(&self) -> Result<&DeadLetterFilter, StoreError> {
        match self {
            Self::DeadLetters(filter) => Ok(filter),
            Self::Events(_) => Err(StoreError::Refused("a filter of events, for letters".into())),
        }
    }

    /// Which events are meant.
    pub(super) fn events(&self) -> Result<&ReplayFilter, StoreError> {
        match self {
            Self::Events(filter) => Ok(filter),
            Self::DeadLetters(_) => {
                Err(StoreError::Refused("a filter of letters, for events".into()))
            }
        }
    }
}

/// Bulk work on dead letters or events.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its id.
    pub id: Uuid,
    /// The tenant.
    #[serde(skip)]
    pub project: String,
    /// What it does.
    pub kind: OperationKind,
    /// Which dead letters or events it is for.
    pub filter: OperationFilter,
    /// At the most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// Where it stands.
    pub state: OperationState,
    /// How many there were when it was asked for.
    pub total: i64,
    /// How many it has gone through.
    pub done: i64,
    /// What it did, and what it left alone.
    #[serde(flatten)]
    pub counts: ReplayCounts,
    /// When it was asked for.
    pub created_at: UnixMillis,
    /// When it last went on.
    pub updated_at: UnixMillis,
    /// Those up to this delivery id, or event pk, are done.
    #[serde(skip)]
    pub cursor: i64,
    /// Those beyond this delivery id, or event pk, came later and are left alone.
    #[serde(skip)]
    pub last: i64,
}
