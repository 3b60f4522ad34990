//! What the sandbox gives to guests at the most.

use serde::{Deserialize, Serialize};

use super::HttpSettings;
use crate::model::{
    names::Invalid,
    units::{Bytes, Span},
};

/// Bounds on what plugins may use on this host, whatever their triggers say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Calls that run at once, all triggers together; more of them wait.
    /// Each reserves about 16 GiB of address space and no memory.
    pub slots: u32,
    /// Longest deadline of one call; a trigger's own can only be shorter, as
    /// with all that follows down to `response_bytes`.
    pub deadline_max: Span,
    /// Longest time on a processor of one call.
    pub cpu_max: Span,
    /// Largest memory of one call.
    pub memory_max: Bytes,
    /// Memory of all calls together; one project gets three quarters of it.
    /// The first 2 MiB of each call aren't counted.
    pub memory_total: Bytes,
    /// Elements of all tables of one call together.
    pub table_elements: u32,
    /// Core instances of one component.
    pub instances: u32,
    /// Deepest stack of a guest's calls, in bytes; the same for every trigger.
    pub stack_max: Bytes,
    /// Largest component that is accepted.
    pub component_max: Bytes,
    /// Longest log of one attempt; what comes later is dropped and counted.
    pub log_bytes: Bytes,
    /// Longest line in it; longer ones are cut.
    pub log_line_bytes: Bytes,
    /// Events that one call may emit.
    pub emit_count: u32,
    /// Bytes that the events of one call may have together.
    pub emit_bytes: Bytes,
    /// Largest payload of an emitted event.
    pub payload_max: Bytes,
    /// Longest chain of events that each emitted the next, so that an event
    /// which triggers itself comes to an end.
    pub hops_max: u32,
    /// Largest value of one key in a trigger's state.
    pub state_value_bytes: Bytes,
    /// State keys that one call may touch, and that one listing may return.
    pub state_keys: u32,
    /// Bytes of state that one call may read and write together.
    pub state_bytes: Bytes,
    /// Requests of one call that are under way at once.
    pub requests: u32,
    /// Bytes that the requests of one call may have together, heads excepted.
    pub request_bytes: Bytes,
    /// Bytes that their responses may have together, heads excepted.
    pub response_bytes: Bytes,
    /// What requests get at the most.
    pub http: HttpSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slots: 256,
            deadline_max: Span::from_secs(3600),
            cpu_max: Span::from_secs(60),
            memory_max: Bytes::mib(256),
            memory_total: Bytes::mib(4096),
            table_elements: 100_000,
            instances: 64,
            stack_max: Bytes::kib(512),
            component_max: Bytes::mib(32),
            log_bytes: Bytes::kib(64),
            log_line_bytes: Bytes::kib(8),
            emit_count: 1000,
            emit_bytes: Bytes::mib(4),
            payload_max: Bytes::mib(1),
            hops_max: 64,
            state_value_bytes: Bytes::mib(1),
            state_keys: 1000,
            state_bytes: Bytes::mib(16),
            requests: 8,
            request_bytes: Bytes::mib(4),
            response_bytes: Bytes::mib(4),
            http: HttpSettings::default(),
        }
    }
}

/// Size of a page of a guest's memory.
const PAGE: u64 = 64 << 10;

impl Settings {
    /// Checks what the types can't say.
    ///
    /// # Errors
    /// Names the setting that is wrong.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=10_000).contains(&self.slots) {
            return Err(Invalid::new("slots", "is not between 1 and 10000"));
        }
        let memory = self.memory_max.get();
        if !(PAGE..=4 << 30).contains(&memory) || !memory.is_multiple_of(PAGE) {
            let why = "is not between 64KiB and 4GiB, or no multiple of 64KiB";
            return Err(Invalid::new("memory_max", why));
        }
        let hour = Span::from_secs(3600);
        for (field, span) in [("deadline_max", self.deadline_max), ("cpu_max", self.cpu_max)] {
            if !(Span::from_millis(1)..=hour).contains(&span) {
                return Err(Invalid::new(field, "is not between 1ms and 1h"));
            }
        }
        if self.memory_total.get() / 4 * 3 < memory {
            let why = "is too little: three quarters of it are less than `memory_max`";
            return Err(Invalid::new("memory_total", why));
        }
        if !(1..=10_000_000).contains(&self.table_elements) {
            return Err(Invalid::new("table_elements", "is not between 1 and 10000000"));
        }
        if !(1..=1_000).contains(&self.instances) {
            return Err(Invalid::new("instances", "is not between 1 and 1000"));
        }
        // A fiber's stack has room for the host's own calls beside it.
        if !(Bytes::kib(64)..=Bytes::mib(1)).contains(&self.stack_max) {
            return Err(Invalid::new("stack_max", "is not between 64KiB and 1MiB"));
        }
        if !(1 << 10..=1 << 30).contains(&self.component_max.get()) {
            return Err(Invalid::new("component_max", "is not between 1KiB and 1GiB"));
        }
        // A guest hands these over whole, and the host copies them.
        for (field, bytes) in [
            ("payload_max", self.payload_max),
            ("state_value_bytes", self.state_value_bytes),
            ("log_line_bytes", self.log_line_bytes),
        ] {
            if bytes > Bytes::mib(64) {
                return Err(Invalid::new(field, "is more than 64MiB"));
            }
        }
        if !(1..=1_000).contains(&self.requests) {
            return Err(Invalid::new("requests", "is not between 1 and 1000"));
        }
        self.http.validate()
    }

    /// Bytes that a guest may hand to the host in one call of an import.
    pub(super) fn hostcall_bytes(&self) -> usize {
        let largest = self.payload_max.max(self.state_value_bytes).as_usize();
        (2 * largest + (1 << 20)).max(4 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_named() {
        assert_eq!(Settings::default().validate(), Ok(()));
        for (field, wrong) in [
            ("slots", Settings { slots: 0, ..Settings::default() }),
            ("memory_max", Settings { memory_max: Bytes::kib(1), ..Settings::default() }),
            ("component_max", Settings { component_max: Bytes::mib(4096), ..Settings::default() }),
            ("cpu_max", Settings { cpu_max: Span::from_millis(0), ..Settings::default() }),
            ("memory_total", Settings { memory_total: Bytes::mib(256), ..Settings::default() }),
            ("table_elements", Settings { table_elements: 0, ..Settings::default() }),
            ("instances", Settings { instances: 0, ..Settings::default() }),
            ("requests", Settings { requests: 0, ..Settings::default() }),
            ("stack_max", Settings { stack_max: Bytes::mib(2), ..Settings::default() }),
            ("payload_max", Settings { payload_max: Bytes::mib(65), ..Settings::default() }),
        ] {
            assert_eq!(wrong.validate().expect_err(field).field, field);
        }
    }
}
