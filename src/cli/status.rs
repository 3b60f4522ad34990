//! `outrigger status`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    Context,
    output::{Column, Output, Show, clean},
    time,
};

const PROJECTS: [Column; 9] = [
    ("PROJECT", "/name", Show::Plain),
    ("PENDING", "/pending", Show::Plain),
    ("IN FLIGHT", "/inFlight", Show::Plain),
    ("SCHEDULED", "/scheduled", Show::Plain),
    ("DISPATCHED", "/dispatched", Show::Plain),
    ("RETRYING", "/retrying", Show::Plain),
    ("BLOCKED", "/blocked", Show::Plain),
    ("DEAD", "/dead", Show::Plain),
    ("OLDEST PENDING", "/oldest", Show::Plain),
];

const TRIGGERS: [Column; 8] = [
    ("PROJECT", "/project", Show::Plain),
    ("TRIGGER", "/name", Show::Plain),
    ("DONE", "/done", Show::Plain),
    ("FAILED", "/failed", Show::Plain),
    ("RETRYING", "/retrying", Show::Plain),
    ("BLOCKED", "/blocked", Show::Plain),
    ("DEAD", "/dead", Show::Plain),
    ("LAST ERROR", "/lastError", Show::Short(60)),
];

/// Of everything, or of the project that `--project` names.
pub(super) async fn run(context: &Context) -> Result<ExitCode> {
    let (client, out) = (context.client()?, context.out);
    let answer = match &context.shared.project {
        Some(project) => client.get(&["projects", project, "status"]).await?,
        None => client.get(&["status"]).await?,
    };
    if out.json(&answer) {
        return Ok(ExitCode::SUCCESS);
    }
    let status = answer.value();
    health(out, status);
    let one = context.shared.project.as_ref().map(|name| (name.clone(), status.clone()));
    let all = status["projects"].as_object().into_iter().flatten();
    let projects: Vec<(String, Value)> =
        one.into_iter().chain(all.map(|(name, counts)| (name.clone(), counts.clone()))).collect();
    if projects.is_empty() {
        out.note("There is no project: `outrigger projects create NAME`.");
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Value> =
        projects.iter().map(|(name, counts)| project_row(name, counts)).collect();
    out.table(&rows, &PROJECTS);
    let triggers: Vec<Value> =
        projects.iter().flat_map(|(name, counts)| trigger_rows(name, counts)).collect();
    if !triggers.is_empty() {
        out.line("");
        out.table(&triggers, &TRIGGERS);
    }
    Ok(ExitCode::SUCCESS)
}

fn health(out: Output, status: &Value) {
    if let Some(millis) = status["stalledForMs"].as_i64() {
        out.line(format_args!("STALLED: nothing is delivered for {}", time::span(millis)));
    }
    if let Some(message) = status["lastError"]["message"].as_str() {
        let ago = time::span(status["lastError"]["agoMs"].as_i64().unwrap_or(0));
        out.line(format_args!("last error, {ago} ago: {}\n", clean(message)));
    }
}

fn project_row(name: &str, counts: &Value) -> Value {
    let mut row = counts.clone();
    let missing = counts["exists"] == false;
    row["name"] = if missing { format!("{name} (doesn't exist)") } else { name.to_owned() }.into();
    row["oldest"] = json!(counts["oldestPendingMs"].as_i64().map(time::span));
    row
}

fn trigger_rows(project: &str, counts: &Value) -> Vec<Value> {
    let triggers = counts["triggers"].as_object().into_iter().flatten();
    let row = |(name, counts): (&String, &Value)| {
        let mut row = counts.clone();
        row["project"] = project.into();
        row["name"] = name.as_str().into();
        row
    };
    triggers.map(row).collect()
}
