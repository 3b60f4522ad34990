//! State that finished calls have written and no settle has committed yet.
//!
//! A later call of the same trigger on this host reads it, so that calls in
//! flight don't overtake each other. All of it is a guess that a settle checks
//! by value: forgetting it, or being wrong, costs a call that is run again and
//! never a wrong result.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;

use crate::{
    model::effect::{Listing, StateUse, Write},
    store::Queue,
    targets::State,
};

/// After a conflict, so many calls of the trigger run one after another.
const CAUTION: u32 = 32;

/// Unsettled state of one trigger.
#[derive(Default)]
pub(super) struct Pending {
    keys: Mutex<BTreeMap<String, Unsettled>>,
    /// Held by calls that run one after another.
    gate: Arc<tokio::sync::Mutex<()>>,
    caution: AtomicU32,
}

/// What a key will hold, as far as this host knows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unsettled {
    /// This, after the settle of that unit.
    Known(Option<Vec<u8>>, u64),
    /// So much more than is stored; by so many units.
    Added(i64, u32),
}

impl Pending {
    /// Waits for its turn if calls of this trigger have met lately, or `always`.
    pub(super) async fn turn(&self, always: bool) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let careful = self
            .caution
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok();
        if careful || always {
            return Some(Arc::clone(&self.gate).lock_owned().await);
        }
        None
    }

    /// Takes note of a conflict: the guesses were wrong.
    pub(super) fn conflicted(&self) {
        self.caution.store(CAUTION, Ordering::Relaxed);
        self.forget();
    }

    /// Drops every guess.
    pub(super) fn forget(&self) {
        self.keys().clear();
    }

    /// Checks what a call read against what others have written since, and if
    /// it still holds, takes in what it wrote. Answers whether it does.
    pub(super) fn publish(&self, unit: u64, state: &StateUse) -> bool {
        if state.is_empty() {
            return true;
        }
        let mut keys = self.keys();
        let read = state.reads.iter().all(|(key, seen)| match keys.get(key) {
            Some(Unsettled::Known(value, _)) => value == seen,
            Some(Unsettled::Added(..)) | None => true,
        });
        if !read || !state.listings.iter().all(|listing| lists(&keys, listing)) {
            return false;
        }
        for (key, write) in &state.writes {
            let next = match (write, keys.get(key)) {
                (Write::Set(value), _) => Unsettled::Known(Some(value.clone()), unit),
                (Write::Delete, _) => Unsettled::Known(None, unit),
                (Write::Add(delta), Some(Unsettled::Added(sum, n))) => {
                    Unsettled::Added(sum.saturating_add(*delta), n + 1)
                }
                (Write::Add(delta), None) => Unsettled::Added(*delta, 1),
                (Write::Add(_), Some(Unsettled::Known(value, _))) => {
                    match write.apply(key, value.as_deref()) {
                        Ok(sum) => Unsettled::Known(sum.map(std::borrow::Cow::into_owned), unit),
                        // The settle will say so.
                        Err(_) => continue,
                    }
                }
            };
            keys.insert(key.clone(), next);
        }
        true
    }

    /// Forgets what a unit wrote: it is stored now.
    pub(super) fn settled(&self, unit: u64, state: &StateUse) {
        if state.writes.is_empty() {
            return;
        }
        let mut keys = self.keys();
        for (key, write) in &state.writes {
            match (keys.get_mut(key), write) {
                (Some(Unsettled::Known(_, by)), _) if *by == unit => {
                    keys.remove(key);
                }
                (Some(Unsettled::Added(sum, n)), Write::Add(delta)) => {
                    (*sum, *n) = (sum.saturating_sub(*delta), n.saturating_sub(1));
                    if *n == 0 {
                        keys.remove(key);
                    }
                }
                _ => {}
            }
        }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<String, Unsettled>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a listing agrees with what is unsettled in its range.
fn lists(keys: &BTreeMap<String, Unsettled>, listing: &Listing) -> bool {
    let full = listing.keys.len() >= listing.limit as usize;
    within(keys, &listing.prefix, listing.after.as_deref()).all(|(key, unsettled)| {
        let there = !matches!(unsettled, Unsettled::Known(None, _));
        let beyond = full && listing.keys.last().is_none_or(|last| key > last);
        beyond || listing.keys.binary_search(key).is_ok() == there
    })
}

fn within<'a>(
    keys: &'a BTreeMap<String, Unsettled>,
    prefix: &'a str,
    after: Option<&'a str>,
) -> impl Iterator<Item = (&'a String, &'a Unsettled)> {
    let from = match after.filter(|after| *after >= prefix) {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(prefix),
    };
    keys.range::<str, _>((from, Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

/// A trigger's state: what is stored, with what is unsettled over it.
pub(super) struct View {
    pub(super) store: Arc<dyn Queue>,
    pub(super) rule: Arc<super::rules::Rule>,
}

impl View {
    fn unsettled(&self, key: &str) -> Option<Unsettled> {
        self.rule.desk.pending.keys().get(key).cloned()
    }
}

#[async_trait]
impl State for View {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        let unsettled = self.unsettled(key);
        if let Some(Unsettled::Known(value, _)) = unsettled {
            return Ok(value);
        }
        let trigger = &self.rule.trigger;
        let stored = self
            .store
            .state_value(&trigger.project, &trigger.name, key)
            .await
            .map_err(|error| error.to_string())?;
        match unsettled {
            Some(Unsettled::Added(sum, _)) => Write::Add(sum)
                .apply(key, stored.as_deref())
                .map(|value| value.map(std::borrow::Cow::into_owned))
                // Whatever it is, the settle judges it.
                .or(Ok(stored)),
            _ => Ok(stored),
        }
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, String> {
        let unsettled: Vec<(String, bool)> = {
            let keys = self.rule.desk.pending.keys();
            within(&keys, prefix, after)
                .map(|(key, u)| (key.clone(), !matches!(u, Unsettled::Known(None, _))))
                .collect()
        };
        let spare = unsettled.iter().filter(|(_, there)| !there).count();
        let wanted = limit.saturating_add(u32::try_from(spare).unwrap_or(u32::MAX));
        let trigger = &self.rule.trigger;
        let stored = self
            .store
            .state_keys(&trigger.project, &trigger.name, prefix, after, wanted)
            .await
            .map_err(|error| error.to_string())?;
        let mut keys: std::collections::BTreeSet<String> = stored.into_iter().collect();
        for (key, there) in unsettled {
            if there {
                keys.insert(key);
            } else {
                keys.remove(&key);
            }
        }
        Ok(keys.into_iter().take(limit as usize).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(key: &str, seen: Option<&str>) -> StateUse {
        let seen = seen.map(|text| text.as_bytes().to_vec());
        StateUse { reads: [(key.to_owned(), seen)].into(), ..StateUse::default() }
    }

    fn writes(key: &str, write: Write) -> StateUse {
        StateUse { writes: [(key.to_owned(), write)].into(), ..StateUse::default() }
    }

    #[test]
    fn an_overtaken_read_is_noticed_at_once() {
        let pending = Pending::default();
        assert!(pending.publish(1, &writes("k", Write::Set(b"1".to_vec()))));
        assert!(!pending.publish(2, &reads("k", None)));
        assert!(pending.publish(2, &reads("k", Some("1"))));
        assert!(pending.publish(2, &reads("other", None)));
    }

    #[test]
    fn what_is_settled_is_forgotten_unless_written_again() {
        let pending = Pending::default();
        let first = writes("k", Write::Set(b"1".to_vec()));
        pending.publish(1, &first);
        pending.publish(2, &writes("k", Write::Add(4)));
        pending.settled(1, &first);
        assert_eq!(pending.keys().get("k"), Some(&Unsettled::Known(Some(b"5".to_vec()), 2)));
        pending.settled(2, &writes("k", Write::Add(4)));
        assert!(pending.keys().is_empty());
    }

    #[test]
    fn additions_are_kept_apart_until_each_is_settled() {
        let pending = Pending::default();
        let add = |n| writes("k", Write::Add(n));
        pending.publish(1, &add(1));
        pending.publish(2, &add(2));
        pending.settled(1, &add(1));
        assert_eq!(pending.keys().get("k"), Some(&Unsettled::Added(2, 1)));
        pending.settled(2, &add(2));
        assert!(pending.keys().is_empty());
    }

    #[test]
    fn listings_see_new_and_deleted_keys() {
        let listing = |keys: &[&str], limit| StateUse {
            listings: vec![Listing {
                prefix: "a/".into(),
                after: None,
                limit,
                keys: keys.iter().map(|k| (*k).to_owned()).collect(),
            }],
            ..StateUse::default()
        };
        let pending = Pending::default();
        pending.publish(1, &writes("a/2", Write::Set(Vec::new())));
        assert!(!pending.publish(2, &listing(&["a/1"], 10)));
        assert!(pending.publish(2, &listing(&["a/1", "a/2"], 10)));
        assert!(pending.publish(2, &listing(&["a/1"], 1)), "beyond the limit");
        pending.publish(1, &writes("a/2", Write::Delete));
        assert!(!pending.publish(2, &listing(&["a/1", "a/2"], 10)));
    }
}
