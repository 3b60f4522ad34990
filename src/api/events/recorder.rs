//! Records what requests bring: those that come while others are committed go
//! together into the next transaction.
//!
//! A request that finds no commit under way is recorded at once. Of several in
//! one transaction each has its own answer, and where the transaction fails,
//! each is tried in one of its own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{select, sync::oneshot, time::sleep};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    api::Api,
    model::event::NewEvent,
    store::{Recorded, StoreError},
};

/// Events and bytes of one transaction, where it has those of several requests.
const GROUP: usize = 1_000;
const GROUP_BYTES: usize = 4 << 20;

/// Requests and their bytes that may wait.
const WAITING: usize = 10_000;
const WAITING_BYTES: usize = 64 << 20;

/// A commit that takes longer doesn't hold up what comes behind it.
const SLOW: Duration = Duration::from_millis(25);

/// Groups that are committed at once, when they are slow.
const COMMITS: usize = 4;

/// How long a group may wait for a dedup key that another transaction has used
/// and not committed: then only those events wait for it that have the key.
const PATIENCE: Duration = Duration::from_millis(250);

/// What an event costs beside its payload and meta, in bytes.
const EVENT_COST: usize = 256;

type Result = std::result::Result<Vec<Recorded>, StoreError>;

/// Where events are recorded.
#[async_trait]
pub(in crate::api) trait Outbox: Send + Sync {
    /// Records events in one transaction. With a `patience`, it fails where one
    /// has to wait for longer.
    async fn record(&self, events: &[NewEvent], patience: Option<Duration>) -> Result;
}

#[async_trait]
impl Outbox for Api {
    async fn record(&self, events: &[NewEvent], patience: Option<Duration>) -> Result {
        let recorded = match patience {
            Some(patience) => self.store.record_within(events, patience).await,
            None => self.store.record(events).await,
        };
        if recorded.is_ok() {
            self.metrics.recorded(events.len() as u64);
        }
        recorded
    }
}

/// Takes events of many requests.
pub(in crate::api) struct Recorder(Arc<Inner>);

struct Inner {
    outbox: Arc<dyn Outbox>,
    /// After how long a commit is slow.
    slow: Duration,
    line: Mutex<Line>,
    tasks: TaskTracker,
}

/// Requests that wait, and who takes them.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Request>,
    bytes: usize,
    /// Whether a task takes what waits as soon as it can.
    is_led: bool,
    /// Tasks that commit, those included that take nothing more.
    commits: usize,
}

struct Request {
    events: Vec<NewEvent>,
    bytes: usize,
    /// Nobody may be listening any more: it is recorded all the same.
    answer: oneshot::Sender<Result>,
}

impl Recorder {
    pub(in crate::api) fn new(outbox: Arc<dyn Outbox>) -> Self {
        Self::with(outbox, SLOW)
    }

    fn with(outbox: Arc<dyn Outbox>, slow: Duration) -> Self {
        let (line, tasks) = (Mutex::default(), TaskTracker::new());
        Self(Arc::new(Inner { outbox, slow, line, tasks }))
    }

    /// Records events in one transaction, each on its own, perhaps with those
    /// of others. Answers in the order of `events`.
    pub(super) async fn record(&self, mut events: Vec<NewEvent>) -> Result {
        for event in &mut events {
            // Known beforehand, so that whoever tries again finds its own.
            event.message_id.get_or_insert_with(Uuid::now_v7);
        }
        let bytes = events.iter().map(size).sum();
        let (answer, answered) = oneshot::channel();
        {
            let mut line = self.0.line();
            let full = line.waiting.len() >= WAITING || line.bytes + bytes > WAITING_BYTES;
            if full && !line.waiting.is_empty() {
                return Err(StoreError::Busy("too many events wait to be recorded".into()));
            }
            line.bytes += bytes;
            line.waiting.push_back(Request { events, bytes, answer });
        }
        self.0.lead_on();
        let lost = |_| Err(StoreError::Refused("recording ended without an answer".into()));
        answered.await.unwrap_or_else(lost)
    }

