//! How long to wait before the next attempt.

use super::trigger::RetryPolicy;

/// Milliseconds before the attempt after `attempt` (1 is the first).
///
/// `initial · factor^(attempt − 1)`, at most `max`, of which the share `jitter`
/// is drawn evenly by `random`, a number in `[0, 1)`: the wait lies in
/// `[(1 − jitter) · w, w]`, so that it never exceeds the policy's maximum.
#[must_use]
pub fn backoff_ms(policy: &RetryPolicy, attempt: u32, random: f64) -> i64 {
    let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
    #[expect(clippy::cast_precision_loss, reason = "waits are below 2^52 ms")]
    let (initial, max) = (policy.initial.as_millis() as f64, policy.max.as_millis() as f64);
    // `min` also turns an infinite power into the maximum.
    let wait = (initial * policy.factor.powi(exponent)).min(max);
    let jittered = wait * (1.0 - policy.jitter * random);
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and the maximum")]
    let millis = jittered.round() as i64;
    millis
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Span;

    #[test]
    fn waits_grow_to_the_maximum_and_keep_within_the_jitter() {
        let policy = RetryPolicy { max: Span::from_secs(10), ..RetryPolicy::default() };
        let full = |attempt| backoff_ms(&policy, attempt, 0.0);
        assert_eq!([1, 2, 3, 4, 5, 1000].map(full), [1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(backoff_ms(&policy, 1, 0.999_999), 800);
        let none = RetryPolicy { initial: Span::from_millis(0), ..policy };
        assert_eq!(backoff_ms(&none, 7, 0.5), 0);
    }
}
