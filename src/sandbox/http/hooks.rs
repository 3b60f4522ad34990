//! What `wasi:http` asks of this host.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header, uri};
use http_body_util::BodyExt;
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, RequestOptions, WasiBody, WasiHttpHooks,
    p2::bindings::http::types::ErrorCode,
};

use super::{
    Client,
    body::Leaving,
    connection::{self, Patience},
    grants::Grants,
    session::{Ration, Session},
};
use crate::{
    model::http::{Outgoing, Scheme},
    sandbox::{Call, caps::Caps, logs::Logs, refusal::Refusal},
};

/// Bytes that a guest may write to a request's body at once. The host holds
/// two of them for each body.
const CHUNK: usize = 16 << 10;

/// Says who asks, where the guest doesn't.
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("outrigger/", env!("CARGO_PKG_VERSION")));

/// The same at each attempt, where the guest sends none.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// One call's requests.
pub(super) struct Hooks {
    client: Arc<Client>,
    caps: Caps,
    logs: Logs,
    grants: Grants,
    idempotency_key: String,
    requests: u32,
    /// Made at the first request.
    session: Option<Arc<Session>>,
}

impl Hooks {
    pub(super) fn new(call: &Call, caps: &Caps, logs: &Logs, client: &Arc<Client>) -> Self {
        Self {
            client: Arc::clone(client),
            caps: *caps,
            logs: logs.clone(),
            grants: Grants::new(call),
            idempotency_key: call.idempotency_key.clone(),
            requests: 0,
            session: None,
        }
    }

    /// Those of the next call.
    pub(super) fn next(&self, call: &Call, caps: &Caps, logs: &Logs) -> Self {
        Self::new(call, caps, logs, &self.client)
    }

    pub(super) fn refused(&self) -> Option<&Refusal> {
        self.session.as_ref()?.refused()
    }

    pub(super) fn end(&mut self) {
        if let Some(session) = &self.session {
            session.ended.cancel();
        }
    }

    fn session(&mut self) -> Arc<Session> {
        let Self { client, caps, logs, grants, session, .. } = self;
        let session = session.get_or_insert_with(|| {
            let share = client.share(grants.project());
            let sent = Ration::new("requests", caps.request_bytes);
            let received = Ration::new("responses", caps.response_bytes);
            Arc::new(Session::new(share, caps.requests, sent, received, logs.clone()))
        });
        Arc::clone(session)
    }

    /// Checks a request, and makes it what is sent.
    fn admit(
        &mut self,
        request: Request<WasiBody>,
        session: &Arc<Session>,
    ) -> Result<(Request<Leaving>, Outgoing), Error> {
        let max = self.client.settings.requests_per_call;
        if self.requests >= max {
            // Said once: a plugin that goes on asking has a log to fill.
            if self.requests == max {
                self.requests += 1;
                let why = format!(
                    "the call sends more requests; this host's `http.requests_per_call` is {max}"
                );
                session.refuse(Refusal::Limit(why));
            }
            return Err(Error::ConnectionLimitReached);
        }
        self.requests += 1;
        let (mut parts, body) = request.into_parts();
        let outgoing = outgoing(&parts, session)?;
        self.grants.check(&outgoing).map_err(|why| session.deny(why))?;
        if let Some(size) = http_body::Body::size_hint(&body).exact() {
            session
                .sent
                .admit(size, session)
                .map_err(|max| Error::HttpRequestBodySize(Some(max)))?;
        }
        complete(&mut parts.headers, &outgoing, &self.idempotency_key)?;
        parts.uri = in_origin_form(&parts.uri)?;
        let body = Leaving { body, session: Arc::clone(session) };
        Ok((Request::from_parts(parts, body), outgoing))
    }

    fn patience(&self, options: Option<RequestOptions>) -> Patience {
        let settings = &self.client.settings;
        let (connect, read) = (settings.connect_timeout.get(), settings.read_timeout.get());
        let asked = options.unwrap_or_default();
        Patience {
            connect: asked.connect_timeout.map_or(connect, |asked| asked.min(connect)),
            first_byte: asked.first_byte_timeout.map_or(read, |asked| asked.min(read)),
            between_bytes: asked.between_bytes_timeout.map_or(read, |asked| asked.min(read)),
        }
    }
}

/// What is open ends with the call, if it didn't before.
impl Drop for Hooks {
    fn drop(&mut self) {
        self.end();
    }
}

type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Answer = Result<(http::Response<WasiBody>, Io), Error>;