    /// Waits until all is recorded that was handed over.
    pub(in crate::api) async fn finish(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Inner {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task for what waits, unless there is one that will take it.
    fn lead_on(self: &Arc<Self>) {
        {
            let mut line = self.line();
            if line.is_led || line.waiting.is_empty() || line.commits >= COMMITS {
                return;
            }
            line.is_led = true;
            line.commits += 1;
        }
        let leader = Leader { inner: Arc::clone(self), leads: true };
        self.tasks.spawn(leader.run());
    }

    /// Records a group and answers each of its requests.
    async fn commit(self: &Arc<Self>, mut group: Vec<Request>) {
        if group.len() == 1 {
            if let Some(request) = group.pop() {
                self.commit_one(request).await;
            }
            return;
        }
        let counts: Vec<usize> = group.iter().map(|request| request.events.len()).collect();
        let mut events: Vec<NewEvent> = Vec::with_capacity(counts.iter().sum());
        for request in &mut group {
            events.append(&mut request.events);
        }
        match self.record(&events, Some(PATIENCE)).await {
            Ok(recorded) => {
                let mut recorded = recorded.into_iter();
                for (request, count) in group.into_iter().zip(counts) {
                    let own = recorded.by_ref().take(count).collect();
                    let _ = request.answer.send(Ok(own));
                }
            }
            Err(error) => {
                tracing::debug!(%error, requests = group.len(), "a group is recorded one by one");
                let mut events = events.into_iter();
                for (mut request, count) in group.into_iter().zip(counts) {
                    request.events = events.by_ref().take(count).collect();
                    let inner = Arc::clone(self);
                    self.tasks.spawn(async move { inner.commit_one(request).await });
                }
            }
        }
    }
    async fn commit_one(&self, request: Request) {
        let recorded = self.record(&request.events, None).await;
        let _ = request.answer.send(recorded);
    }

    /// Events that are there already under their own ids are there through an
    /// earlier try whose answer was lost.
    async fn record(&self, events: &[NewEvent], patience: Option<Duration>) -> Result {
        let mut recorded = self.outbox.record(events, patience).await?;
        if recorded.len() != events.len() {
            return Err(StoreError::Refused("not every event was answered for".into()));
        }
        for (one, event) in recorded.iter_mut().zip(events) {
            if let Recorded::Duplicate { message_id, created_at } = *one
                && event.message_id == Some(message_id)
            {
                *one = Recorded::New { message_id, created_at };
            }
        }
        Ok(recorded)
    }
}

impl Line {
    /// What goes into the next transaction: one request at least.
    fn take(&mut self) -> Vec<Request> {
        let (mut group, mut events, mut bytes) = (Vec::new(), 0, 0);
        while let Some(next) = self.waiting.front() {
            events += next.events.len();
            bytes += next.bytes;
            if !group.is_empty() && (events > GROUP || bytes > GROUP_BYTES) {
                break;
            }
            group.extend(self.waiting.pop_front());
        }
        self.bytes -= group.iter().map(|request| request.bytes).sum::<usize>();
        group
    }
}

/// Commits one group after another while it leads.
struct Leader {
    inner: Arc<Inner>,
    leads: bool,
}

impl Leader {
    async fn run(mut self) {
        while self.leads {
            let group = self.inner.line().take();
            if group.is_empty() {
                break;
            }
            // In a task of its own: where it panics, those that wait go on.
            let inner = Arc::clone(&self.inner);
            let mut commit = self.inner.tasks.spawn(async move { inner.commit(group).await });
            select! {
                biased;
                _ = &mut commit => continue,
                () = sleep(self.inner.slow) => {}
            }
            self.resign();
            let _ = commit.await;
        }
        self.inner.line().commits -= 1;
        self.resign();
        // There is room for another.
        self.inner.lead_on();
    }

    /// Leaves what waits to another.
    fn resign(&mut self) {
        if std::mem::take(&mut self.leads) {
            self.inner.line().is_led = false;
            self.inner.lead_on();
        }
    }
}

/// What an event takes of a transaction.
fn size(event: &NewEvent) -> usize {
    event.payload.len() + event.meta.as_ref().map_or(0, String::len) + EVENT_COST
}

#[cfg(test)]
mod tests;
