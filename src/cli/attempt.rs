//! An attempt with its log, for people.

use serde_json::Value;

use super::{
    output::{Output, clean},
    time,
};

/// Prints an attempt behind an empty line.
pub(super) fn show(out: Output, attempt: &Value) {
    let outcome = if attempt["failed"] == true { text(&attempt["kind"]) } else { "done".into() };
    out.line(format_args!(
        "\nattempt {} of {} at {}: {outcome}, {} us ({} us of a processor, {} KiB of memory)",
        attempt["number"],
        text(&attempt["trigger"]),
        time::show(attempt["startedAt"].as_i64().unwrap_or(0)),
        attempt["durationUs"],
        attempt["cpuUs"],
        attempt["memoryBytes"].as_u64().unwrap_or(0).div_ceil(1 << 10),
    ));
    for line in attempt["error"].as_str().unwrap_or_default().lines() {
        out.line(format_args!("  {}", clean(line)));
    }
    for log in attempt["logs"].as_array().into_iter().flatten() {
        let (level, source) = (text(&log["level"]), text(&log["source"]));
        out.line(format_args!(
            "  {:>9} us  {level:<5} {source:<6} {}",
            log["atUs"],
            text(&log["text"])
        ));
    }
}

/// The same, with the event that it was made for.
pub(super) fn show_with_event(out: Output, attempt: &Value) {
    show(out, attempt);
    out.line(format_args!(
        "  event {}: {} of {} {}",
        text(&attempt["messageId"]),
        text(&attempt["eventName"]),
        text(&attempt["resource"]),
        text(&attempt["aggregateId"]),
    ));
}

fn text(value: &Value) -> String {
    clean(value.as_str().unwrap_or_default())
}
