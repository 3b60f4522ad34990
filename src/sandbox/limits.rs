//! What one call may use of memory and tables.

use std::sync::Arc;

use wasmtime::ResourceLimiter;

use super::{Call, budget::Hold, caps::Caps};
use crate::model::event::Event;

/// A request that a guest was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// This many bytes of memory, all memories together.
    Memory(usize),
    /// This many table elements, all tables together.
    Table(usize),
    /// Memory, when other calls had too much of what the host gives to all.
    Host,
}

/// Adds up an instance's memories and tables, and remembers a refusal: a guest
/// that runs out of memory looks like any other that panics.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_max: usize,
    table_max: usize,
    instances: usize,
    memory: usize,
    peak: usize,
    table: usize,
    last_growth: usize,
    refused: Option<Refused>,
    event: Arc<Event>,
    hold: Hold,
}

impl Limiter {
    /// Nothing used of what a call may have.
    pub(super) fn new(call: &Call, caps: &Caps, hold: Hold) -> Self {
        Self {
            event: Arc::clone(&call.event),
            hold,
            memory_max: caps.memory.max.as_usize(),
            table_max: caps.table_elements.max as usize,
            instances: caps.instances.max as usize,
            memory: 0,
            peak: 0,
            table: 0,
            last_growth: 0,
            refused: None,
        }
    }

    /// Begins another call: the memory that there is stays.
    pub(super) fn begin(&mut self) {
        self.peak = self.memory;
        self.refused = None;
    }

    /// The most bytes that all memories had together during the call.
    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    /// The first request that was refused.
    pub(super) fn refused(&self) -> Option<Refused> {
        self.refused
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        let sum = self.memory.saturating_add(growth);
        if sum > self.memory_max {
            self.refused.get_or_insert(Refused::Memory(sum));
            return Ok(false);
        }
        // What the module itself declared as its largest is not our refusal.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if !self.hold.set(sum, &self.event.project) {
            self.refused.get_or_insert(Refused::Host);
            return Ok(false);
        }
        self.memory = sum;
        self.peak = self.peak.max(sum);
        self.last_growth = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory = self.memory.saturating_sub(std::mem::take(&mut self.last_growth));
        self.hold.set(self.memory, &self.event.project);
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let sum = self.table.saturating_add(desired.saturating_sub(current));
        if sum > self.table_max {
            self.refused.get_or_insert(Refused::Table(sum));
            return Ok(false);
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.table = sum;
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.instances
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{trigger::Limits, units::Bytes},
        sandbox::{Settings, budget::Budget, call::tests::call},
    };

    const PAGE: usize = 64 << 10;

    /// Room for so many pages, and ten table elements.
    fn limiter(pages: u64) -> Limiter {
        let memory = Bytes::kib(64 * pages);
        let limits = Limits { memory, table_elements: Some(10), ..Limits::default() };
        let caps = Caps::of(&limits, &Settings::default());
        Limiter::new(&call("{}"), &caps, Hold::new(&Budget::new(160 * PAGE)))
    }

    #[test]
    fn memories_add_up_and_a_refusal_is_remembered() {
        let mut limiter = limiter(10);
        let mut grow = |from, to, max: Option<usize>| {
            let max = max.map(|max| max * PAGE);
            limiter.memory_growing(from * PAGE, to * PAGE, max).expect("no error")
        };
        assert!(grow(0, 6, None));
        assert!(!grow(0, 5, Some(4)) || !grow(0, 5, None));
        assert!(grow(0, 4, None));
        assert!(!grow(4, 5, None));
        let refused = Some(Refused::Memory(11 * PAGE));
        assert_eq!((limiter.peak(), limiter.refused()), (10 * PAGE, refused));
    }

    #[test]
    fn a_modules_own_maximum_is_no_refusal() {
        let mut limiter = limiter(10);
        assert!(!limiter.memory_growing(0, 5 * PAGE, Some(4 * PAGE)).expect("no error"));
        assert!(!limiter.table_growing(0, 5, Some(4)).expect("no error"));
        assert_eq!((limiter.peak(), limiter.refused()), (0, None));
        assert!(limiter.table_growing(0, 10, None).expect("no error"));
        assert!(!limiter.table_growing(0, 1, None).expect("no error"));
        assert_eq!(limiter.refused(), Some(Refused::Table(11)));
    }

    #[test]
    fn another_call_begins_with_the_memory_that_there_is() {
        let mut limiter = limiter(10);
        assert!(limiter.memory_growing(0, 6 * PAGE, None).expect("no error"));
        assert!(limiter.memory_growing(6 * PAGE, 9 * PAGE, None).expect("no error"));
        limiter.memory_grow_failed(wasmtime::Error::msg("mprotect")).expect("no error");
        assert!(!limiter.memory_growing(6 * PAGE, 20 * PAGE, None).expect("no error"));
        assert_eq!(limiter.peak(), 9 * PAGE);
        limiter.begin();
        assert_eq!((limiter.peak(), limiter.refused()), (6 * PAGE, None));
        assert!(!limiter.memory_growing(0, 5 * PAGE, None).expect("no error"), "it counts");
    }

    #[test]
    fn what_all_calls_have_together_is_limited_too() {
        let mut limiter = limiter(1000);
        assert!(limiter.memory_growing(0, 152 * PAGE, None).expect("no error"));
        assert!(!limiter.memory_growing(0, PAGE, None).expect("no error"));
        assert_eq!(limiter.refused(), Some(Refused::Host));
    }

    #[test]
    fn a_growth_that_failed_is_taken_back() {
        let mut limiter = limiter(10);
        assert!(limiter.memory_growing(0, 8 * PAGE, None).expect("no error"));
        limiter.memory_grow_failed(wasmtime::Error::msg("mprotect")).expect("no error");
        assert!(limiter.memory_growing(0, 8 * PAGE, None).expect("no error"));
    }
}
