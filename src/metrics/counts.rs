//! Counts of everything, as gauges.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{Labels, escape};
use crate::store::{ProjectCounts, Status, TriggerCounts};

/// A registry of one scrape.
pub(super) fn registry(status: &Status) -> Registry {
    let mut registry = Registry::with_prefix("outrigger");
    projects(&mut registry, status);
    triggers(&mut registry, status);
    registry
}

fn projects(registry: &mut Registry, status: &Status) {
    type Count = fn(&ProjectCounts) -> i64;
    let gauges: [(&str, &str, Count); 3] = [
        ("events_pending", "Events that wait to be claimed", |counts| counts.pending),
        ("events_in_flight", "Events that are claimed", |counts| counts.in_flight),
        ("events_scheduled", "Events that are not due yet", |counts| counts.scheduled),
    ];
    for (name, help, count) in gauges {
        let family = Family::<Labels<1>, Gauge>::default();
        for (project, counts) in &status.projects {
            family.get_or_create(&of_project(project)).set(count(counts));
        }
        registry.register(name, help, family);
    }
    let dispatched = Family::<Labels<1>, Counter>::default();
    let oldest = Family::<Labels<1>, Gauge<f64, AtomicU64>>::default();
    for (project, counts) in &status.projects {
        let labels = of_project(project);
        dispatched.get_or_create(&labels).inc_by(unsigned(counts.dispatched));
        oldest.get_or_create(&labels).set(seconds(counts.oldest_pending_ms.unwrap_or(0)));
    }
    registry.register("events_dispatched", "Events acknowledged, by all hosts", dispatched);
    registry.register(
        "events_oldest_pending_age_seconds",
        "Age of the oldest event that waits, 0 if none does",
        oldest,
    );
}

fn triggers(registry: &mut Registry, status: &Status) {
    type Count = fn(&TriggerCounts) -> i64;
    let by_state: [(&str, Count); 3] = [
        ("ready", |counts| counts.retrying),
        ("blocked", |counts| counts.blocked),
        ("dead", |counts| counts.dead),
    ];
    let deliveries = Family::<Labels<3>, Gauge>::default();
    let done = Family::<Labels<2>, Counter>::default();
    let failed = Family::<Labels<2>, Counter>::default();
    for (project, counts) in &status.projects {
        for (trigger, counts) in &counts.triggers {
            let labels = [("project", escape(project)), ("trigger", escape(trigger))];
            done.get_or_create(&labels).inc_by(unsigned(counts.done));
            failed.get_or_create(&labels).inc_by(unsigned(counts.failed));
            for (state, count) in by_state {
                let [project, trigger] = labels.clone();
                let labels = [project, trigger, ("state", state.to_owned())];
                deliveries.get_or_create(&labels).set(count(counts));
            }
        }
    }
    registry.register("deliveries", "Open deliveries and dead letters, by state", deliveries);
    registry.register("deliveries_done", "Calls that ended well, by all hosts", done);
    registry.register("deliveries_failed", "Calls that failed, by all hosts", failed);
}

fn of_project(project: &str) -> Labels<1> {
    [("project", escape(project))]
}

fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "ages are below 2^52 ms")]
fn seconds(millis: i64) -> f64 {
    millis as f64 / 1000.0
}
