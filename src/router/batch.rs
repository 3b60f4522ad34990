//! What the calls of one claim have in common.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::rules::Rule;
use crate::targets::Target;

/// The targets of triggers whose calls may follow one another in one instance.
/// They are held while the claim's rows are admitted, then by the calls that
/// are to be made, so that each ends with the last of these.
#[derive(Default)]
pub(super) struct Batch(Mutex<Vec<Known>>);

/// One trigger's target.
struct Known {
    desk: u64,
    target: Weak<dyn Target>,
    held: Option<Arc<dyn Target>>,
}

impl Batch {
    /// The target for one more call of a trigger. A claim is matched with one
    /// version of the rules, so that a trigger has one revision in it.
    pub(super) fn target(&self, rule: &Rule) -> Arc<dyn Target> {
        if !rule.batches() {
            return Arc::clone(&rule.target);
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |known: &Known| known.desk == rule.desk.id;
        let there = all.iter().find(|known| same(known)).and_then(|known| known.target.upgrade());
        if let Some(target) = there {
            return target;
        }
        let Some(target) = rule.target.batch() else { return Arc::clone(&rule.target) };
        // What runs again once all others have ended has a target to itself.
        let held = all.iter().all(|known| !same(known)).then(|| Arc::clone(&target));
        all.retain(|known| !same(known));
        all.push(Known { desk: rule.desk.id, target: Arc::downgrade(&target), held });
        target
    }

    /// All its rows are admitted.
    pub(super) fn complete(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held: Vec<_> = all.iter_mut().filter_map(|known| known.held.take()).collect();
        drop(all);
        drop(held);
    }
}
