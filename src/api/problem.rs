//! What an error looks like: a problem document (RFC 9457), whatever went wrong.

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value};

use crate::{model::names::Invalid, store::StoreError};

/// What every handler answers.
pub(super) type Answer<T = Response> = Result<T, Problem>;

/// An error, on its way to whoever asked.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    kind: Kind,
    detail: String,
    members: Map<String, Value>,
}

/// Which problem it is; each has a status, a stable slug and a title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    BadJson,
    BadQuery,
    BadPath,
    BadHeader,
    BadBody,
    MissingKey,
    WrongKey,
    Forbidden,
    UnknownPath,
    UnknownProject,
    UnknownEvent,
    UnknownPlugin,
    UnknownTrigger,
    UnknownSecret,
    UnknownDeadLetter,
    UnknownOperation,
    UnknownKey,
    MethodNotAllowed,
    BodyTimeout,
    Duplicate,
    NotDispatched,
    StillOpen,
    PluginInUse,
    NotAllowed,
    SecretInUse,
    TooMany,
    DeliveriesLeft,
    TooLarge,
    MediaType,
    Invalid,
    KeyReused,
    BadComponent,
    Internal,
    NotSupported,
    Unavailable,
    NoSecretsKey,
    Stalled,
}

impl Kind {
    const fn describe(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::BadJson => (S::BAD_REQUEST, "bad-json", "The body is not JSON"),
            Self::BadQuery => (S::BAD_REQUEST, "bad-query", "A query parameter is wrong"),
            Self::BadPath => (S::BAD_REQUEST, "bad-path", "A part of the path is wrong"),
            Self::BadHeader => (S::BAD_REQUEST, "bad-header", "A header is wrong"),
            Self::BadBody => (S::BAD_REQUEST, "bad-body", "The body could not be read"),
            Self::MissingKey => (S::UNAUTHORIZED, "missing-key", "An API key is needed"),
            Self::WrongKey => (S::UNAUTHORIZED, "wrong-key", "The API key is not valid"),
            Self::Forbidden => (S::FORBIDDEN, "forbidden", "The API key is not for this"),
            Self::UnknownPath => (S::NOT_FOUND, "unknown-path", "There is no such path"),
            Self::UnknownProject => (S::NOT_FOUND, "unknown-project", "There is no such project"),
            Self::UnknownEvent => (S::NOT_FOUND, "unknown-event", "There is no such event"),
            Self::UnknownPlugin => (S::NOT_FOUND, "unknown-plugin", "There is no such plugin"),
            Self::UnknownTrigger => (S::NOT_FOUND, "unknown-trigger", "There is no such trigger"),
            Self::UnknownSecret => (S::NOT_FOUND, "unknown-secret", "There is no such secret"),
            Self::UnknownDeadLetter => {
                (S::NOT_FOUND, "unknown-dead-letter", "There is no such dead letter")
            }
            Self::UnknownOperation => {
                (S::NOT_FOUND, "unknown-operation", "There is no such operation")
            }
            Self::UnknownKey => (S::NOT_FOUND, "unknown-key", "There is no such API key"),
            Self::MethodNotAllowed => {
                (S::METHOD_NOT_ALLOWED, "method-not-allowed", "The path has no such method")
            }
            Self::BodyTimeout => (S::REQUEST_TIMEOUT, "body-timeout", "The body did not arrive"),
            Self::Duplicate => (S::CONFLICT, "duplicate", "The dedup key was used before"),
            Self::NotDispatched => (S::CONFLICT, "not-dispatched", "The event is still pending"),
            Self::StillOpen => (S::CONFLICT, "still-open", "It is being delivered already"),
            Self::PluginInUse => (S::CONFLICT, "plugin-in-use", "Triggers use the plugin"),
            Self::NotAllowed => {
                (S::CONFLICT, "not-allowed", "The project doesn't allow what the plugin needs")
            }
            Self::SecretInUse => (S::CONFLICT, "secret-in-use", "Triggers are granted the secret"),
            Self::TooMany => (S::CONFLICT, "too-many", "There are as many as there may be"),
            Self::DeliveriesLeft => (S::CONFLICT, "deliveries-left", "The trigger has deliveries"),
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, "too-large", "It is too large"),
            Self::MediaType => {
                (S::UNSUPPORTED_MEDIA_TYPE, "media-type", "The body's type is not supported")
            }
            Self::Invalid => (S::UNPROCESSABLE_ENTITY, "invalid", "A field is wrong"),
            Self::KeyReused => (
                S::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "The idempotency key stands for another event",
            ),
            Self::BadComponent => {
                (S::UNPROCESSABLE_ENTITY, "bad-component", "The plugin can't be used")
            }
            Self::Internal => (S::INTERNAL_SERVER_ERROR, "internal", "Something broke"),
            Self::NotSupported => (S::NOT_IMPLEMENTED, "not-supported", "Not supported yet"),
            Self::Unavailable => (S::SERVICE_UNAVAILABLE, "unavailable", "Try again later"),
            Self::NoSecretsKey => {
                (S::SERVICE_UNAVAILABLE, "no-secrets-key", "The host has no key for secrets")
            }
            Self::Stalled => (S::SERVICE_UNAVAILABLE, "stalled", "Events are not delivered"),
        }
    }

    const fn header(self) -> Option<(HeaderName, &'static str)> {
        match self {
            Self::MissingKey => Some((header::WWW_AUTHENTICATE, "Bearer realm=\"outrigger\"")),
            Self::WrongKey => Some((
                header::WWW_AUTHENTICATE,
                "Bearer realm=\"outrigger\", error=\"invalid_token\"",
            )),
            Self::Unavailable | Self::Stalled => Some((header::RETRY_AFTER, "1")),
            _ => None,
        }
    }
}

