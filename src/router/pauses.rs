//! Triggers that keep failing pause themselves, before their backlog becomes
//! dead letters one after another.

use std::{sync::Arc, time::Duration};

use tokio::{select, time::sleep};

use super::{host::Host, ledger::Job, rules::Rule};
use crate::model::{names::storable, outcome::Failure};

/// Bytes of the last failure's message that the reason quotes.
const QUOTE: usize = 300;

/// Rest after the database didn't take the pause.
const REST: Duration = Duration::from_secs(1);

impl Host {
    /// A call's failure would make a dead letter. If its trigger has failed too
    /// often in a row, that pauses it instead: answers whether it does.
    pub(super) fn pauses(self: &Arc<Self>, job: &Job, why: &Failure) -> bool {
        let rule = &job.rule;
        let desk = &rule.desk;
        if !why.kind.burns_attempt() {
            return false;
        }
        if !desk.streak.reaches(rule.trigger.spec.retry.pause_after) {
            desk.streak.failed(job.event.message_id);
            return false;
        }
        if !desk.set_paused(true) {
            return true;
        }
        let (project, trigger) = (&rule.trigger.project, rule.name());
        let calls = desk.streak.length();
        tracing::warn!(
            project,
            trigger,
            calls,
            kind = why.kind.as_str(),
            "a trigger pauses itself"
        );
        self.metrics.paused();
        let reason = format!(
            "paused itself after {calls} failed calls in a row; the last failed with {}: {}",
            why.kind.as_str(),
            storable(&why.message, QUOTE),
        );
        let (host, rule) = (Arc::clone(self), Arc::clone(rule));
        self.tasks.spawn(async move { host.pause(&rule, &reason).await });
        true
    }

    /// Pauses a trigger for all hosts, unless somebody has changed it since.
    async fn pause(&self, rule: &Rule, reason: &str) {
        let trigger = &rule.trigger;
        let (project, name, revision) = (&trigger.project, &trigger.name, trigger.revision);
        loop {
            match self.store.pause_trigger(project, name, Some(reason), Some(revision)).await {
                Ok(true) => return,
                Ok(false) => {
                    let rules = self.rules.load();
                    let paused =
                        rules.rule(project, name).is_some_and(|r| r.trigger.paused.is_some());
                    rule.desk.set_paused(paused);
                    return;
                }
                // Here it is paused already.
                Err(error) => self.faulty("pausing a trigger", &error),
            }
            select! {
                () = self.soft.cancelled() => return,
                () = sleep(REST) => {}
            }
        }
    }
}
