//! What the calls of one claim have in common.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::rules::Rule;
use crate::targets::Target;

/// The targets of triggers whose calls may follow one another in one instance.
/// Calls that are to be made hold them, so each ends with the last of these.
#[derive(Default)]
pub(super) struct Batch(Mutex<Vec<(u64, Weak<dyn Target>)>>);

impl Batch {
    /// The target for one more call of a trigger. A batch is matched at once,
    /// so that a trigger has one revision in it.
    pub(super) fn target(&self, rule: &Rule) -> Arc<dyn Target> {
        if !rule.batches() {
            return Arc::clone(&rule.target);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |of: &u64| *of == rule.desk.id;
        let there = known.iter().find(|(of, _)| same(of)).and_then(|(_, target)| target.upgrade());
        if let Some(target) = there {
            return target;
        }
        let Some(target) = rule.target.batch() else { return Arc::clone(&rule.target) };
        known.retain(|(of, _)| !same(of));
        known.push((rule.desk.id, Arc::downgrade(&target)));
        target
    }
}
