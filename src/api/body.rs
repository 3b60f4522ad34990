//! Request bodies: read up to a limit, and read to their end whatever happens.
//!
//! A server that answers and closes while the client still sends makes the
//! client's machine drop the answer: what was meant as "too large" arrives as
//! a broken connection. So what a handler left unread is read and thrown away
//! before the answer goes out.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody as _},
    extract::Request,
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use futures::{Stream, StreamExt as _};

use super::problem::{Answer, Kind, Problem};
use crate::model::units::Bytes as Size;

/// How long the next piece of a body may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a whole body may take: what was read of it takes memory.
const WHOLE: Duration = Duration::from_mins(10);

/// How long a body that nobody wants is read.
const DRAIN: Duration = Duration::from_mins(2);

/// Reads what the handler left of the body before its answer is sent.
pub(super) async fn drain(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let mut rest = Shared {
        stream: Arc::new(Mutex::new(body.into_data_stream())),
        touched: Arc::new(AtomicBool::new(false)),
    };
    // A client that asked for leave to send, and didn't get it, sends nothing.
    let awaits_leave = parts.headers.contains_key(header::EXPECT);
    let body = Body::from_stream(rest.clone());
    let response = next.run(Request::from_parts(parts, body)).await;
    if rest.touched.load(Ordering::Relaxed) || !awaits_leave {
        let all = async { while let Some(Ok(_)) = next_piece(&mut rest).await {} };
        // Past the limit the connection breaks, which is all that is left to do.
        let _ = tokio::time::timeout(DRAIN, all).await;
    }
    response
}

/// Reads a whole body of at most `limit` bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: Size) -> Answer<Vec<u8>> {
    if let Some(coding) = headers.get(header::CONTENT_ENCODING) {
        let detail = format!("send the body as it is, without the content coding {coding:?}");
        return Err(Problem::new(Kind::MediaType, detail));
    }
    let too_large =
        || Problem::new(Kind::TooLarge, format!("the body has more than {limit}, the limit"));
    let announced = body.size_hint().exact().or_else(|| content_length(headers));
    if announced.is_some_and(|length| length > limit.get()) {
        return Err(too_large());
    }
    let room = announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    let mut bytes = Vec::with_capacity(room);
    let mut stream = body.into_data_stream();
    let end = Instant::now() + WHOLE;
    while let Some(piece) = next_piece(&mut stream).await {
        let piece = piece?;
        if Instant::now() > end {
            let detail = format!("the body took more than {} minutes", WHOLE.as_secs() / 60);
            return Err(Problem::new(Kind::BodyTimeout, detail));
        }
        if bytes.len() + piece.len() > limit.as_usize() {
            return Err(too_large());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn next_piece<S>(stream: &mut S) -> Option<Answer<Bytes>>
where
    S: Stream<Item = Result<Bytes, axum::Error>> + Unpin,
{
    let Ok(piece) = tokio::time::timeout(PATIENCE, stream.next()).await else {
        let detail = format!("nothing came for {} seconds", PATIENCE.as_secs());
        return Some(Err(Problem::new(Kind::BodyTimeout, detail)));
    };
    let broken = |error| Problem::new(Kind::BadBody, format!("it broke off: {error}"));
    piece.map(|piece| piece.map_err(broken))
}

/// A body that the handler reads and that the rest of is read afterwards.
#[derive(Clone)]
struct Shared {
    stream: Arc<Mutex<BodyDataStream>>,
    touched: Arc<AtomicBool>,
}

impl Stream for Shared {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.touched.store(true, Ordering::Relaxed);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.poll_next_unpin(context)
    }
}