impl WasiHttpHooks for Hooks {
    /// It is written from what was checked, and by nobody else.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Answer> + Send> {
        let session = self.session();
        let admitted = self.admit(request, &session);
        let (client, patience) = (Arc::clone(&self.client), self.patience(options));
        Box::new(async move {
            let (request, outgoing) = admitted?;
            let send = connection::send(&client, request, &outgoing, patience, &session);
            let response = tokio::select! {
                () = session.ended.cancelled() => return Err(Error::ConnectionTerminated),
                response = send => {
                    response.inspect_err(|error| session.failed(&outgoing, error))?
                }
            };
            // The connection is driven on its own, and belongs to the body.
            let done: Io = Box::new(async { Ok(()) });
            Ok((response.map(BodyExt::boxed_unsync), done))
        })
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }

    fn p2_error_from_hyper(&mut self, _: &hyper::Error) -> ErrorCode {
        ErrorCode::HttpProtocolError
    }
}

/// What a request is to grants.
fn outgoing(parts: &http::request::Parts, session: &Session) -> Result<Outgoing, Error> {
    if parts.method == http::Method::CONNECT {
        session.deny("CONNECT asks for a tunnel, which no plugin gets".into());
        return Err(Error::HttpRequestMethodInvalid);
    }
    let scheme = match parts.uri.scheme() {
        Some(scheme) if *scheme == uri::Scheme::HTTPS => Scheme::Https,
        Some(scheme) if *scheme == uri::Scheme::HTTP => Scheme::Http,
        _ => return Err(Error::HttpProtocolError),
    };
    let authority = parts.uri.authority().map_or("", uri::Authority::as_str);
    Outgoing::new(parts.method.as_str(), scheme, authority).map_err(|why| {
        // Not quoted: what stands before an `@` is a password.
        session.deny(format!("a request's authority {why}"));
        Error::HttpRequestUriInvalid
    })
}

/// Sets the host's own header fields, and takes out what concerns a connection:
/// guests can't set those, and it is not left to that.
fn complete(
    headers: &mut HeaderMap,
    outgoing: &Outgoing,
    idempotency_key: &str,
) -> Result<(), Error> {
    for name in DEFAULT_FORBIDDEN_HEADERS {
        headers.remove(name);
    }
    headers.remove(header::TE);
    let host = HeaderValue::from_str(&outgoing.authority());
    headers.insert(header::HOST, host.map_err(|_| Error::HttpRequestUriInvalid)?);
    headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
    if let Ok(key) = HeaderValue::from_str(idempotency_key) {
        headers.entry(IDEMPOTENCY_KEY).or_insert(key);
    }
    Ok(())
}

/// Path and query alone: that is what a server, which is no proxy, is sent.
fn in_origin_form(uri: &Uri) -> Result<Uri, Error> {
    let path = uri.path_and_query().map_or("/", uri::PathAndQuery::as_str);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Uri::try_from(path).map_err(|_| Error::HttpRequestUriInvalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(given: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        given.iter().map(field).collect()
    }

    #[test]
    fn the_host_is_the_one_that_was_checked() {
        let outgoing = Outgoing::new("GET", Scheme::Https, "A.Example.:8443").expect("a host");
        let mut headers = fields(&[
            ("host", "evil.example"),
            ("connection", "x-secret"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "x"),
            ("te", "trailers"),
            ("x-other", "stays"),
        ]);
        complete(&mut headers, &outgoing, "m/t").expect("complete");
        let version = env!("CARGO_PKG_VERSION");
        let mut expected =
            fields(&[("x-other", "stays"), ("host", "a.example:8443"), ("idempotency-key", "m/t")]);
        let agent = HeaderValue::from_str(&format!("outrigger/{version}")).expect("a value");
        expected.insert(header::USER_AGENT, agent);
        assert_eq!(headers, expected);
    }

    #[test]
    fn what_the_guest_says_of_itself_stays() {
        let outgoing = Outgoing::new("POST", Scheme::Http, "a.example").expect("a host");
        let given = [("idempotency-key", "own"), ("user-agent", "mine/1")];
        let mut headers = fields(&given);
        complete(&mut headers, &outgoing, "m/t").expect("complete");
        headers.remove(header::HOST);
        assert_eq!(headers, fields(&given));
        complete(&mut headers, &outgoing, "no\nheader").expect("left out");
    }

    #[test]
    fn a_server_is_sent_path_and_query() {
        for (uri, sent) in [
            ("https://a.example", "/"),
            ("https://a.example/a/b?c=d", "/a/b?c=d"),
            ("https://a.example?c=d", "/?c=d"),
        ] {
            let uri: Uri = uri.parse().expect(uri);
            assert_eq!(in_origin_form(&uri).expect("a path").to_string(), sent);
        }
    }
}
