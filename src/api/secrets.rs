//! Secrets: set, listed by name, deleted. Nothing answers a value.

use axum::{Json as Answered, extract::State, http::StatusCode, response::IntoResponse as _};
use serde::{Deserialize, Serialize};

use super::{
    Shared,
    extract::{JsonText, Params, Path},
    page::Items,
    problem::{Answer, Kind, Problem},
    projects,
    routes::Routes,
};
use crate::{
    model::{
        UnixMillis, names,
        secret::{COUNT_MAX, SecretValue},
    },
    secrets::SealError,
    store::SecretPut,
};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/projects/{project}/secrets", &["limit", "cursor"], list)
        .put("/v1/projects/{project}/secrets/{name}", &[], put)
        .delete("/v1/projects/{project}/secrets/{name}", &[], delete)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SecretView {
    name: String,
    updated_at: UnixMillis,
    /// Triggers that are granted it.
    triggers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    value: String,
}

async fn put(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
    JsonText(text): JsonText,
) -> Answer {
    names::name("name", &name)?;
    let Body { value } = parse(&text)?;
    let value = SecretValue::new(value)?;
    projects::existing(&app, &project).await?;
    let store = &app.api.store;
    let sealed = app.api.settings.keyring.seal(&project, &name, &value)?;
    let status = match store.put_secret(&project, &name, &sealed, COUNT_MAX).await? {
        SecretPut::New => StatusCode::CREATED,
        SecretPut::Replaced => StatusCode::OK,
        SecretPut::Full => {
            let detail = format!("a project may have {COUNT_MAX} secrets");
            return Err(Problem::new(Kind::TooMany, detail));
        }
    };
    store.wake();
    let there = views(&app, &project).await?.into_iter().find(|secret| secret.name == name);
    let view = there.ok_or_else(|| unknown(&project, &name))?;
    Ok((status, Answered(view)).into_response())
}

/// What is said of a body that can't be used doesn't quote it.
fn parse(text: &str) -> Answer<Body> {
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        if error.is_data() {
            let detail = "the body must be an object with one member, the text `value`";
            return Problem::new(Kind::Invalid, detail);
        }
        Problem::new(Kind::BadJson, format!("it breaks off at line {line}, column {column}"))
    })
}

async fn list(
    State(app): State<Shared>,
    Path(project): Path<String>,
    params: Params,
) -> Answer<Answered<Items<SecretView>>> {
    projects::existing(&app, &project).await?;
    let views = views(&app, &project).await?;
    Items::sorted(views, &params, |secret: &SecretView| secret.name.clone()).map(Answered)
}

async fn delete(
    State(app): State<Shared>,
    Path((project, name)): Path<(String, String)>,
) -> Answer<StatusCode> {
    projects::existing(&app, &project).await?;
    match app.api.store.delete_secret(&project, &name).await? {
        None => Err(unknown(&project, &name)),
        Some(users) if users.is_empty() => Ok(StatusCode::NO_CONTENT),
        Some(users) => {
            let detail = format!(
                "these triggers are granted the secret `{name}`: {}; to make it useless at once, \
                 set another value",
                users.join(", ")
            );
            Err(Problem::new(Kind::SecretInUse, detail).with("triggers", users))
        }
    }
}

async fn views(app: &Shared, project: &str) -> Answer<Vec<SecretView>> {
    let triggers = app.api.store.triggers(project).await?;
    let granted = |name: &String| {
        let users = triggers.iter().filter(|trigger| trigger.spec.grants.secrets.contains(name));
        users.map(|trigger| trigger.name.clone()).collect()
    };
    let secrets = app.api.store.secrets(project).await?.into_iter();
    Ok(secrets
        .map(|secret| SecretView {
            triggers: granted(&secret.name),
            name: secret.name,
            updated_at: secret.updated_at,
        })
        .collect())
}

fn unknown(project: &str, name: &str) -> Problem {
    let detail = format!("the project `{project}` has no secret `{name}`");
    Problem::new(Kind::UnknownSecret, detail)
}

impl From<SealError> for Problem {
    fn from(error: SealError) -> Self {
        match error {
            SealError::NoKey => Self::new(Kind::NoSecretsKey, error.to_string()),
            SealError::NoRandomness => Self::internal(&error),
        }
    }
}
