//! `GET …/triggers/{name}/state`: what a trigger keeps.

use axum::{Json as Answered, extract::State};
use serde::Serialize;

use crate::{
    api::{
        Shared,
        extract::{Params, Path},
        page::{self, Items},
        problem::Answer,
    },
    model::base64,
    store::StateEntry,
};

/// Entries of a page that says nothing else; values can be large.
const LIMIT: u32 = 50;

#[derive(Serialize)]
pub(super) struct Entry {
    key: String,
    value: String,
    /// How bytes that are no text are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    version: i64,
}

impl From<StateEntry> for Entry {
    fn from(entry: StateEntry) -> Self {
        let (value, encoding) = match String::from_utf8(entry.value) {
            Ok(text) => (text, None),
            Err(error) => (base64::encode(error.as_bytes()), Some("base64")),
        };
        Self { key: entry.key, value, encoding, version: entry.version }
    }
}

pub(super) async fn list(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    params: Params,
) -> Answer<Answered<Items<Entry>>> {
    let prefix = params.text("prefix").unwrap_or_default();
    let after = params.text("after");
    let limit = page::limit(&params)?.unwrap_or(LIMIT);
    super::view(&app, &project, &name).await?;
    let store = &app.api.store;
    // One more than asked for tells whether there is a next page.
    let mut entries = store.state(&project, &name, &prefix, after.as_deref(), limit + 1).await?;
    let more = entries.len() > limit as usize;
    entries.truncate(limit as usize);
    let next = entries.last().filter(|_| more).map(|entry| entry.key.clone());
    let entries = entries.into_iter().map(Entry::from).collect();
    Ok(Answered(Items::named(entries, next)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_encoded() {
        let entry = |value: &[u8]| {
            Entry::from(StateEntry { key: "k".into(), value: value.to_vec(), version: 1 })
        };
        assert_eq!((entry(b"12").value.as_str(), entry(b"12").encoding), ("12", None));
        assert_eq!(entry(b"\xff").encoding, Some("base64"));
    }
}
