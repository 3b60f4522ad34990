//! Events: recorded, waited for, looked up, delivered again.

use super::routes::Routes;

mod list;
mod record;
mod recorder;
mod replay;
mod view;
mod wait;
mod why;

pub(super) use recorder::Recorder;
pub(super) use view::{AttemptView, DeliveryView, EventView};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .post("/v1/projects/{project}/events", &["wait"], record::record)
        .get("/v1/projects/{project}/events", list::FILTERS, list::list)
        .post("/v1/projects/{project}/events/replay", &[], replay::many)
        .post("/v1/projects/{project}/events/{messageId}/replay", &[], replay::one)
        .get("/v1/projects/{project}/events/{messageId}", &[], list::get)
}
