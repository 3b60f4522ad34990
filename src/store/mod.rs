//! Everything that is kept in a database, behind three traits that speak the
//! domain: [`Queue`] for the router, [`Inspect`] for people, [`Control`] for
//! definitions. No SQL and no driver type leaves this module.
//!
//! Only the database's clock judges leases and schedules; what a caller passes
//! are spans of time, never points in it.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use uuid::Uuid;

pub use claim::{Claim, Held, Row};
pub use control::{
    ApiKey, Control, ControlVersion, Definitions, HostInfo, KeyRow, Project, Role, SealedSecret,
    SecretInfo, SecretPut, TriggerGone,
};
pub use inspect::{
    Aged, AgedEvent, AttemptFilter, AttemptRow, DeadLetterFilter, DeliveryFilter, DeliveryRow,
    DeliveryState, EventFilter, EventRow, EventStatus, Inspect, Page, PageRequest, ProjectCounts,
    StateEntry, Status, Subject, Trace, TriggerCounts,
};
pub use operation::{Operation, OperationFilter, OperationKind, OperationState, Requeued};
pub use replay::{Destination, ReplayBatch, ReplayCounts, ReplayFilter, Replayed};

use crate::model::{
    Lane, UnixMillis,
    attempt::Attempt,
    effect::Effects,
    event::{Event, NewEvent},
    outcome::FailureKind,
};

mod claim;
mod connect;
mod control;
mod inspect;
mod migrate;
mod operation;
mod overlay;
pub mod postgres;
mod replay;
mod rows;
pub mod sqlite;

pub use connect::{Options, Prefix, connect};

/// What a database is to this host.
pub trait Store: Queue + Inspect + Control {}

impl<T: Queue + Inspect + Control> Store for T {}

/// Why the database didn't do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It can't be reached, or broke off; the same call may succeed later.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] Source),
    /// It was too busy to answer in time; the same call may succeed later.
    #[error("the database was too busy: {0}")]
    Busy(#[source] Source),
    /// It has no room left for what was to be written.
    #[error("the database is full: {0}")]
    Full(#[source] Source),
    /// Its schema isn't this version's.
    #[error("{0}")]
    Schema(String),
    /// A setting that can't be used with this database.
    #[error("{0}")]
    Setting(String),
    /// It refused a statement: a fault of this program or a damaged row.
    #[error("the database refused a statement: {0}")]
    Refused(#[source] Source),
}

/// What a driver said.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// What anybody may be told of it: no address, statement or row.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "the database can't be reached",
            Self::Busy(_) => "the database was too busy to answer in time",
            Self::Full(_) => {
                "the database has no room left: its disk, a quota or a limit on file sizes is full"
            }
            Self::Schema(_) => "the database's schema isn't this version's",
            Self::Setting(_) => "a setting can't be used with the database",
            Self::Refused(_) => "the database refused a statement",
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Busy(_) | Self::Full(_))
    }
}

/// A host, as lanes and claims know it: new at every start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId(pub Uuid);

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What became of one event that was to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It is there now.
    New {
        /// Its id.
        message_id: Uuid,
        /// When, by the database's clock.
        created_at: UnixMillis,
    },
    /// Its dedup key was used before.
    Duplicate {
        /// The first one's id.
        message_id: Uuid,
        /// When the first one was recorded.
        created_at: UnixMillis,
    },
}

/// One project's share of one lane, and where to begin looking in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seam {
    /// The lane.
    pub lane: Lane,
    /// The project.
    pub project: String,
    /// The low-water mark: rows up to this pk are left out.
    pub above: i64,
    /// Rows at the most.
    pub limit: u32,
}

/// A claimed outbox row.
#[derive(Debug)]
pub struct ClaimedEvent {
    /// The proof that its result may be written.
    pub claim: Claim,
    /// The row.
    pub event: Event,
    /// How often it was claimed, this time included; more than once if a host
    /// died with it.
    pub claims: u32,
    /// How often it was running alone when its host died.
    pub trials: u32,
    /// Ordered triggers that have an open delivery of the same ordering key.
    pub open: Vec<String>,
}

/// A claimed delivery, with its event.
#[derive(Debug)]
pub struct ClaimedDelivery {
    /// The proof that its result may be written.
    pub claim: Claim,
    /// The event.
    pub event: Event,
    /// The trigger.
    pub trigger: String,
    /// Attempts so far.
    pub attempts: u32,
    /// 0 for the event's own delivery, else the number of the replay.
    pub generation: u32,
    /// How often it was claimed, this time included; more than once if a host
    /// died with it.
    pub claims: u32,
    /// How often it was running alone when its host died.
    pub trials: u32,
    /// How it stands to others of its key.
    pub chain: Chain,
}

/// How a delivery stands to others of the same trigger and ordering key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Chain {
    /// Not at all.
    None,
    /// In the order of the events, which later ones wait for.
    Events,
    /// In order among re-driven deliveries alone; nothing newer waits for it.
    Redriven,
}

