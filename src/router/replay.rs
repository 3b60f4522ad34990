//! Bulk work, a batch at a time: what a replay's events match is found out here,
//! with no transaction open.

use super::matcher::Matcher;
use crate::store::{OperationFilter, Store, StoreError};

/// Events of one transaction of a replay.
const EVENTS: u32 = 100;

/// Does up to `letters` dead letters of one running operation, and a batch of
/// one running replay. Answers whether there may be more to do.
///
/// # Errors
/// When the database fails; what was done before is done.
pub async fn advance(store: &dyn Store, letters: u32) -> Result<bool, StoreError> {
    let more = store.advance(letters).await?;
    let Some(batch) = store.replay_batch(EVENTS).await? else { return Ok(more) };
    let only = match &batch.operation.filter {
        OperationFilter::Events(filter) => filter.trigger.as_deref(),
        OperationFilter::DeadLetters(_) => None,
    };
    let triggers = store.triggers(&batch.operation.project).await?;
    let matcher = Matcher::new(triggers, only);
    let mut to = Vec::with_capacity(batch.events.len());
    for event in &batch.events {
        to.push(matcher.matched(event).to);
        // Expressions over large payloads take their time.
        tokio::task::yield_now().await;
    }
    store.replay_part(&batch, &to).await?;
    Ok(true)
}
