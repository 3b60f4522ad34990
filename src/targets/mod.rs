//! What a trigger delivers to.
//!
//! The router knows these two traits and nothing behind them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::model::{
    UnixMillis,
    attempt::{LogLine, Usage},
    effect::Effects,
    event::Event,
    outcome::{Failure, FailureKind},
    trigger::Trigger,
};

mod opened;
mod plugin;

pub use plugin::Plugins;
pub(crate) use plugin::Reader;

/// One event for one trigger.
pub struct Request {
    /// The event.
    pub event: Arc<Event>,
    /// 1 at the first.
    pub attempt: u32,
    /// Attempts in all.
    pub max_attempts: u32,
    /// How long it may take.
    pub deadline: Duration,
    /// The same at every attempt.
    pub idempotency_key: String,
    /// The database's clock, as well as the host knows it.
    pub now: UnixMillis,
    /// The trigger's state.
    pub state: Arc<dyn State>,
}

/// Reads a trigger's state.
#[async_trait]
pub trait State: Send + Sync {
    /// A key's value, `None` if it is absent.
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String>;

    /// Keys with a prefix, behind `after`, in byte order.
    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, String>;
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    /// What it asked for, or why it failed.
    pub result: Result<Effects, Failure>,
    /// What it used.
    pub usage: Usage,
    /// What it said.
    pub logs: Vec<LogLine>,
    /// The version that ran, where the target has versions.
    pub digest: Option<Arc<str>>,
}

/// Something that events are delivered to, made for one revision of one trigger.
#[async_trait]
pub trait Target: Send + Sync {
    /// Delivers one event. Never fails otherwise than in its report; dropping
    /// the future ends the delivery.
    async fn deliver(&self, request: Request) -> Report;

    /// Gets ready ahead of the first delivery.
    async fn warm(&self);

    /// A text that may hold what the target knows, such as the key of a state
    /// that can't be written, without secrets.
    fn redact(&self, text: String) -> String {
        text
    }

    /// A target for the deliveries of one claimed batch, where one may use what
    /// an earlier one has left; nothing where each stands alone.
    fn batch(&self) -> Option<Arc<dyn Target>> {
        None
    }
}

/// Makes targets.
pub trait Targets: Send + Sync {
    /// The target of a trigger; `active` is the digest of its plugin's active
    /// version, if it has one.
    fn target(&self, trigger: &Trigger, active: Option<&str>) -> Arc<dyn Target>;

    /// Whether this process can deliver to a trigger at all. A host that can't
    /// leaves the work to those that can.
    fn can_reach(&self, trigger: &Trigger) -> bool;
}

/// What this process can't deliver to, and why.
pub(crate) struct Away(pub(crate) String);

#[async_trait]
impl Target for Away {
    async fn deliver(&self, _: Request) -> Report {
        Report {
            result: Err(Failure::new(FailureKind::HostFault, &*self.0)),
            usage: Usage::default(),
            logs: Vec::new(),
            digest: None,
        }
    }

    async fn warm(&self) {}
}

/// What is said of a trigger that is another application's code.
pub(crate) fn elsewhere() -> Arc<dyn Target> {
    Arc::new(Away("the trigger's code is not part of this process".into()))
}