/// What a claim brought.
#[derive(Debug)]
pub struct Claimed<T> {
    /// The rows, in pk order.
    pub rows: Vec<T>,
    /// The database's clock when it was made.
    pub now: UnixMillis,
    /// Which transactions it may have missed.
    pub horizon: Horizon,
    /// Whether seams have more rows, that didn't fit in its bytes.
    pub cut: bool,
}

/// Transactions, numbered as they begin to write, as a claim saw them. A pk
/// may be given out long before its row can be seen: one that is smaller than
/// a row of a claim may still come, but not once every transaction that began
/// before the claim has ended. All zero where writes come one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Horizon {
    /// Those with smaller numbers had ended.
    pub ended: i64,
    /// Those that had begun have smaller numbers.
    pub begun: i64,
}

/// Where there is work, and when there will be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Lanes and projects with an event that isn't dispatched and not
    /// scheduled; claimed ones count.
    pub seams: Vec<(Lane, String)>,
    /// Projects and triggers with a delivery that is ready, now or later.
    pub deliveries: Vec<(String, String)>,
    /// Milliseconds until the next scheduled event is due; 0 if one is.
    pub scheduled_in: Option<i64>,
    /// The database's clock.
    pub now: UnixMillis,
}

/// A pair of event and trigger that goes on in its own queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Spill {
    /// The trigger.
    pub trigger: String,
    /// Whether it waits for, and blocks, others of its ordering key.
    pub ordered: bool,
    /// Why it didn't end with the event.
    pub cause: SpillCause,
    /// Attempts so far.
    pub attempts: u32,
    /// Milliseconds until it may be tried.
    pub after_ms: i64,
    /// Kind and message of the last failure.
    pub error: Option<(FailureKind, String)>,
    /// Whether it ends here, as a dead letter.
    pub dead: bool,
}

/// Why a delivery exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpillCause {
    /// Its first attempt failed.
    Failed,
    /// An earlier event of its key is still open.
    Blocked,
    /// Its trigger is paused.
    Paused,
    /// Its trigger had no room.
    Limit,
    /// Its host died while the event ran alone, for one of its triggers.
    Suspect,
    /// Somebody asked for it again.
    Replay,
}

impl SpillCause {
    /// Its name in SQL, JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Paused => "paused",
            Self::Limit => "limit",
            Self::Suspect => "suspect",
            Self::Replay => "replay",
        }
    }
}

/// The effects of one trigger's call.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerEffects {
    /// The trigger.
    pub trigger: String,
    /// What it asked for.
    pub effects: Effects,
}

/// What is to be written for one claim.
#[derive(Debug)]
pub struct Settlement {
    /// The proof; shared with whoever renews it.
    pub claim: Arc<Claim>,
    /// The event that it is about.
    pub event: Arc<Event>,
    /// What becomes of the claimed row.
    pub end: End,
    /// Effects of the calls that ended well.
    pub effects: Vec<TriggerEffects>,
    /// Calls to keep a record of.
    pub attempts: Vec<Attempt>,
}

/// What becomes of a claimed row.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The event is dispatched; pairs that didn't end spill.
    Dispatched {
        /// Per trigger: attempt, outcome, digest, duration. JSON text.
        result_json: String,
        /// Pairs that go on in their own queues.
        spills: Vec<Spill>,
    },
    /// The delivery ended well.
    Done {
        /// The trigger.
        trigger: String,
    },
    /// The delivery is tried again.
    Again {
        /// The trigger.
        trigger: String,
        /// Attempts so far.
        attempts: u32,
        /// Milliseconds until then.
        after_ms: i64,
        /// Kind and message of the failure.
        error: (FailureKind, String),
    },
    /// The delivery is a dead letter.
    Dead {
        /// The trigger.
        trigger: String,
        /// Attempts in all.
        attempts: u32,
        /// Kind and message of the failure.
        error: (FailureKind, String),
    },
}

/// What became of one settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It is written.
    Done,
    /// The claim was lost; nothing of it is written.
    Lost,
    /// These triggers read state that has changed since; nothing of it is
    /// written, and their calls are to be run again. None are named where only
    /// an earlier settlement of the same ordering key is held up or lost: this
    /// one is written with or after it, never without.
    Conflict(Vec<String>),
    /// The effects of this trigger can't be written; nothing of it is written.
    Unfit {
        /// The trigger.
        trigger: String,
        /// Why.
        why: String,
    },
}

/// How many rows the router's transactions had best have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// Rows of one claim.
    pub claim: usize,
    /// Rows of one settle.
    pub settle: usize,
}

