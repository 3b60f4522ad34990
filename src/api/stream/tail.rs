//! One look at a project's new attempts for all who watch it.
//!
//! A project is looked at while somebody watches: when this host has written
//! attempts, and once a second for those of others. Ids don't become visible in
//! their order, so each look begins where the ids ended a while ago, and what
//! was seen is remembered. Whoever is too slow misses attempts, and is told so:
//! nothing waits for a reader, and no more is kept than fits the channel.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    select,
    sync::broadcast::{self, Receiver, Sender, error::RecvError},
    time::{Instant, sleep},
};

use crate::{
    api::{
        App, Shared,
        problem::{Answer, Kind, Problem},
    },
    store::{AttemptRow, StoreError},
};

/// Streams of one host, and of one project among them.
const STREAMS_MAX: usize = 256;
const PROJECT_MAX: usize = 16;

/// Attempts that are kept for the slowest.
const KEPT: usize = 64;

/// How often attempts of other hosts are looked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// How soon after this host has written some.
const SOON: Duration = Duration::from_millis(50);

/// How long an id may take to become visible after a higher one.
const LATE: Duration = Duration::from_secs(15);

/// Ids in which that may have happened before the first look.
const BEFORE: i64 = 1_000;

/// Ids that one look takes, and attempts that are read at once.
const LOOK: u32 = 5_000;
const PART: usize = KEPT / 2;

/// How long the slowest is waited for before the next part.
const PATIENCE: (u32, Duration) = (10, Duration::from_millis(5));

type Row = Arc<AttemptRow>;

/// The projects that are watched.
#[derive(Default)]
pub(in crate::api) struct Tail(Mutex<HashMap<String, Sender<Row>>>);

impl Tail {
    /// Streams that are open.
    pub(in crate::api) fn streams(&self) -> usize {
        self.projects().values().map(Sender::receiver_count).sum()
    }

    /// Ends a project that nobody watches any more. Answers whether it has.
    fn end(&self, project: &str) -> bool {
        let mut projects = self.projects();
        let watched = projects.get(project).is_some_and(|sender| sender.receiver_count() > 0);
        if !watched {
            projects.remove(project);
        }
        !watched
    }

    fn projects(&self) -> MutexGuard<'_, HashMap<String, Sender<Row>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of a project's attempts.
pub(super) struct Watcher(Receiver<Row>);

impl Watcher {
    /// The next attempt, or how many were missed.
    pub(super) async fn next(&mut self) -> Result<Row, RecvError> {
        self.0.recv().await
    }
}

/// Watches a project: every attempt that is written from now on. Answers the
/// newest that there is, too.
///
/// # Errors
/// When too many watch already, or the database fails.
pub(super) async fn watch(app: &Shared, project: &str) -> Answer<(Watcher, i64)> {
    let (seen, newest) = Seen::begin(app, project).await?;
    let mut projects = app.tail.projects();
    let all: usize = projects.values().map(Sender::receiver_count).sum();
    let own = projects.get(project).map_or(0, Sender::receiver_count);
    if all >= STREAMS_MAX || own >= PROJECT_MAX {
        let detail = format!(
            "a host has {STREAMS_MAX} streams, and {PROJECT_MAX} of one project, at the most"
        );
        return Err(Problem::new(Kind::Unavailable, detail));
    }
    if let Some(sender) = projects.get(project) {
        return Ok((Watcher(sender.subscribe()), newest));
    }
    let (sender, receiver) = broadcast::channel(KEPT);
    projects.insert(project.to_owned(), sender.clone());
    tokio::spawn(look_on(Arc::clone(app), project.to_owned(), sender, seen));
    Ok((Watcher(receiver), newest))
}

async fn look_on(app: Shared, project: String, sender: Sender<Row>, mut seen: Seen) {
    let mut failing = false;
    loop {
        let mut written = pin!(app.api.pulse.attempts());
        match look(&app, &project, &sender, &mut seen).await {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                tracing::warn!(%error, project, "looking for new attempts failed");
                failing = true;
            }
            Err(_) => {}
        }
        if app.tail.end(&project) {
            return;
        }
        select! {
            () = app.stopping.cancelled() => return,
            () = sleep(INTERVAL) => {}
            () = &mut written => sleep(SOON).await,
        }
    }
}

/// Hands out what is new.
async fn look(
    app: &App,
    project: &str,
    sender: &Sender<Row>,
    seen: &mut Seen,
) -> Result<(), StoreError> {
    let store = &app.api.store;
    let newest = store.newest_attempt().await?;
    let ids = store.attempt_ids(project, seen.from, LOOK).await?;
    let new: Vec<i64> = ids.into_iter().filter(|id| !seen.ids.contains(id)).collect();
    for part in new.chunks(PART) {
        for row in store.attempts_by_id(project, part).await? {
            // All may have gone meanwhile.
            let _ = sender.send(Arc::new(row));
        }
        seen.ids.extend(part);
        for _ in 0..PATIENCE.0 {
            if sender.len() + PART <= KEPT {
                break;
            }
            sleep(PATIENCE.1).await;
        }
    }
    seen.until(newest);
    Ok(())
}

/// What was seen of a project's attempts.
struct Seen {
    /// The id behind which everything is looked at again.
    from: i64,
    /// The highest ids of all projects lately, and when.
    newest: VecDeque<(Instant, i64)>,
    /// The project's ids behind `from`.
    ids: HashSet<i64>,
}

impl Seen {
    /// Everything that is there now has been seen.
    async fn begin(app: &App, project: &str) -> Result<(Self, i64), StoreError> {
        let store = &app.api.store;
        let newest = store.newest_attempt().await?;
        let from = newest - BEFORE;
        // Those that came since are told as new, too: nothing is lost.
        let ids = store.attempt_ids(project, from, LOOK).await?;
        let ids = ids.into_iter().filter(|id| *id <= newest).collect();
        let lately = VecDeque::from([(Instant::now(), newest)]);
        Ok((Self { from, newest: lately, ids }, newest))
    }

    /// Everything up to this id, but for what becomes visible late.
    fn until(&mut self, newest: i64) {
        let now = Instant::now();
        self.newest.push_back((now, newest));
        while let Some((_, id)) = self.newest.pop_front_if(|(at, _)| *at + LATE < now) {
            self.from = id;
        }
        self.ids.retain(|id| *id > self.from);
    }
}
