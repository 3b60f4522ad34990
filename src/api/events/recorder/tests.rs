//! Requests in groups, over an outbox that commits when it is told to.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::{sync::Semaphore, task::JoinHandle};

use super::*;

/// An outbox in memory.
struct Gated {
    /// Each commit takes one.
    permits: Semaphore,
    /// Events of each commit that came through, and whether it had a patience.
    commits: Mutex<Vec<(usize, bool)>>,
    /// Ids by dedup key, and all of them.
    keys: Mutex<HashMap<String, Uuid>>,
    ids: Mutex<Vec<Uuid>>,
}

impl Gated {
    fn new(permits: usize, slow: Duration) -> (Arc<Self>, Recorder) {
        let outbox = Arc::new(Self {
            permits: Semaphore::new(permits),
            commits: Mutex::default(),
            keys: Mutex::default(),
            ids: Mutex::default(),
        });
        let recorder = Recorder::with(Arc::clone(&outbox) as _, slow);
        (outbox, recorder)
    }

    fn commits(&self) -> Vec<(usize, bool)> {
        self.commits.lock().expect("no panic").clone()
    }
}

#[async_trait]
impl Outbox for Gated {
    async fn record(&self, events: &[NewEvent], patience: Option<Duration>) -> Result {
        self.permits.acquire().await.expect("open").forget();
        let named = |name: &str| events.iter().any(|event| event.event_name == name);
        assert!(!named("panics"), "as it was told");
        if named("refused") {
            return Err(StoreError::Refused("no".into()));
        }
        if named("waits") && patience.is_some() {
            return Err(StoreError::Busy("locked".into()));
        }
        let lost = named("loses its answer") && patience.is_some();
        self.commits.lock().expect("no panic").push((events.len(), patience.is_some()));
        let (mut keys, mut ids) =
            (self.keys.lock().expect("no panic"), self.ids.lock().expect("no panic"));
        let mut recorded = Vec::new();
        for event in events {
            let message_id = event.message_id.expect("an id");
            let there = event.dedup_key.as_ref().and_then(|key| keys.get(key).copied());
            let there = there.or_else(|| ids.contains(&message_id).then_some(message_id));
            recorded.push(if let Some(message_id) = there {
                Recorded::Duplicate { message_id, created_at: 1 }
            } else {
                ids.push(message_id);
                keys.extend(event.dedup_key.clone().map(|key| (key, message_id)));
                Recorded::New { message_id, created_at: 1 }
            });
        }
        if lost { Err(StoreError::Unavailable("broken pipe".into())) } else { Ok(recorded) }
    }
}

/// No commit is slow by accident.
const NEVER: Duration = Duration::from_hours(1);

fn event(name: &str) -> NewEvent {
    NewEvent::new("shop", "order", "o-1", name, "{}")
}

fn keyed(key: &str) -> NewEvent {
    NewEvent { dedup_key: Some(key.into()), ..event("x") }
}

/// Hands requests over in this order, in no time.
async fn hand_over(
    recorder: &Arc<Recorder>,
    requests: Vec<Vec<NewEvent>>,
) -> Vec<JoinHandle<Result>> {
    let mut tasks = Vec::new();
    for events in requests {
        let recorder = Arc::clone(recorder);
        tasks.push(tokio::spawn(async move { recorder.record(events).await }));
        pass().await;
    }
    tasks
}

/// Lets the others do what they can do now.
async fn pass() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// A recorder with one request in its first commit, which waits for a permit.
async fn busy(slow: Duration) -> (Arc<Gated>, Arc<Recorder>, JoinHandle<Result>) {
    let (outbox, recorder) = Gated::new(0, slow);
    let recorder = Arc::new(recorder);
    let mut first = hand_over(&recorder, vec![vec![event("first")]]).await;
    assert_eq!(standing(&recorder), (1, 0));
    (outbox, recorder, first.remove(0))
}

/// Tasks that commit, and requests that wait.
fn standing(recorder: &Recorder) -> (usize, usize) {
    let line = recorder.0.line();
    (line.commits, line.waiting.len())
}

async fn answers(tasks: Vec<JoinHandle<Result>>) -> Vec<Result> {
    join_all(tasks).await.into_iter().map(|answer| answer.expect("no panic")).collect()
}

fn is_new(answer: &Result) -> bool {
    matches!(answer.as_deref(), Ok([Recorded::New { .. }]))
}

#[tokio::test]
async fn a_lone_request_is_recorded_at_once() {
    let (outbox, recorder) = Gated::new(2, NEVER);
    for _ in 0..2 {
        assert!(is_new(&recorder.record(vec![event("x")]).await));
    }
    assert_eq!(outbox.commits(), [(1, false), (1, false)]);
}

