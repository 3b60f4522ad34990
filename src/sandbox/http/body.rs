//! Bodies on their way: counted, and no longer waited for than agreed.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use wasmtime_wasi_http::{Error, WasiBody};

use super::{connection::Line, session::Session};

/// What a guest sends.
pub(super) struct Leaving {
    pub(super) body: WasiBody,
    pub(super) session: Arc<Session>,
}

impl Body for Leaving {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|f| f.as_ref().ok()).and_then(Frame::data_ref)
            && let Err(max) = self.session.sent.take(data.len() as u64, &self.session)
        {
            return Poll::Ready(Some(Err(Error::HttpRequestBodySize(Some(max)))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a server sends. The connection is closed once this is dropped, read to
/// its end or not.
pub(super) struct Arriving {
    body: Incoming,
    session: Arc<Session>,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
    _line: Line,
}

impl Arriving {
    /// The body of a response that came over this line. Between two parts of it
    /// there may be so much time.
    pub(super) fn new(
        body: Incoming,
        session: Arc<Session>,
        patience: Duration,
        line: Line,
    ) -> Self {
        let timer = Box::pin(tokio::time::sleep(patience));
        Self { body, session, patience, timer, _line: line }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            ready!(self.timer.as_mut().poll(context));
            return Poll::Ready(Some(Err(Error::ConnectionReadTimeout)));
        };
        let next = Instant::now() + self.patience;
        self.timer.as_mut().reset(next);
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Poll::Ready(Some(Err(super::connection::lost(&error)))),
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        match self.session.received.take(bytes, &self.session) {
            Ok(()) => Poll::Ready(Some(Ok(frame))),
            Err(max) => Poll::Ready(Some(Err(Error::HttpResponseBodySize(Some(max))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
