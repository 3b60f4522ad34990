//! Why an event, or one of its deliveries, waits.

use serde::Serialize;
use uuid::Uuid;

use crate::{
    api::{App, problem::Answer},
    model::{Lane, UnixMillis},
    store::{DeliveryRow, DeliveryState, EventRow, EventStatus},
};

/// One reason to wait; with a trigger it is a delivery's, else the event's.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wait {
    #[serde(skip_serializing_if = "Option::is_none")]
    trigger: Option<String>,
    /// The number of the replay, if it is one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u32>,
    #[serde(flatten)]
    reason: Reason,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Reason {
    /// Nobody created the project yet.
    NoSuchProject,
    /// The project is disabled.
    ProjectDisabled,
    /// It isn't due.
    NotDue { until: UnixMillis },
    /// Its trigger is gone.
    NoSuchTrigger,
    /// Its trigger is paused, and why.
    TriggerPaused {
        #[serde(skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// An earlier event of its key is still open.
    Blocked { by: Option<Uuid> },
    /// It is its turn, at the host that holds the lane; nobody's if it has none.
    Queued { lane: Lane, host: Option<Host> },
    /// A host is at it.
    Running { lane: Lane, host: Option<Host> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Host {
    id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// Every reason, the event's first.
pub(super) async fn waits(
    app: &App,
    project: &str,
    row: &EventRow,
    deliveries: &[DeliveryRow],
) -> Answer<Vec<Wait>> {
    let store = &app.api.store;
    let waiting = row.status != EventStatus::Dispatched;
    let open: Vec<&DeliveryRow> = deliveries.iter().filter(|delivery| is_open(delivery)).collect();
    if !waiting && open.is_empty() {
        return Ok(Vec::new());
    }
    let mut waits = Vec::new();
    match store.project(project).await? {
        None => waits.push(Reason::NoSuchProject.of(None)),
        Some(project) if !project.enabled => waits.push(Reason::ProjectDisabled.of(None)),
        Some(_) => {}
    }
    let lane = row.event.lane;
    let host = holder(app, lane).await?;
    match (row.status, row.event.available_at) {
        (EventStatus::Scheduled, Some(until)) => waits.push(Reason::NotDue { until }.of(None)),
        (EventStatus::Claimed, _) => {
            waits.push(Reason::Running { lane, host: host.clone() }.of(None));
        }
        (EventStatus::Pending | EventStatus::Scheduled, _) => {
            waits.push(Reason::Queued { lane, host: host.clone() }.of(None));
        }
        (EventStatus::Dispatched, _) => {}
    }
    let now = app.status.get(&app.api).await?.now;
    for delivery in open {
        let name = &delivery.trigger;
        let reason = match store.trigger(project, name).await?.map(|trigger| trigger.paused) {
            None => Reason::NoSuchTrigger,
            Some(_) if delivery.state == DeliveryState::Blocked => {
                Reason::Blocked { by: delivery.blocked_by }
            }
            Some(_) if delivery.claimed => Reason::Running { lane, host: host.clone() },
            Some(Some(why)) => Reason::TriggerPaused { why },
            Some(None) if delivery.due_at > now => Reason::NotDue { until: delivery.due_at },
            Some(None) => Reason::Queued { lane, host: host.clone() },
        };
        let generation = Some(delivery.generation).filter(|replay| *replay > 0);
        waits.push(Wait { generation, ..reason.of(Some(name.clone())) });
    }
    Ok(waits)
}

impl Reason {
    const fn of(self, trigger: Option<String>) -> Wait {
        Wait { trigger, generation: None, reason: self }
    }
}

fn is_open(delivery: &DeliveryRow) -> bool {
    matches!(delivery.state, DeliveryState::Ready | DeliveryState::Blocked)
}

async fn holder(app: &App, lane: Lane) -> Answer<Option<Host>> {
    let Some(holder) = app.api.store.lane_holder(lane).await? else { return Ok(None) };
    let hosts = app.api.store.hosts().await?;
    let name = hosts.into_iter().find(|host| host.id == holder.0).map(|host| host.name);
    Ok(Some(Host { id: holder.0, name }))
}
