//! Open deliveries, and attempts with their logs.

use axum::{Json as Answered, extract::State};

use super::{
    Shared,
    events::{AttemptView, DeliveryView},
    extract::{Params, Path},
    page::{self, Items},
    problem::Answer,
    projects,
    routes::Routes,
};
use crate::store::{AttemptFilter, DeliveryFilter};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get(
            "/v1/projects/{project}/deliveries",
            &["trigger", "state", "messageId", "limit", "cursor", "since", "until"],
            list,
        )
        .get(
            "/v1/projects/{project}/attempts",
            &["trigger", "messageId", "failed", "kind", "limit", "cursor", "since", "until"],
            attempts,
        )
}

async fn list(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<DeliveryView>>> {
    let filter = DeliveryFilter {
        trigger: params.text("trigger"),
        state: params.one_of("state")?,
        message_id: params.parse("messageId", "a UUID")?,
    };
    let page = page::request(&params)?;
    projects::existing(&app, &project).await?;
    let page = app.api.store.deliveries(&project, &filter, &page).await?;
    Ok(Answered(Items::page(page, DeliveryView::from)))
}

async fn attempts(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<AttemptView>>> {
    let filter = AttemptFilter {
        trigger: params.text("trigger"),
        message_id: params.parse("messageId", "a UUID")?,
        failed: params.flag("failed")?,
        kind: params.one_of("kind")?,
    };
    let page = page::request(&params)?;
    projects::existing(&app, &project).await?;
    let page = app.api.store.attempts(&project, &filter, &page).await?;
    Ok(Answered(Items::page(page, AttemptView::from)))
}