#[tokio::test]
async fn what_comes_during_a_commit_shares_the_next_and_keeps_its_own_answers() {
    let (outbox, recorder, first) = busy(NEVER).await;
    let mut requests: Vec<_> = (0..60).map(|n| vec![keyed(&format!("k{}", n % 50))]).collect();
    requests.push(vec![event("x"), keyed("k0"), event("x")]);
    let tasks = hand_over(&recorder, requests).await;
    outbox.permits.add_permits(2);
    assert!(is_new(&first.await.expect("no panic")));
    let answers = answers(tasks).await;
    assert_eq!(outbox.commits(), [(1, false), (63, true)]);
    assert!(answers[..50].iter().all(is_new), "the first with a key wins");
    let id = |answer: &Result| match answer.as_deref() {
        Ok([Recorded::New { message_id, .. } | Recorded::Duplicate { message_id, .. }]) => {
            *message_id
        }
        other => panic!("{other:?}"),
    };
    for n in 50..60 {
        assert!(!is_new(&answers[n]));
        assert_eq!(id(&answers[n]), id(&answers[n - 50]), "the second is told the first's id");
    }
    let several = answers[60].as_deref().expect("recorded");
    let [Recorded::New { .. }, Recorded::Duplicate { message_id, .. }, Recorded::New { .. }] =
        several
    else {
        panic!("{several:?}")
    };
    assert_eq!(*message_id, id(&answers[0]));
}

#[tokio::test]
async fn a_group_is_bounded_by_count_and_by_bytes() {
    let (outbox, recorder, first) = busy(NEVER).await;
    let large = NewEvent { payload: format!("\"{}\"", "x".repeat(3 << 20)), ..event("x") };
    let many = vec![event("x"); 600];
    let requests = [vec![large.clone()], vec![large], many.clone(), many, vec![event("x")]];
    let tasks = hand_over(&recorder, requests.into()).await;
    outbox.permits.add_permits(100);
    first.await.expect("no panic").expect("recorded");
    assert!(answers(tasks).await.iter().all(std::result::Result::is_ok));
    let counts: Vec<usize> = outbox.commits().into_iter().map(|(count, _)| count).collect();
    assert_eq!(counts, [1, 1, 601, 601]);
}

#[tokio::test]
async fn one_that_fails_fails_alone() {
    for bad in ["refused", "panics"] {
        let (outbox, recorder, first) = busy(NEVER).await;
        let names = ["a", bad, "b", "waits"];
        let requests = names.map(|name| vec![event(name)]);
        let tasks = hand_over(&recorder, requests.into()).await;
        outbox.permits.add_permits(100);
        first.await.expect("no panic").expect("recorded");
        let answers = answers(tasks).await;
        if bad == "panics" {
            // Nobody waits for ever, and what comes next finds a way.
            assert!(answers.iter().all(std::result::Result::is_err));
            assert!(is_new(&recorder.record(vec![event("next")]).await));
            continue;
        }
        let new: Vec<bool> = answers.iter().map(is_new).collect();
        assert_eq!(new, [true, false, true, true]);
        assert!(matches!(answers[1], Err(StoreError::Refused(_))), "{:?}", answers[1]);
        assert_eq!(outbox.commits(), [(1, false); 4], "each without a bound on its patience");
    }
}

#[tokio::test]
async fn a_lost_answer_records_nothing_twice() {
    let (outbox, recorder, first) = busy(NEVER).await;
    let requests = [vec![event("loses its answer")], vec![keyed("k")], vec![keyed("k")]];
    let tasks = hand_over(&recorder, requests.into()).await;
    outbox.permits.add_permits(100);
    first.await.expect("no panic").expect("recorded");
    let new: Vec<bool> = answers(tasks).await.iter().map(is_new).collect();
    assert_eq!(new, [true, true, false]);
    assert_eq!(outbox.ids.lock().expect("no panic").len(), 3, "the first one, and two");
}

#[tokio::test]
async fn a_slow_commit_holds_up_nobody_for_long() {
    let (outbox, recorder, first) = busy(Duration::from_millis(50)).await;
    // Once a commit is slow, another one takes what waits, up to a bound.
    let mut tasks = Vec::new();
    for commits in 2..=COMMITS {
        tasks.extend(hand_over(&recorder, vec![vec![event("a")], vec![event("b")]]).await);
        while standing(&recorder) != (commits, 0) {
            sleep(Duration::from_millis(1)).await;
        }
    }
    tasks.extend(hand_over(&recorder, vec![vec![event("c")]]).await);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(standing(&recorder), (COMMITS, 1));
    assert!(!first.is_finished());
    outbox.permits.add_permits(100);
    first.await.expect("no panic").expect("recorded");
    assert!(answers(tasks).await.iter().all(is_new));
    recorder.finish().await;
    assert_eq!(standing(&recorder), (0, 0));
}

#[tokio::test]
async fn what_its_caller_gave_up_is_recorded_before_the_end() {
    let (outbox, recorder, first) = busy(NEVER).await;
    let tasks = hand_over(&recorder, vec![vec![event("a")], vec![event("b")]]).await;
    tasks.iter().for_each(JoinHandle::abort);
    first.abort();
    let finish = tokio::spawn(async move { recorder.finish().await });
    pass().await;
    assert!(!finish.is_finished());
    outbox.permits.add_permits(100);
    finish.await.expect("no panic");
    assert_eq!(outbox.ids.lock().expect("no panic").len(), 3);
}

#[tokio::test]
async fn there_is_an_end_to_what_may_wait() {
    let (outbox, recorder, first) = busy(NEVER).await;
    {
        let mut line = recorder.0.line();
        line.bytes = WAITING_BYTES;
    }
    let alone = hand_over(&recorder, vec![vec![event("x")]]).await;
    let error = recorder.record(vec![event("x")]).await.expect_err("too many");
    assert!(matches!(error, StoreError::Busy(_)), "{error}");
    outbox.permits.add_permits(100);
    first.await.expect("no panic").expect("recorded");
    assert!(answers(alone).await.iter().all(is_new));
}
