//! What one call may use of memory and tables.

use wasmtime::ResourceLimiter;

/// Table elements that all tables of an instance may have together.
pub(super) const TABLE_ELEMENTS: usize = 100_000;

/// A request that a guest was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// This many bytes of memory, all memories together.
    Memory(usize),
    /// This many table elements, all tables together.
    Table(usize),
}

/// Adds up an instance's memories and tables, and remembers a refusal: a guest
/// that runs out of memory looks like any other that panics.
#[derive(Debug)]
pub(super) struct Limiter {
    max: usize,
    memory: usize,
    peak: usize,
    table: usize,
    last_growth: usize,
    refused: Option<Refused>,
}

impl Limiter {
    /// Limits to so many bytes of memory.
    pub(super) fn new(max: usize) -> Self {
        Self { max, memory: 0, peak: 0, table: 0, last_growth: 0, refused: None }
    }

    /// Begins another call: the memory that there is stays.
    pub(super) fn begin(&mut self) {
        self.peak = self.memory;
        self.refused = None;
    }

    /// Bytes that all memories may have together.
    pub(super) fn max(&self) -> usize {
        self.max
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
        if sum > self.max {
            self.refused.get_or_insert(Refused::Memory(sum));
            return Ok(false);
        }
        // What the module itself declared as its largest is not our refusal.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.memory = sum;
        self.peak = self.peak.max(sum);
        self.last_growth = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory = self.memory.saturating_sub(std::mem::take(&mut self.last_growth));
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let sum = self.table.saturating_add(desired.saturating_sub(current));
        if sum > TABLE_ELEMENTS {
            self.refused.get_or_insert(Refused::Table(sum));
            return Ok(false);
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.table = sum;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_add_up_and_a_refusal_is_remembered() {
        let mut limiter = Limiter::new(100);
        let mut grow = |from, to, max| limiter.memory_growing(from, to, max).expect("no error");
        assert!(grow(0, 60, None));
        assert!(!grow(0, 50, Some(40)) || !grow(0, 50, None));
        assert!(grow(0, 40, None));
        assert!(!grow(40, 41, None));
        assert_eq!((limiter.peak(), limiter.refused()), (100, Some(Refused::Memory(110))));
    }

    #[test]
    fn a_modules_own_maximum_is_no_refusal() {
        let mut limiter = Limiter::new(100);
        assert!(!limiter.memory_growing(0, 50, Some(40)).expect("no error"));
        assert!(!limiter.table_growing(0, 50, Some(40)).expect("no error"));
        assert_eq!((limiter.peak(), limiter.refused()), (0, None));
        assert!(!limiter.table_growing(0, TABLE_ELEMENTS + 1, None).expect("no error"));
        assert_eq!(limiter.refused(), Some(Refused::Table(TABLE_ELEMENTS + 1)));
    }

    #[test]
    fn another_call_begins_with_the_memory_that_there_is() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).expect("no error"));
        assert!(limiter.memory_growing(60, 90, None).expect("no error"));
        limiter.memory_grow_failed(wasmtime::Error::msg("mprotect")).expect("no error");
        assert!(!limiter.memory_growing(60, 200, None).expect("no error"));
        assert_eq!(limiter.peak(), 90);
        limiter.begin();
        assert_eq!((limiter.peak(), limiter.refused()), (60, None));
        assert!(!limiter.memory_growing(0, 41, None).expect("no error"), "it counts");
    }

    #[test]
    fn a_growth_that_failed_is_taken_back() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 80, None).expect("no error"));
        limiter.memory_grow_failed(wasmtime::Error::msg("mprotect")).expect("no error");
        assert!(limiter.memory_growing(0, 80, None).expect("no error"));
    }
}
