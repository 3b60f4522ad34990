//! Whether what calls read of their triggers' state still holds at a settle.
//!
//! A settle loads what a group of settlements [`Needs`], under the database's
//! locks, into an [`Overlay`], and admits them in order: each sees the writes
//! of those before it. No I/O here; both databases use the same rules.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::{Settled, Settlement};
use crate::model::effect::{Listing, Write};

/// Project and trigger.
pub(super) type Owner = (String, String);

/// Project, trigger and key.
pub(super) type Place = (String, String, String);

/// Project, trigger, prefix and after.
pub(super) type Range = (String, String, String, Option<String>);

/// What has to be loaded before a group can be checked.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Whose state is touched, in the order in which to lock it.
    pub(super) owners: BTreeSet<Owner>,
    /// Keys that are read or written.
    pub(super) places: BTreeSet<Place>,
    /// Ranges that were listed, and how many keys of each are needed so that
    /// the group's own deletions can't hide any.
    pub(super) ranges: BTreeMap<Range, u32>,
}

impl Needs {
    pub(super) fn of<'a>(group: impl Iterator<Item = &'a Settlement> + Clone) -> Self {
        let mut needs = Self::default();
        let mut deletions: BTreeMap<Owner, u32> = BTreeMap::new();
        for settlement in group.clone() {
            for one in &settlement.effects {
                let state = &one.effects.state;
                if state.is_empty() {
                    continue;
                }
                let owner = (settlement.event.project.clone(), one.trigger.clone());
                for key in state.reads.keys().chain(state.writes.keys()) {
                    needs.places.insert((owner.0.clone(), owner.1.clone(), key.clone()));
                }
                let deleted =
                    state.writes.values().filter(|write| **write == Write::Delete).count();
                *deletions.entry(owner.clone()).or_default() += u32::try_from(deleted).unwrap_or(0);
                needs.owners.insert(owner);
            }
        }
        for settlement in group {
            for one in &settlement.effects {
                for listing in &one.effects.state.listings {
                    let owner = (settlement.event.project.clone(), one.trigger.clone());
                    let spare = deletions.get(&owner).copied().unwrap_or(0);
                    let wanted = listing.limit.saturating_add(spare);
                    let most = needs.ranges.entry(range(owner, listing)).or_default();
                    *most = wanted.max(*most);
                }
            }
        }
        needs
    }
}

fn range((project, trigger): Owner, listing: &Listing) -> Range {
    (project, trigger, listing.prefix.clone(), listing.after.clone())
}

/// What comes after a lost settlement of its ordering key is held up by it,
/// unless it is of the same event.
pub(super) fn hold_up(group: &[Settlement], verdicts: &mut [Option<Settled>]) {
    if verdicts.iter().all(Option::is_none) {
        return;
    }
    let mut lost: BTreeMap<_, BTreeSet<i64>> = BTreeMap::new();
    for (settlement, verdict) in group.iter().zip(verdicts) {
        let event = &settlement.event;
        let key = (&*event.project, &*event.resource, &*event.aggregate_id);
        let others = lost.entry(key).or_default();
        if verdict.is_none() && others.iter().any(|pk| *pk != event.pk) {
            *verdict = Some(Settled::Conflict(Vec::new()));
        }
        if verdict.is_some() {
            others.insert(event.pk);
        }
    }
}

/// What keys hold: what is stored, and over it the writes of a group.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// As stored; absent keys are left out.
    pub(super) stored: BTreeMap<Place, Vec<u8>>,
    /// Keys of each range, in order, as stored.
    pub(super) listed: BTreeMap<Range, Vec<String>>,
    written: BTreeMap<Place, Option<Vec<u8>>>,
    /// Ordering keys with a settlement that is held up.
    held_up: BTreeSet<(String, String, String)>,
}

impl Overlay {
    /// Takes in one settlement's writes if all that it read still holds;
    /// otherwise says what is wrong with it, and takes in nothing, nor later
    /// ones of the same ordering key.
    pub(super) fn admit(&mut self, settlement: &Settlement) -> Option<Settled> {
        let event = &settlement.event;
        let key = (event.project.clone(), event.resource.clone(), event.aggregate_id.clone());
        if self.held_up.contains(&key) {
            return Some(Settled::Conflict(Vec::new()));
        }
        let verdict = self.check(settlement);
        if verdict.is_some() {
            self.held_up.insert(key);
        }
        verdict
    }

    fn check(&mut self, settlement: &Settlement) -> Option<Settled> {
        let project = &settlement.event.project;
        let overtaken: Vec<String> = settlement
            .effects
            .iter()
            .filter(|one| {
                let state = &one.effects.state;
                let read = state
                    .reads
                    .iter()
                    .all(|(key, seen)| self.value(project, &one.trigger, key) == seen.as_deref());
                !read
                    || state.listings.iter().any(|l| self.list(project, &one.trigger, l) != l.keys)
            })
            .map(|one| one.trigger.clone())
            .collect();
        if !overtaken.is_empty() {
            return Some(Settled::Conflict(overtaken));
        }
        let mut writes = Vec::new();
        for one in &settlement.effects {
            for (key, write) in &one.effects.state.writes {
                match write.apply(key, self.value(project, &one.trigger, key)) {
                    Ok(after) => writes.push((
                        (project.clone(), one.trigger.clone(), key.clone()),
                        after.map(Cow::into_owned),
                    )),
                    Err(error) => {
                        let (trigger, why) = (one.trigger.clone(), error.to_string());
                        return Some(Settled::Unfit { trigger, why });
                    }
                }
            }
        }
        self.written.extend(writes);
        None
    }

    /// What is to be written: a value, or `None` for a deletion.
    pub(super) fn changes(&self) -> impl Iterator<Item = (&Place, Option<&[u8]>)> {
        self.written.iter().map(|(place, value)| (place, value.as_deref()))
    }

    fn value(&self, project: &str, trigger: &str, key: &str) -> Option<&[u8]> {
        let place = (project.to_owned(), trigger.to_owned(), key.to_owned());
        match self.written.get(&place) {
            Some(written) => written.as_deref(),
            None => self.stored.get(&place).map(Vec::as_slice),
        }
    }

    fn list(&self, project: &str, trigger: &str, listing: &Listing) -> Vec<String> {
        let of = range((project.to_owned(), trigger.to_owned()), listing);
        let mut keys: BTreeSet<&str> =
            self.listed.get(&of).into_iter().flatten().map(String::as_str).collect();
        let from = (project.to_owned(), trigger.to_owned(), listing.prefix.clone());
        let written = self.written.range(from..).take_while(|((p, t, key), _)| {
            p == project && t == trigger && key.starts_with(&listing.prefix)
        });
        for ((_, _, key), value) in written {
            if listing.after.as_ref().is_some_and(|after| key <= after) {
                continue;
            }
            match value {
                Some(_) => keys.insert(key),
                None => keys.remove(&**key),
            };
        }
        keys.into_iter().take(listing.limit as usize).map(str::to_owned).collect()
    }
}
