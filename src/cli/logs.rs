//! `outrigger triggers logs`: attempts with their logs, past and as they come.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{Context, attempt, client::Client, output::Output, time::Time};

/// Longest silence of a stream: it sends something every 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);

/// Rest before a stream that broke off is taken up again.
const REST: Duration = Duration::from_secs(1);

/// How long a stream may take; the host ends it before.
const STREAM_MAX: Duration = Duration::from_hours(2);

#[derive(Debug, Args)]
pub(super) struct Logs {
    /// The trigger
    name: String,
    /// Go on with attempts as they are made, on any host, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Not older than this, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Time>,
    /// Failures alone
    #[arg(long)]
    failed: bool,
    /// So many at the most of those that were made before, up to 100
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
}

impl Logs {
    pub(super) async fn run(self, context: &Context) -> Result<()> {
        let (client, out, project) = (context.client()?, context.out, context.project()?);
        if self.follow {
            return self.follow(&client, out, project).await;
        }
        let request = client.call(Method::GET, &["projects", project, "attempts"])?;
        let request = request.query(&self.query()).query(&[("limit", self.limit)]);
        let answer = client.send(request).await?;
        if out.json(&answer) {
            return Ok(());
        }
        let items = answer.value()["items"].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().rev().for_each(|item| attempt::show_with_event(out, item));
        if items.is_empty() {
            // Says so, if there is no such trigger.
            client.get(&["projects", project, "triggers", &self.name]).await?;
            out.note("No attempt of it is kept.");
        }
        Ok(())
    }

    /// Prints what comes, and goes on behind it when the stream breaks off.
    async fn follow(&self, client: &Client, out: Output, project: &str) -> Result<()> {
        // Nobody should wait for what doesn't exist.
        client.get(&["projects", project, "triggers", &self.name]).await?;
        let (mut last, mut reached) = (None::<String>, false);
        loop {
            let request = client.call(Method::GET, &["projects", project, "stream"])?;
            let request = request.query(&self.query()).timeout(STREAM_MAX);
            let request = match &last {
                Some(id) => request.header("last-event-id", id),
                None => request.query(&[("last", self.limit)]),
            };
            match client.open(request).await {
                Ok(stream) => {
                    reached = true;
                    read(out, stream, &mut last).await?;
                }
                // Whoever never reached it has mistaken something.
                Err(error) if !reached => return Err(error),
                Err(error) => out.note(format_args!("{error:#}; trying again")),
            }
            sleep(REST).await;
        }
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![("trigger", self.name.clone()), ("failed", self.failed.to_string())];
        query.extend(self.since.map(|since| ("since", since.to_string())));
        query
    }
}

/// Prints the events of a stream until it ends.
async fn read(out: Output, mut stream: Response, last: &mut Option<String>) -> Result<()> {
    let mut events = Events::default();
    while let Ok(Ok(Some(bytes))) = timeout(SILENCE, stream.chunk()).await {
        for Event { name, id, data } in events.take(&bytes) {
            let value: Value = serde_json::from_str(&data).context("the host sent no JSON")?;
            match name.as_str() {
                "attempt" if out.is_json() => out.line(&data),
                "attempt" => attempt::show_with_event(out, &value),
                "missed" => {
                    let count = value["attempts"].as_u64();
                    let count = count.map_or_else(|| "some".to_owned(), |count| count.to_string());
                    out.note(format_args!("{count} attempts were left out"));
                }
                _ => {}
            }
            if !id.is_empty() {
                *last = Some(id);
            }
        }
    }
    Ok(())
}

/// A server-sent event.
#[derive(Debug, Default, PartialEq)]
struct Event {
    name: String,
    id: String,
    data: String,
}

/// Takes a stream of server-sent events apart, whatever the pieces it comes in.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
    event: Event,
}

impl Events {
    /// The events that are complete with these bytes.
    fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event.name),
                "id" => value.clone_into(&mut self.event.id),
                "data" if self.event.data.is_empty() => value.clone_into(&mut self.event.data),
                "data" => self.event.data = [&self.event.data, value].join("\n"),
                _ if line.is_empty() && !self.event.data.is_empty() => {
                    events.push(std::mem::take(&mut self.event));
                }
                // A comment, or nothing.
                _ => {}
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let text = "event: attempt\nid: 5\ndata: {\"a\":1}\n\n:\n\nevent:missed\r\ndata:{\"b\":2,\r\ndata: \"c\":3}\r\n\r\ndata: cut";
        for size in 1..text.len() {
            let mut events = Events::default();
            let all: Vec<Event> =
                text.as_bytes().chunks(size).flat_map(|piece| events.take(piece)).collect();
            let event = |name: &str, id: &str, data: &str| Event {
                name: name.into(),
                id: id.into(),
                data: data.into(),
            };
            let missed = event("missed", "", "{\"b\":2,\n\"c\":3}");
            assert_eq!(all, [event("attempt", "5", "{\"a\":1}"), missed], "{size}");
        }
    }
}
