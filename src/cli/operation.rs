//! Bulk work that a host carries out.

use std::time::Duration;

use anyhow::Result;

use super::client::{Answer, Client};

/// How often to ask how bulk work goes on.
const LOOK: Duration = Duration::from_millis(300);

/// Asks until bulk work has ended.
pub(super) async fn follow(client: &Client, project: &str, mut answer: Answer) -> Result<Answer> {
    while answer.value()["state"] == "running" {
        tokio::time::sleep(LOOK).await;
        let id = answer.value()["id"].as_str().unwrap_or_default().to_owned();
        answer = client.get(&["projects", project, "operations", &id]).await?;
    }
    Ok(answer)
}
