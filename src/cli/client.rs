//! The HTTP interface, as commands call it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, bail};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// How long a call may take that isn't said to take long.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection to one host.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
}

/// What a host answered to a call that it carried out.
pub(super) struct Answer {
    /// Which success.
    pub(super) status: StatusCode,
    text: String,
    value: Value,
}

#[derive(Deserialize)]
struct Problem {
    title: String,
    detail: String,
}

impl Client {
    /// A client that sends this key; calls nobody yet.
    pub(super) fn new(url: &str, key: Option<&str>) -> Result<Self> {
        let base: Url = url.parse().with_context(|| format!("`{url}` is no URL"))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            bail!("`{url}` begins with neither `http://` nor `https://`");
        }
        // The program's own choice, unless it was made before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(redirect::Policy::none())
            .user_agent(concat!("outrigger/", env!("CARGO_PKG_VERSION")));
        if is_local(&base) {
            http = http.no_proxy();
        }
        let http = http.build().context("the HTTP client can't be set up")?;
        Ok(Self { http, base, key: key.map(str::to_owned) })
    }

    /// A call of a path that consists of these segments.
    pub(super) fn call(&self, method: Method, path: &[&str]) -> Result<RequestBuilder> {
        let mut url = self.base.clone();
        {
            let Ok(mut segments) = url.path_segments_mut() else {
                bail!("`{url}` can't be called");
            };
            segments.pop_if_empty().push("v1");
            for segment in path {
                // A URL leaves these out, so it would name something else.
                if matches!(*segment, "" | "." | "..") {
                    bail!("`{segment}` is no name");
                }
                segments.push(segment);
            }
        }
        let request = self.http.request(method, url);
        Ok(match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        })
    }

    pub(super) async fn get(&self, path: &[&str]) -> Result<Answer> {
        self.send(self.call(Method::GET, path)?).await
    }

    pub(super) async fn post(&self, path: &[&str], body: &Value) -> Result<Answer> {
        self.send(self.call(Method::POST, path)?.json(body)).await
    }

    pub(super) async fn put(&self, path: &[&str], body: &Value) -> Result<Answer> {
        self.send(self.call(Method::PUT, path)?.json(body)).await
    }

    pub(super) async fn delete(&self, path: &[&str]) -> Result<Answer> {
        self.send(self.call(Method::DELETE, path)?).await
    }

    /// Sends a call; whatever isn't a success is an error.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Answer> {
        let answer = self.try_send(request).await?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refusal(&answer)) }
    }

    /// Sends a call whose answer comes bit by bit.
    pub(super) async fn open(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.context("the answer broke off")?;
        let value = value_of(&text);
        Err(self.refusal(&Answer { status, text, value }))
    }

    /// Sends a call; `None` if what it is about doesn't exist.
    pub(super) async fn find(&self, request: RequestBuilder) -> Result<Option<Answer>> {
        let answer = self.try_send(request).await?;
        match answer.status {
            StatusCode::NOT_FOUND if answer.value["title"].is_string() => Ok(None),
            status if status.is_success() => Ok(Some(answer)),
            _ => Err(self.refusal(&answer)),
        }
    }

    async fn try_send(&self, request: RequestBuilder) -> Result<Answer> {
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let text = response.text().await.context("the answer broke off")?;
        let value = value_of(&text);
        if status.is_success() && !text.is_empty() && value == Value::Null {
            bail!("{} answers, but not as an Outrigger host does: is the URL right?", self.base);
        }
        Ok(Answer { status, text, value })
    }

    fn unreachable(&self, error: reqwest::Error) -> anyhow::Error {
        let said = if error.is_connect() {
            format!(
                "nothing answers at {}; start a host with `outrigger serve`, or name another with \
                 --url or OUTRIGGER_URL",
                self.base
            )
        } else if error.is_timeout() {
            format!("{} took too long to answer", self.base)
        } else {
            format!("{} can't be asked", self.base)
        };
        anyhow::Error::from(error.without_url()).context(said)
    }

    /// A problem document as `title: detail`.
    fn refusal(&self, answer: &Answer) -> anyhow::Error {
        let status = answer.status;
        let Ok(Problem { title, detail }) = serde_json::from_str(&answer.text) else {
            let base = &self.base;
            return anyhow::anyhow!(
                "{base} answers {status}, but not as an Outrigger host does: is the URL right?"
            );
        };
        if status == StatusCode::UNAUTHORIZED && self.key.is_none() {
            return anyhow::anyhow!("{title}: give one with --key or OUTRIGGER_KEY");
        }
        anyhow::anyhow!("{title}: {detail}")
    }
}

impl Answer {
    /// The answer as the host wrote it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The answer as a value; numbers beyond 64 bits lose digits, and a member
    /// with one that no float can hold is a text.
    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// One member of the answer, to the letter.
    pub(super) fn raw(&self, member: &str) -> Option<String> {
        members(&self.text)?.remove(member).map(|raw| raw.get().to_owned())
    }
}

fn members(object: &str) -> Option<BTreeMap<String, Box<RawValue>>> {
    serde_json::from_str(object).ok()
}

/// The value of a JSON text, null if it is none.
fn value_of(text: &str) -> Value {
    let lenient = |raw: &RawValue| -> Value {
        serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into())
    };
    serde_json::from_str(text).unwrap_or_else(|_| match members(text) {
        Some(members) => members.into_iter().map(|(name, raw)| (name, lenient(&raw))).collect(),
        None => Value::Null,
    })
}

/// A proxy is for hosts elsewhere.
fn is_local(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse().is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback()),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str, path: &[&str]) -> Result<String> {
        let request = Client::new(base, Some("key"))?.call(Method::GET, path)?.build()?;
        Ok(request.url().to_string())
    }

    #[test]
    fn names_stay_within_their_segment() {
        let url_of = |path: &[&str]| url("http://h", path).expect("a URL");
        assert_eq!(url_of(&["projects", "a/b?c#d"]), "http://h/v1/projects/a%2Fb%3Fc%23d");
        assert_eq!(url("http://h/base/", &["status"]).expect("a URL"), "http://h/base/v1/status");
        for name in ["", ".", ".."] {
            url("http://h", &["projects", name]).expect_err(name);
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for base in ["localhost:8080", "ftp://h", "h", "data:x"] {
            assert!(Client::new(base, None).is_err(), "{base}");
        }
    }

    #[test]
    fn an_answer_with_a_number_beyond_floats_is_one() {
        let value = value_of(r#"{"status": "pending", "claims": 1, "payload": {"n": 1e400}}"#);
        assert_eq!((&value["status"], &value["claims"]), (&"pending".into(), &1.into()));
        assert_eq!(value["payload"], r#"{"n": 1e400}"#);
        assert_eq!(value_of("<html>"), Value::Null);
    }

    #[test]
    fn this_machine_needs_no_proxy() {
        for (base, local) in [
            ("http://127.0.0.1:8080", true),
            ("http://localhost", true),
            ("http://[::1]:1", true),
            ("http://10.0.0.1", false),
            ("https://localhost.example", false),
        ] {
            assert_eq!(is_local(&base.parse().expect("a URL")), local, "{base}");
        }
    }
}
