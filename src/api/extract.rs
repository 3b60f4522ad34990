//! Paths, queries and JSON bodies, whose faults are problem documents.

use std::{collections::BTreeMap, str::FromStr};

use axum::{
    extract::rejection::PathRejection,
    extract::{FromRequest, FromRequestParts, Request, path::ErrorKind, rejection::JsonRejection},
    http::{HeaderMap, Uri, header, request::Parts},
};
use serde::de::DeserializeOwned;

use super::{
    Shared, body,
    problem::{Answer, Kind, Problem},
};

/// The path's parameters, decoded.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Answer<Self> {
        if !is_text(parts.uri.path()) {
            let detail = "once decoded, it is not UTF-8, or has a U+0000";
            return Err(Problem::new(Kind::BadPath, detail));
        }
        match axum::extract::Path::from_request_parts(parts, app).await {
            Ok(axum::extract::Path(params)) => Ok(Self(params)),
            Err(rejection) => Err(Problem::new(Kind::BadPath, bad_path(rejection))),
        }
    }
}

fn bad_path(rejection: PathRejection) -> String {
    let PathRejection::FailedToDeserializePathParams(error) = rejection else {
        return rejection.body_text();
    };
    match error.into_kind() {
        ErrorKind::ParseErrorAtKey { value, expected_type, .. }
        | ErrorKind::ParseErrorAtIndex { value, expected_type, .. }
        | ErrorKind::ParseError { value, expected_type } => {
            let expected = if expected_type == "i64" { "number" } else { expected_type };
            format!("`{value}` is no {expected}")
        }
        ErrorKind::DeserializeError { value, message, .. } => format!("`{value}`: {message}"),
        other => other.to_string(),
    }
}

/// The query's parameters, each known to the route and given once.
pub(super) struct Params(BTreeMap<String, String>);

impl Params {
    /// Reads a query in which only these names may stand.
    ///
    /// # Errors
    /// Names the parameter that is unknown or stands there twice.
    pub(super) fn read(uri: &Uri, known: Option<&[&str]>) -> Answer<Self> {
        let bad = |detail: String| Err(Problem::new(Kind::BadQuery, detail));
        if !uri.query().is_none_or(is_text) {
            return bad("once decoded, it is not UTF-8, or has a U+0000".into());
        }
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Ok(axum::extract::Query(pairs)) = pairs else {
            return bad("it is no list of `name=value`".into());
        };
        let mut params = BTreeMap::new();
        for (name, value) in pairs {
            if let Some(known) = known.filter(|known| !known.contains(&name.as_str())) {
                let names = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
                let has = if names.is_empty() { "none".into() } else { names.join(", ") };
                return bad(format!("`{name}` is no parameter of this call; it has {has}"));
            }
            if params.insert(name.clone(), value).is_some() {
                return bad(format!("`{name}` stands there twice"));
            }
        }
        Ok(Self(params))
    }

    /// A text, if it is given.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// A number, an id, a duration; `what` is said if it is none.
    pub(super) fn parse<T: FromStr>(&self, name: &str, what: &str) -> Answer<Option<T>> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| wrong(name, text, what))
    }

    /// One of a few names.
    pub(super) fn one_of<T: DeserializeOwned>(&self, name: &str) -> Answer<Option<T>> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        serde_json::from_value(text.as_str().into())
            .map(Some)
            .map_err(|error| Problem::new(Kind::BadQuery, format!("`{name}`: {error}")))
    }

    /// `true` or `false`, false if it isn't given.
    pub(super) fn flag(&self, name: &str) -> Answer<bool> {
        Ok(self.parse(name, "`true` or `false`")?.unwrap_or(false))
    }
}

/// What is said of a parameter that can't be used.
pub(super) fn wrong(name: &str, value: &str, what: &str) -> Problem {
    Problem::new(Kind::BadQuery, format!("`{name}={value}`: this must be {what}"))
}

impl FromRequestParts<Shared> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Answer<Self> {
        Self::read(&parts.uri, None)
    }
}

/// A body of JSON text that isn't parsed yet.
pub(super) struct JsonText(pub(super) String);

impl FromRequest<Shared> for JsonText {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Answer<Self> {
        let (parts, body) = request.into_parts();
        check_media_type(&parts.headers)?;
        let bytes = body::read(&parts.headers, body, app.api.settings.body_max).await?;
        String::from_utf8(bytes).map(Self).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Problem::new(Kind::BadJson, format!("it is not UTF-8 from byte {at} on"))
        })
    }
}

/// A parsed body.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Answer<Self> {
        let JsonText(text) = JsonText::from_request(request, app).await?;
        parse(&text).map(Self)
    }
}

/// A parsed body; none at all stands for `{}`.
pub(super) struct JsonOrNothing<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Shared> for JsonOrNothing<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Answer<Self> {
        let JsonText(text) = JsonText::from_request(request, app).await?;
        parse(if text.trim().is_empty() { "{}" } else { &text }).map(Self)
    }
}

/// Parses JSON text; a fault is said with its place.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Answer<T> {
    if text.trim().is_empty() {
        return Err(Problem::new(Kind::BadJson, "the body is empty"));
    }
    let rejection = match axum::Json::from_bytes(text.as_bytes()) {
        Ok(axum::Json(value)) => return Ok(value),
        Err(rejection) => rejection,
    };
    let kind = match rejection {
        JsonRejection::JsonDataError(_) => Kind::Invalid,
        _ => Kind::BadJson,
    };
    let said = rejection.body_text();
    let detail = said.split_once(": ").map_or(said.as_str(), |(_, detail)| detail);
    Err(Problem::new(kind, detail))
}

/// A form's type is what `curl -d` says unasked, so the fault names the remedy.
fn check_media_type(headers: &HeaderMap) -> Answer<()> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence
        .strip_prefix("application/")
        .is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"));
    if is_json {
        return Ok(());
    }
    let detail = format!("`{text}` is not JSON; send `Content-Type: application/json`");
    Err(Problem::new(Kind::MediaType, detail))
}

/// Whether a percent-encoded text is UTF-8 that every database can store.
fn is_text(encoded: &str) -> bool {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        bytes.push(escaped.map_or(*first, |(high, low)| high << 4 | low));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    !bytes.contains(&0) && String::from_utf8(bytes).is_ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_let_in() {
        for good in ["", "a", "a%20b", "%C3%A4", "100%", "%zz"] {
            assert!(is_text(good), "{good}");
        }
        for bad in ["%00", "a%ff", "%C3", "%c3%28"] {
            assert!(!is_text(bad), "{bad}");
        }
    }

    #[test]
    fn a_query_has_known_names_once() {
        let read = |query: &str| {
            let uri: Uri = format!("/p?{query}").parse().expect("a URI");
            Params::read(&uri, Some(&["limit", "flag"]))
        };
        let params = read("limit=5&flag=true").unwrap_or_else(|_| panic!("a good query"));
        assert_eq!(params.parse::<u32>("limit", "a number").ok().flatten(), Some(5));
        assert!(matches!(params.flag("flag"), Ok(true)));
        for (query, named) in
            [("limits=5", "`limits`"), ("limit=1&limit=2", "`limit`"), ("%00", "U+0000")]
        {
            let Err(problem) = read(query) else { panic!("{query}") };
            let detail = serde_json::to_value(problem).expect("JSON")["detail"].to_string();
            assert!(detail.contains(named), "{query}: {detail}");
        }
    }
}
