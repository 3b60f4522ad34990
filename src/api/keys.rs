//! API keys: made, listed without their secret, deleted.

use axum::{
    Json as Answered,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{
    Shared,
    auth::{KeyHash, generate_key},
    extract::{Json, Params, Path},
    page::Items,
    problem::{Answer, Kind, Problem},
    routes::Routes,
};
use crate::{
    model::{UnixMillis, names},
    store::{ApiKey, KeyRow, Role},
};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .post("/v1/keys", &[], create)
        .get("/v1/keys", &["limit", "cursor"], list)
        .get("/v1/keys/{id}", &[], get)
        .delete("/v1/keys/{id}", &[], delete)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a key as an object")]
struct Body {
    role: Role,
    project: Option<String>,
    name: Option<String>,
    expires_at: Option<UnixMillis>,
}

async fn create(State(app): State<Shared>, Json(body): Json<Body>) -> Answer {
    if body.role != Role::Admin {
        let why = "is not supported by this version; only `admin` is";
        return Err(Problem::field("role", why));
    }
    if let Some(name) = &body.name {
        names::text("name", name)?;
    }
    if let Some(project) = &body.project {
        names::name("project", project)?;
        if app.api.store.project(project).await?.is_none() {
            return Err(Problem::field("project", format!("names `{project}`, which isn't there")));
        }
    }
    // The database's clock decides; a second more or less doesn't matter here.
    let now = app.status.get(&app.api).await?.now;
    if body.expires_at.is_some_and(|at| at <= now) {
        let why = format!("is in the past; now is {now} (milliseconds since 1970)");
        return Err(Problem::field("expiresAt", why));
    }
    let secret = generate_key().map_err(|error| Problem::internal(&error))?;
    let id = Uuid::new_v4();
    let key = ApiKey {
        id,
        name: body.name,
        project: body.project,
        role: body.role,
        created_at: now,
        expires_at: body.expires_at,
    };
    app.api.store.put_key(&KeyRow { key, hash: *KeyHash::of(&secret).as_bytes() }).await?;
    let headers = [
        (header::LOCATION, format!("/v1/keys/{id}")),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((StatusCode::CREATED, headers, Answered(json!({ "id": id, "key": secret }))).into_response())
}

async fn list(State(app): State<Shared>, params: Params) -> Answer<Answered<Items<ApiKey>>> {
    let mut keys = app.api.store.keys().await?;
    let place = |key: &ApiKey| format!("{:016x}-{}", key.created_at, key.id);
    keys.sort_by_cached_key(place);
    Items::sorted(keys, &params, place).map(Answered)
}

async fn get(State(app): State<Shared>, Path(id): Path<Uuid>) -> Answer<Answered<ApiKey>> {
    let mut keys = app.api.store.keys().await?;
    let at = keys.iter().position(|key| key.id == id).ok_or_else(|| unknown(id))?;
    Ok(Answered(keys.swap_remove(at)))
}

async fn delete(State(app): State<Shared>, Path(id): Path<Uuid>) -> Answer<StatusCode> {
    if app.api.store.delete_key(id).await? { Ok(StatusCode::NO_CONTENT) } else { Err(unknown(id)) }
}

fn unknown(id: Uuid) -> Problem {
    Problem::new(Kind::UnknownKey, format!("there is no key {id}"))
}
