//! `GET …/stream`: a project's attempts as they are written, on any host, as
//! server-sent events.

use std::{
    collections::{HashSet, VecDeque},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use super::{
    Shared,
    events::AttemptView,
    extract::{self, Params, Path},
    page,
    problem::{Answer, Kind, Problem},
    projects,
    routes::Routes,
};
use crate::{
    model::outcome::FailureKind,
    store::{AttemptFilter, AttemptRow, PageRequest},
};

mod tail;

pub(super) use tail::Tail;
use tail::Watcher;

/// How often something is sent, so that nobody takes a quiet stream for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How long a stream lasts: a client comes back, with a key that is looked at.
const AGE_MAX: Duration = Duration::from_hours(1);

/// Attempts that a stream may begin with.
const PAST_MAX: u32 = 100;

/// Attempts that a client is told after it comes back.
const RESUMED_MAX: u32 = 1_000;

/// How far back it may go, in ids of all projects.
const REACH: i64 = 100_000;

/// Attempts that are read at once.
const PART: usize = 20;

pub(super) fn routes(routes: Routes) -> Routes {
    routes.get(
        "/v1/projects/{project}/stream",
        &["trigger", "messageId", "failed", "kind", "since", "last"],
        stream,
    )
}

async fn stream(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
    headers: HeaderMap,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let filter = AttemptFilter {
        trigger: params.text("trigger"),
        message_id: params.parse::<Uuid>("messageId", "a UUID")?,
        failed: params.flag("failed")?,
        kind: params.one_of::<FailureKind>("kind")?,
    };
    let past = past(&params)?;
    let resumes_at = last_event_id(&headers)?;
    projects::existing(&app, &project).await?;
    // Watched first, so that nothing is lost between what was and what comes.
    let (watcher, newest) = tail::watch(&app, &project).await?;
    let mut live = Live {
        project,
        filter,
        watcher,
        ids: VecDeque::new(),
        rows: VecDeque::new(),
        told: HashSet::new(),
        ready: None,
        missed: None,
        end: Instant::now() + AGE_MAX,
        app,
    };
    match (resumes_at, past) {
        (Some(id), _) => live.resume(id).await?,
        (None, Some(page)) => live.begin(&page).await?,
        (None, None) => {}
    }
    if live.told.is_empty() && resumes_at.is_none() {
        live.ready = Some(newest);
    }
    let events = stream::unfold(live, async |mut live| {
        live.next().await.map(|event| (Ok::<_, Infallible>(event), live))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

/// What was there before, if the query asks for it.
fn past(params: &Params) -> Answer<Option<PageRequest>> {
    let since = page::time(params, "since")?;
    let what = "a number from 1 to 100";
    let last = params.parse("last", what)?;
    if let Some(wrong) = last.filter(|last| !(1..=PAST_MAX).contains(last)) {
        return Err(extract::wrong("last", &wrong.to_string(), what));
    }
    let asked = since.is_some() || last.is_some();
    let limit = last.unwrap_or(PAST_MAX);
    Ok(asked.then(|| PageRequest { limit, since, ..PageRequest::default() }))
}

/// The last attempt that the client was told, if it comes back.
fn last_event_id(headers: &HeaderMap) -> Answer<Option<i64>> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let detail = "`Last-Event-ID` must be the id of an event of this stream";
    id.map(Some).ok_or_else(|| Problem::new(Kind::BadHeader, detail))
}

/// One stream.
struct Live {
    app: Shared,
    project: String,
    filter: AttemptFilter,
    watcher: Watcher,
    /// What was before, and is still to be told: by id, and as it was read.
    ids: VecDeque<i64>,
    rows: VecDeque<AttemptRow>,
    /// What was before: told once, even if it comes again.
    told: HashSet<i64>,
    /// The id to go on behind for who leaves before the first attempt.
    ready: Option<i64>,
    /// That attempts were left out: how many, or null.
    missed: Option<Value>,
    end: Instant,
}

impl Live {
    /// Begins with what was there before.
    async fn begin(&mut self, page: &PageRequest) -> Answer<()> {
        let page = self.app.api.store.attempts(&self.project, &self.filter, page).await?;
        self.told.extend(page.items.iter().map(|row| row.id));
        self.rows.extend(page.items.into_iter().rev());
        Ok(())
    }

    /// Goes on behind an attempt.
    async fn resume(&mut self, id: i64) -> Answer<()> {
        let store = &self.app.api.store;
        let floor = store.newest_attempt().await? - REACH;
        let mut ids = store.attempt_ids(&self.project, id.max(floor), RESUMED_MAX + 1).await?;
        let more = ids.len() > RESUMED_MAX as usize;
        if more || id < floor {
            self.missed = Some(Value::Null);
            ids.drain(..usize::from(more));
        }
        self.told.extend(&ids);
        self.ids.extend(ids);
        Ok(())
    }

    /// The next event, or the stream's end.
    async fn next(&mut self) -> Option<Event> {
        if let Some(id) = self.ready.take() {
            return Some(Event::default().event("ready").id(id.to_string()).data("{}"));
        }
        loop {
            // The client was too slow, or away for too long.
            if let Some(count) = self.missed.take() {
                let text = json!({ "attempts": count }).to_string();
                return Some(Event::default().event("missed").data(text));
            }
            if let Some(row) = self.rows.pop_front() {
                if self.wants(&row) {
                    return event(row);
                }
                continue;
            }
            if !self.ids.is_empty() {
                let part: Vec<i64> = self.ids.drain(..self.ids.len().min(PART)).collect();
                let rows = self.app.api.store.attempts_by_id(&self.project, &part).await;
                // The client comes back and goes on where it was.
                self.rows.extend(rows.ok()?);
                continue;
            }
            let row = tokio::select! {
                biased;
                () = self.app.stopping.cancelled() => return None,
                () = sleep_until(self.end) => return None,
                row = self.watcher.next() => row,
            };
            match row {
                Ok(row) if self.told.contains(&row.id) => {}
                Ok(row) => self.rows.push_back(Arc::unwrap_or_clone(row)),
                Err(RecvError::Lagged(count)) => self.missed = Some(count.into()),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn wants(&self, row: &AttemptRow) -> bool {
        let AttemptFilter { trigger, message_id, failed, kind } = &self.filter;
        let attempt = &row.attempt;
        trigger.as_ref().is_none_or(|trigger| attempt.trigger == *trigger)
            && message_id.is_none_or(|id| attempt.message_id == id)
            && (!failed || attempt.failure.is_some())
            && kind.is_none_or(|kind| attempt.failure == Some(kind))
    }
}

fn event(row: AttemptRow) -> Option<Event> {
    let id = row.id.to_string();
    // What is written here is always JSON on one line.
    Event::default().event("attempt").id(id).json_data(AttemptView::from(row)).ok()
}