/// Rows that wait for this host, and what comes of them.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Records events in one transaction, each on its own: a used dedup key
    /// says so and doesn't hinder the others. Answers in the order of `events`.
    async fn record(&self, events: &[NewEvent]) -> Result<Vec<Recorded>, StoreError>;

    /// Records events of several callers, as [`Queue::record`] does. Where one
    /// of them would have to wait longer than `patience` for another
    /// transaction, nothing is recorded, and the answer is [`StoreError::Busy`].
    async fn record_within(
        &self,
        events: &[NewEvent],
        patience: Duration,
    ) -> Result<Vec<Recorded>, StoreError>;

    /// Makes sure that this process may be a host of the database: an SQLite
    /// file has one at a time.
    ///
    /// # Errors
    /// [`StoreError::Setting`] when another process is its host.
    fn join(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// How many lanes there are.
    fn lanes(&self) -> Lane;

    /// How many rows one claim and one settle had best have, where others wait
    /// for them.
    fn strides(&self) -> Strides {
        Strides { claim: usize::MAX, settle: usize::MAX }
    }

    /// Takes free lanes and those whose lease has ended, up to `want`, for
    /// `lease`, and clears every claim in them: whoever held them can settle
    /// nothing any more. Answers what was taken.
    async fn take_lanes(
        &self,
        host: HostId,
        want: usize,
        lease: Duration,
    ) -> Result<Vec<Lane>, StoreError>;

    /// Extends the leases of this host's lanes and answers which they are.
    async fn renew_lanes(&self, host: HostId, lease: Duration) -> Result<Vec<Lane>, StoreError>;

    /// Gives lanes back. Claims in them are cleared by whoever takes them.
    async fn yield_lanes(&self, host: HostId, lanes: &[Lane]) -> Result<(), StoreError>;

    /// Who holds each lane, and for how many more milliseconds.
    async fn lane_holders(&self) -> Result<Vec<(Lane, Option<HostId>, i64)>, StoreError>;

    /// Where there is work in these lanes.
    async fn survey(&self, lanes: &[Lane]) -> Result<Survey, StoreError>;

    /// Lanes with an event that isn't dispatched and not scheduled, of projects
    /// other than those that are `known` (in order), each with the first such
    /// project between two known ones.
    async fn newcomers(
        &self,
        lanes: &[Lane],
        known: &[String],
    ) -> Result<Vec<(Lane, String)>, StoreError>;

    /// Claims events of these seams that are neither scheduled nor claimed,
    /// with payloads of up to `bytes`: beyond that, each seam brings fewer, but
    /// one comes anyway. Seams whose lane this host doesn't hold bring nothing.
    async fn claim_events(
        &self,
        host: HostId,
        seams: &[Seam],
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError>;

    /// Claims scheduled events of these projects that are due, the longest
    /// overdue first, with payloads of up to `bytes`; one comes anyway.
    async fn claim_scheduled(
        &self,
        host: HostId,
        lanes: &[Lane],
        projects: &[String],
        limit: u32,
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedEvent>, StoreError>;

    /// Claims deliveries that are due of these triggers (project, name, rows
    /// at the most), and behind each that hasn't failed yet, up to `run` that
    /// it blocks, with payloads of up to `bytes`; one comes anyway.
    async fn claim_deliveries(
        &self,
        host: HostId,
        lanes: &[Lane],
        triggers: &[(String, String, u32)],
        run: u32,
        bytes: u64,
        lease: Duration,
    ) -> Result<Claimed<ClaimedDelivery>, StoreError>;

    /// Extends these claims; answers for each, in order, whether it still holds.
    async fn renew(&self, claims: &[&Claim], lease: Duration) -> Result<Vec<Held>, StoreError>;

    /// Gives claims back as if they had not been made.
    async fn release(&self, claims: &[&Claim]) -> Result<(), StoreError>;

    /// Notes which row runs on this host while nothing else does, if one does.
    /// If the host dies meanwhile, whoever takes its lane over counts a trial.
    /// [`Held::Lost`] when the row's lane isn't this host's.
    async fn run_alone(&self, host: HostId, claim: Option<&Claim>) -> Result<Held, StoreError>;

    /// Writes a group of results in one transaction, in order: the rows that
    /// are still held, and the effects of those alone. Answers one for each.
    ///
    /// Either the whole group is answered, or nothing of it is written and the
    /// error says why; the caller then splits it.
    async fn settle(
        &self,
        group: &[Settlement],
        within: Duration,
    ) -> Result<Vec<Settled>, StoreError>;

    /// One value of a trigger's state.
    async fn state_value(
        &self,
        project: &str,
        trigger: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keys of a trigger's state that begin with `prefix`, behind `after`, in
    /// byte order, `limit` at the most.
    async fn state_keys(
        &self,
        project: &str,
        trigger: &str,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError>;

    /// How long a host may sleep that is to look every `poll` where nothing
    /// tells it of new events.
    fn longest_sleep(&self, poll: Duration) -> Duration {
        poll
    }

    /// Waits until events may have been recorded, by whatever means the
    /// database has, or for `at_most`. Says beforehand, where needed, that
    /// this host is asleep.
    async fn wait_for_events(&self, at_most: Duration);

    /// Ends a wait of this process.
    fn wake(&self);
}
