//! One request over one connection of its own.
//!
//! Connections are not kept: what a server sent to one call can't be taken for
//! an answer to another, and nothing outlives a change of what is allowed.

use std::{io, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Request, Response};
use hyper::client::conn::http1;
use rustls::{AlertDescription, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use wasmtime_wasi_http::{Error, io::TokioIo};

use super::{
    body::{Arriving, Leaving},
    client::{Client, Turn},
    counted::Counted,
    session::Session,
};
use crate::model::http::{Host, Outgoing, Scheme};

/// Largest header section of a response, and what is buffered of its body.
const BUFFER: usize = 64 << 10;

/// A connection that is open as long as this, and no longer than its call.
pub(super) struct Line {
    _driver: AbortOnDropHandle<()>,
    _turn: Turn,
}

/// How long a request may wait for what.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For room, the name, the connection and the handshake, all together.
    pub(super) connect: Duration,
    /// For the head of the response.
    pub(super) first_byte: Duration,
    /// For each part of its body.
    pub(super) between_bytes: Duration,
}

/// Sends a request that may be sent, and waits for the head of its response.
pub(super) async fn send(
    client: &Client,
    request: Request<Leaving>,
    outgoing: &Outgoing,
    patience: Patience,
    session: &Arc<Session>,
) -> Result<Response<Arriving>, Error> {
    let until = Instant::now() + patience.connect;
    let turn = timeout_at(until, client.turn(session)).await;
    let turn = turn.map_err(|_| session.crowd(outgoing))??;
    let open = open(client, outgoing, session, until);
    let (mut sender, driver) =
        timeout_at(until, open).await.map_err(|_| Error::ConnectionTimeout)??;
    let line = Line { _driver: driver, _turn: turn };
    let head = timeout(patience.first_byte, sender.send_request(request));
    let response = head.await.map_err(|_| Error::ConnectionReadTimeout)?;
    let response = response.map_err(|error| lost(&error))?;
    let (parts, body) = response.into_parts();
    let field = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    if parts.headers.iter().map(field).sum::<usize>() > BUFFER {
        return Err(Error::HttpResponseHeaderSectionSize(None));
    }
    let body = Arriving::new(body, Arc::clone(session), patience.between_bytes, line);
    Ok(Response::from_parts(parts, body))
}

type Sender = http1::SendRequest<Leaving>;

async fn open(
    client: &Client,
    outgoing: &Outgoing,
    session: &Arc<Session>,
    until: Instant,
) -> Result<(Sender, AbortOnDropHandle<()>), Error> {
    let stream = client.connect(outgoing, session, until).await?;
    let _ = stream.set_nodelay(true);
    match outgoing.scheme {
        Scheme::Http => handshake(Counted::new(stream, session), &session.ended).await,
        Scheme::Https => {
            let stream = prove(client, outgoing, stream, session).await?;
            handshake(Counted::new(stream, session), &session.ended).await
        }
    }
}

/// Has the server prove that it is the one that was asked for.
async fn prove(
    client: &Client,
    outgoing: &Outgoing,
    stream: TcpStream,
    session: &Session,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Error> {
    let name = match &outgoing.host {
        Host::Address(address) => ServerName::from(*address),
        Host::Name(name) => {
            ServerName::try_from(name.clone()).map_err(|_| Error::HttpRequestUriInvalid)?
        }
    };
    let connector = TlsConnector::from(client.tls().await?);
    connector.connect(name, stream).await.map_err(|error| {
        let (code, why) = unproved(&error);
        if let Some(why) = why {
            session.say(&format!("{outgoing} was not sent: {why}"));
        }
        code
    })
}

/// What the guest is told, and what its author is told beside it.
fn unproved(error: &io::Error) -> (Error, Option<String>) {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(error @ rustls::Error::InvalidCertificate(_)) => {
            (Error::TlsCertificateError, Some(error.to_string()))
        }
        Some(error @ rustls::Error::AlertReceived(alert)) => {
            let code = Error::TlsAlertReceived {
                alert_id: Some(u8::from(*alert)),
                alert_message: Some(alert_name(*alert)),
            };
            (code, Some(error.to_string()))
        }
        Some(error) => (Error::TlsProtocolError, Some(error.to_string())),
        None => (Error::ConnectionTerminated, None),
    }
}

fn alert_name(alert: AlertDescription) -> String {
    format!("{alert:?}")
}

async fn handshake<S>(
    stream: S,
    ended: &CancellationToken,
) -> Result<(Sender, AbortOnDropHandle<()>), Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER);
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
    let ended = ended.clone();
    // With its call the connection ends too, whoever still holds the body.
    let driver = tokio::spawn(async move {
        tokio::select! {
            () = ended.cancelled() => {}
            // What went wrong is told to whoever waits for the response.
            _ = connection => {}
        }
    });
    Ok((sender, AbortOnDropHandle::new(driver)))
}

/// Why a connection ended too early.
pub(super) fn lost(error: &hyper::Error) -> Error {
    // What the request's own body failed with comes back as the source.
    let own = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    if let Some(Error::HttpRequestBodySize(max)) = own {
        Error::HttpRequestBodySize(*max)
    } else if error.is_parse_too_large() {
        Error::HttpResponseHeaderSectionSize(None)
    } else if error.is_parse() || error.is_user() {
        Error::HttpProtocolError
    } else if error.is_incomplete_message() {
        Error::HttpResponseIncomplete
    } else {
        Error::ConnectionTerminated
    }
}
