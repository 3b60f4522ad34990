//! Which events a closure is for, and how it is called.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    model::{
        pattern::{Pattern, Versions},
        trigger::{
            Grants, Isolation, Limits, Match, Order, Record, RetryPolicy, Target, TriggerSpec,
        },
        units::Span,
    },
    router::matcher,
};

/// Which events a closure is for, and how it is called. In patterns `*` stands
/// for any run of characters. What can't be used is refused by
/// [`Builder::start`](super::Builder::start), with the trigger's name.
#[derive(Debug, Clone)]
pub struct On {
    spec: TriggerSpec,
    /// The first thing that is wrong.
    wrong: Option<String>,
}

impl On {
    /// Events whose name this pattern covers, of any resource.
    #[must_use]
    pub fn event(pattern: &str) -> Self {
        let matches = Match {
            resource: Pattern::any(),
            event_name: Pattern::any(),
            schema_version: Versions::any(),
            when: None,
        };
        // The code is trusted: what it asks for is bounded, but not forbidden.
        let grants = Grants { emit: vec![Pattern::any()], state: true, ..Grants::default() };
        let spec = TriggerSpec {
            matches,
            target: Target::Embedded,
            config: BTreeMap::new(),
            grants,
            limits: Limits::default(),
            retry: RetryPolicy::default(),
            order: Order::default(),
            isolation: Isolation::default(),
            record: Record::default(),
        };
        Self { spec, wrong: None }.set(pattern.parse(), |spec, it| spec.matches.event_name = it)
    }

    /// Only those of the resources that this pattern covers.
    #[must_use]
    pub fn resource(self, pattern: &str) -> Self {
        self.set(pattern.parse(), |spec, it| spec.matches.resource = it)
    }

    /// Only those of these schema versions: `2`, `>=1`, `>=2, <4`.
    #[must_use]
    pub fn schema_version(self, versions: &str) -> Self {
        self.set(versions.parse(), |spec, it| spec.matches.schema_version = it)
    }

    /// Only those for which this CEL expression over `payload`, `meta` and the
    /// event's fields holds.
    #[must_use]
    pub fn when(self, expression: &str) -> Self {
        let checked = matcher::check_when(expression).map(|()| expression.to_owned());
        self.set(checked, |spec, it| spec.matches.when = Some(it))
    }

    /// Events of one aggregate needn't wait for each other.
    #[must_use]
    pub fn in_any_order(mut self) -> Self {
        self.spec.order = Order::None;
        self
    }

    /// What follows a failure; five attempts by default.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.spec.retry = policy;
        self
    }

    /// How long one call may take, 10 s by default; then its future is dropped.
    #[must_use]
    pub fn deadline(mut self, at_most: Duration) -> Self {
        let millis = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX);
        self.spec.limits.deadline = Span::from_millis(millis);
        self
    }

    /// Calls in flight at once in this process, 16 by default.
    #[must_use]
    pub fn concurrency(mut self, calls: u32) -> Self {
        self.spec.limits.concurrency = calls;
        self
    }

    /// Which successful calls are kept as attempts, up to 20 a second by
    /// default; failures always are.
    #[must_use]
    pub fn record(mut self, which: Record) -> Self {
        self.spec.record = which;
        self
    }

    /// The document that is stored.
    pub(super) fn spec(&self) -> Result<&TriggerSpec, String> {
        match &self.wrong {
            Some(why) => Err(why.clone()),
            None => self.spec.validate().map(|()| &self.spec).map_err(|error| error.to_string()),
        }
    }

    fn set<T, E: std::fmt::Display>(
        mut self,
        parsed: Result<T, E>,
        into: impl FnOnce(&mut TriggerSpec, T),
    ) -> Self {
        match parsed {
            Ok(it) => into(&mut self.spec, it),
            Err(error) => self.wrong = self.wrong.or_else(|| Some(error.to_string())),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thing_wrong_is_said() {
        On::event("order.*").resource("order").when("payload.n > 1").spec().expect("all is well");
        for (on, said) in [
            (On::event("[").resource("**"), "the pattern `[`"),
            (On::event("*").schema_version("new"), "no schema versions"),
            (On::event("*").when("payload >"), ""),
            (On::event("*").deadline(Duration::ZERO), "limits.deadline"),
            (On::event("*").concurrency(0), "limits.concurrency"),
            (
                On::event("*").retry(RetryPolicy { max_attempts: 0, ..RetryPolicy::default() }),
                "retry.maxAttempts",
            ),
        ] {
            let why = on.spec().expect_err(said);
            assert!(why.contains(said), "{why}");
        }
    }
}
