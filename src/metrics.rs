//! Counters of this host and, beside them, counts of everything.
//!
//! Names are `outrigger_*`, in base units (seconds, bytes). What this host
//! counted begins at zero when it starts; what comes from the database is the
//! same on every host, so it is to be read from one (`max by`), not summed.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock, atomic::AtomicU64},
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::store::Status;

mod counts;

type Labels<const N: usize> = [(&'static str, String); N];
type Seconds = Counter<f64, AtomicU64>;
type Spans<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// What this host counts. Every method is a few atomic operations.
pub struct Metrics {
    registry: Registry,
    recorded: Counter,
    record_commits: Counter,
    claimed: Counter,
    dispatched: Counter,
    lost: Counter,
    conflicts: Counter,
    paused: Counter,
    archived: Counter,
    archive_failures: Counter,
    spilled: Family<Labels<1>, Counter>,
    dead: Family<Labels<1>, Counter>,
    retried: Family<Labels<1>, Counter>,
    claim_seconds: Histogram,
    claim_rows: Histogram,
    settle_seconds: Histogram,
    settle_rows: Histogram,
    calls: Family<Labels<3>, Counter>,
    call_seconds: Spans<2>,
    cpu_seconds: Family<Labels<2>, Seconds>,
    stalled: Gauge,
    held: Gauge,
    triggers: Mutex<HashMap<(String, String), Arc<TriggerMetrics>>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Counters at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("outrigger"),
            recorded: Counter::default(),
            record_commits: Counter::default(),
            claimed: Counter::default(),
            dispatched: Counter::default(),
            lost: Counter::default(),
            conflicts: Counter::default(),
            paused: Counter::default(),
            archived: Counter::default(),
            archive_failures: Counter::default(),
            spilled: Family::default(),
            dead: Family::default(),
            retried: Family::default(),
            claim_seconds: seconds(),
            claim_rows: rows(),
            settle_seconds: seconds(),
            settle_rows: rows(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(seconds),
            cpu_seconds: Family::default(),
            stalled: Gauge::default(),
            held: Gauge::default(),
            triggers: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    /// One transaction recorded so many events of requests; those whose dedup
    /// keys were used count too.
    pub fn recorded(&self, n: u64) {
        self.recorded.inc_by(n);
        self.record_commits.inc();
    }

    /// So many rows, events and deliveries, were claimed.
    pub fn claimed(&self, n: u64) {
        self.claimed.inc_by(n);
    }

    /// So many events were acknowledged.
    pub fn dispatched(&self, n: u64) {
        self.dispatched.inc_by(n);
    }

    /// So many claims were lost before their result was written.
    pub fn lost(&self, n: u64) {
        self.lost.inc_by(n);
    }

    /// So many calls are run again because state that they read has changed.
    pub fn conflicts(&self, n: u64) {
        self.conflicts.inc_by(n);
    }

    /// A trigger paused itself.
    pub fn paused(&self) {
        self.paused.inc();
    }

    /// So many old events are in a file.
    pub fn archived(&self, n: u64) {
        self.archived.inc_by(n);
    }

    /// A file of old events couldn't be written.
    pub fn archive_failed(&self) {
        self.archive_failures.inc();
    }

    /// So many pairs of event and trigger got a queue of their own, for this cause.
    pub fn spilled(&self, cause: &'static str, n: u64) {
        self.spilled.get_or_create(&[("cause", cause.to_owned())]).inc_by(n);
    }

    /// A delivery became a dead letter, after a failure of this kind.
    pub fn dead(&self, kind: &'static str) {
        self.dead.get_or_create(&[("kind", kind.to_owned())]).inc();
    }

    /// A delivery is tried again, after a failure of this kind.
    pub fn retried(&self, kind: &'static str) {
        self.retried.get_or_create(&[("kind", kind.to_owned())]).inc();
    }

    /// A settle wrote so many results in so many seconds.
    pub fn settle(&self, rows: usize, seconds: f64) {
        self.settle_rows.observe(float(rows));
        self.settle_seconds.observe(seconds);
    }

    /// A claim brought so many rows in so many seconds.
    pub fn claim(&self, rows: usize, seconds: f64) {
        self.claim_rows.observe(float(rows));
        self.claim_seconds.observe(seconds);
    }

    /// Counters of one trigger, to be kept by whoever calls it.
    #[must_use]
    pub fn for_trigger(&self, project: &str, trigger: &str) -> Arc<TriggerMetrics> {
        let key = (project.to_owned(), trigger.to_owned());
        let mut triggers = self.triggers.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = triggers.entry(key).or_insert_with_key(|(project, trigger)| {
            let labels = [("project", escape(project)), ("trigger", escape(trigger))];
            Arc::new(TriggerMetrics {
                calls: self.calls.clone(),
                seconds: self.call_seconds.get_or_create_owned(&labels),
                cpu_seconds: self.cpu_seconds.get_or_create_owned(&labels),
                outcomes: RwLock::default(),
                labels,
            })
        });
        Arc::clone(metrics)
    }

    /// Forgets a trigger that was deleted.
    pub fn forget_trigger(&self, project: &str, trigger: &str) {
        let key = (project.to_owned(), trigger.to_owned());
        let mut triggers = self.triggers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(metrics) = triggers.remove(&key) else { return };
        self.call_seconds.remove(&metrics.labels);
        self.cpu_seconds.remove(&metrics.labels);
        let outcomes = metrics.outcomes.read().unwrap_or_else(PoisonError::into_inner);
        for (outcome, _) in outcomes.iter() {
            self.calls.remove(&metrics.labels_of(outcome));
        }
    }

    /// Whether the router is stalled, and how many rows it holds.
    pub fn health(&self, stalled: bool, held: usize) {
        self.stalled.set(stalled.into());
        self.held.set(i64::try_from(held).unwrap_or(i64::MAX));
    }

    /// Everything as Prometheus reads it, with counts of everything if they
    /// are known.
    #[must_use]
    pub fn encode(&self, status: Option<&Status>) -> String {
        let mut out = String::new();
        let encoded = text::encode_registry(&mut out, &self.registry)
            .and_then(|()| match status {
                Some(status) => text::encode_registry(&mut out, &counts::registry(status)),
                None => Ok(()),
            })
            .and_then(|()| text::encode_eof(&mut out));
        // Writing to a text doesn't fail; a scrape without its end is refused.
        if let Err(error) = encoded {
            tracing::error!(%error, "the metrics can't be written");
        }
        out
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "This program", Info::new(version));
        let counters = [
            ("recorded_events", "Events of requests that this host recorded", &self.recorded),
            ("record_commits", "Transactions that recorded them", &self.record_commits),
            ("claimed_rows", "Events and deliveries that this host claimed", &self.claimed),
            ("dispatched_events", "Events that this host acknowledged", &self.dispatched),
            ("lost_claims", "Claims that ended before their result was written", &self.lost),
            ("state_conflicts", "Calls run again because state had changed", &self.conflicts),
            ("self_pauses", "Triggers that this host paused since they kept failing", &self.paused),
            ("archived_events", "Old events that this host archived", &self.archived),
            ("archive_failures", "Archive files that couldn't be written", &self.archive_failures),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let families = [
            ("spilled_deliveries", "Pairs that got a queue of their own, by cause", &self.spilled),
            ("dead_deliveries", "Deliveries that became dead letters, by kind", &self.dead),
            ("retried_deliveries", "Deliveries that are tried again, by kind", &self.retried),
        ];
        for (name, help, family) in families {
            registry.register(name, help, family.clone());
        }
        let histograms = [
            ("claim_seconds", "Time that a claim took", &self.claim_seconds),
            ("claim_rows", "Rows that a claim brought", &self.claim_rows),
            ("settle_seconds", "Time that a settle took", &self.settle_seconds),
            ("settle_rows", "Results that a settle wrote", &self.settle_rows),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
        registry.register("calls", "Calls of triggers, by outcome", self.calls.clone());
        registry.register("call_seconds", "Time that a call took", self.call_seconds.clone());
        registry.register("call_cpu_seconds", "Processor time of calls", self.cpu_seconds.clone());
        registry.register("stalled", "1 if the router gets nothing done", self.stalled.clone());
        registry.register("held_rows", "Rows that this host holds", self.held.clone());
    }
}

/// Counters of one trigger.
#[derive(Debug)]
pub struct TriggerMetrics {
    calls: Family<Labels<3>, Counter>,
    seconds: Histogram,
    cpu_seconds: Seconds,
    /// Few, so a list is the fastest map.
    outcomes: RwLock<Vec<(&'static str, Counter)>>,
    labels: Labels<2>,
}

impl TriggerMetrics {
    /// A call ended with this outcome, after so many seconds, of which so many
    /// on a processor.
    pub fn call(&self, outcome: &'static str, seconds: f64, cpu_seconds: f64) {
        self.outcome(outcome).inc();
        self.seconds.observe(seconds);
        // A counter that falls would look like a restart.
        self.cpu_seconds.inc_by(cpu_seconds.max(0.0));
    }

    fn outcome(&self, outcome: &'static str) -> Counter {
        let known = self.outcomes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = known.iter().find(|(known, _)| *known == outcome) {
            return counter.clone();
        }
        drop(known);
        let counter = self.calls.get_or_create_owned(&self.labels_of(outcome));
        let mut known = self.outcomes.write().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|(known, _)| *known == outcome) {
            known.push((outcome, counter.clone()));
        }
        counter
    }

    fn labels_of(&self, outcome: &str) -> Labels<3> {
        let [project, trigger] = self.labels.clone();
        [project, trigger, ("outcome", outcome.to_owned())]
    }
}

/// From a tenth of a millisecond to a minute.
fn seconds() -> Histogram {
    Histogram::new([
        0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
        2.5, 5.0, 10.0, 30.0, 60.0,
    ])
}

fn rows() -> Histogram {
    Histogram::new([0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0])
}

#[expect(clippy::cast_precision_loss, reason = "rows of a batch are few")]
const fn float(rows: usize) -> f64 {
    rows as f64
}

/// A label's value as the format wants it: the encoder writes it as it is.
fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ProjectCounts, TriggerCounts};

    #[test]
    fn what_was_counted_is_encoded() {
        let metrics = Metrics::new();
        metrics.claimed(3);
        metrics.spilled("failed", 2);
        metrics.settle(10, 0.002);
        metrics.health(true, 7);
        let trigger = metrics.for_trigger("shop", "mail");
        trigger.call("done", 0.001, 0.0005);
        trigger.call("done", 0.001, 0.0005);
        let text = metrics.encode(None);
        for line in [
            "outrigger_claimed_rows_total 3",
            "outrigger_spilled_deliveries_total{cause=\"failed\"} 2",
            "outrigger_settle_rows_bucket{le=\"10.0\"} 1",
            "outrigger_stalled 1",
            "outrigger_held_rows 7",
            "outrigger_calls_total{project=\"shop\",trigger=\"mail\",outcome=\"done\"} 2",
            "outrigger_call_seconds_count{project=\"shop\",trigger=\"mail\"} 2",
            "outrigger_call_cpu_seconds_total{project=\"shop\",trigger=\"mail\"} 0.001",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        metrics.forget_trigger("shop", "mail");
        assert!(!metrics.encode(None).contains("mail"));
    }

    #[test]
    fn counts_are_added_and_their_labels_escaped() {
        let trigger = TriggerCounts { done: 4, dead: 2, ..TriggerCounts::default() };
        let project = ProjectCounts {
            pending: 5,
            oldest_pending_ms: Some(1500),
            triggers: [("mail".to_owned(), trigger)].into(),
            ..ProjectCounts::default()
        };
        let status = Status { now: 1, projects: [("a\"b\\\n".to_owned(), project)].into() };
        let text = Metrics::new().encode(Some(&status));
        for line in [
            r#"outrigger_events_pending{project="a\"b\\\n"} 5"#,
            r#"outrigger_events_oldest_pending_age_seconds{project="a\"b\\\n"} 1.5"#,
            r#"outrigger_deliveries{project="a\"b\\\n",trigger="mail",state="dead"} 2"#,
            r#"outrigger_deliveries_done_total{project="a\"b\\\n",trigger="mail"} 4"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
        }
        assert_eq!(text.matches("# EOF").count(), 1);
    }
}