impl Problem {
    /// A problem, with what is to be said about this case of it.
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), members: Map::new() }
    }

    /// The same with one more member.
    pub(super) fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.members.insert(member.to_owned(), value.into());
        self
    }

    /// A field of the body that is wrong.
    pub(super) fn field(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("`{field}` {why}")).with("field", field)
    }

    /// A part of the interface that this version doesn't have.
    pub(super) fn not_supported(what: &str) -> Self {
        Self::new(Kind::NotSupported, format!("{what}: not supported by this version"))
    }

    /// A project that nobody created.
    pub(super) fn no_project(name: &str) -> Self {
        Self::new(Kind::UnknownProject, format!("there is no project `{name}`"))
    }

    /// A fault of this program; the log has the rest.
    pub(super) fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error, "a request failed");
        Self::new(Kind::Internal, "the host's log says more")
    }

    /// The status that it is answered with.
    pub(super) const fn status(&self) -> StatusCode {
        self.kind.describe().0
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (status, slug, title) = self.kind.describe();
        let mut document = to.serialize_map(None)?;
        document.serialize_entry("type", &format_args!("urn:outrigger:problem:{slug}"))?;
        document.serialize_entry("title", title)?;
        document.serialize_entry("status", &status.as_u16())?;
        document.serialize_entry("detail", &self.detail)?;
        for (name, value) in &self.members {
            document.serialize_entry(name, value)?;
        }
        document.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = self.kind.header() {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl From<Invalid> for Problem {
    fn from(Invalid { field, why }: Invalid) -> Self {
        Self::field(field, why)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if !error.is_passing() {
            return Self::internal(&error);
        }
        tracing::warn!(error = &error as &(dyn std::error::Error + 'static), "a request failed");
        Self::new(Kind::Unavailable, error.reason())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_is_away_may_be_asked_again() {
        for error in [
            StoreError::Unavailable("postgres://user:secret@db".into()),
            StoreError::Busy("locked".into()),
            StoreError::Full("no space".into()),
        ] {
            let problem = Problem::from(error);
            let document = serde_json::to_string(&problem).expect("JSON");
            assert!(!document.contains("secret"), "{document}");
            let response = problem.into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        }
        let problem = Problem::from(StoreError::Refused("near \"SELEC\"".into()));
        assert_eq!(problem.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!serde_json::to_string(&problem).expect("JSON").contains("SELEC"));
    }

    #[test]
    fn a_document_has_its_members_and_more() {
        let problem = Problem::field("retry.max", "is too long").with("limit", 5);
        let document = serde_json::to_value(problem).expect("JSON");
        let expected = serde_json::json!({
            "type": "urn:outrigger:problem:invalid",
            "title": "A field is wrong",
            "status": 422,
            "detail": "`retry.max` is too long",
            "field": "retry.max",
            "limit": 5,
        });
        assert_eq!(document, expected);
    }
}
