//! Where claims may begin to look.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One project's share of one lane. Scheduled events aren't in it: they are
/// claimed out of order.
#[derive(Default)]
pub(super) struct Track {
    held: BTreeSet<i64>,
    /// Given back, or lost, and not claimed again; with the claim that was the
    /// latest then.
    pub(super) returned: BTreeMap<i64, u64>,
    high: i64,
    /// Up to here no row can come any more.
    safe: i64,
    /// What was the highest at claims since, each with the number that all
    /// transactions which may still bring a smaller one are below.
    fences: VecDeque<(i64, i64)>,
}

/// Fences that are kept for a track; a transaction may stay open for long.
const MAX_FENCES: usize = 64;

impl Track {
    /// Rows up to this pk are settled, and none can come any more.
    pub(super) fn mark(&self, ended: i64) -> i64 {
        let passed = self.fences.iter().take_while(|(_, begun)| *begun <= ended);
        let safe = passed.last().map_or(self.safe, |(high, _)| *high);
        let first = self.held.first().into_iter().chain(self.returned.keys().next()).min();
        first.map_or(safe, |first| safe.min(first - 1))
    }

    pub(super) fn claimed(&mut self, pk: i64, begun: i64, ended: i64) {
        self.held.insert(pk);
        self.returned.remove(&pk);
        if pk <= self.high {
            return;
        }
        self.high = pk;
        while let Some((high, _)) = self.fences.pop_front_if(|(_, begun)| *begun <= ended) {
            self.safe = high;
        }
        let full = self.fences.len() >= MAX_FENCES;
        if full || self.fences.back().is_some_and(|(_, last)| *last == begun) {
            // The later one stands for both.
            self.fences.pop_back();
        }
        self.fences.push_back((pk, begun));
    }

    pub(super) fn gone(&mut self, pk: i64, settled: bool, claims: u64) {
        self.held.remove(&pk);
        if !settled {
            self.returned.insert(pk, claims);
        }
    }
}
