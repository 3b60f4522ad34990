//! A server that plugins send requests to.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::any,
};
use futures::{StreamExt as _, stream};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// One request, as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) bytes: usize,
}

/// On a free port of 127.0.0.1 until it is dropped.
pub(crate) struct Web {
    pub(crate) port: u16,
    desk: Arc<Desk>,
    task: JoinHandle<()>,
}

struct Desk {
    seen: Mutex<Vec<Seen>>,
    /// Requests for `/never` that are open.
    open: watch::Sender<u32>,
}

impl Web {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let desk = Arc::new(Desk { seen: Mutex::default(), open: watch::Sender::new(0) });
        let routes = routes(Arc::clone(&desk));
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { port, desk, task }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.desk.seen.lock().unwrap().clone()
    }

    /// Waits until so many requests for `/never` are open.
    pub(crate) async fn open(&self, count: u32) {
        let mut open = self.desk.open.subscribe();
        let wait = open.wait_for(|open| *open == count);
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("in time").unwrap();
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What plain servers answer, and what unkind ones do.
fn routes(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/hello", any(|| async { "hello" }))
        .route("/to", any(redirect))
        .route("/bytes/{count}", any(bytes))
        .route("/parts/{count}", any(parts))
        .route("/header/{count}", any(header))
        .route("/never", any(never))
        .route("/stall", any(stall))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&desk), remember))
        .with_state(desk)
}

async fn remember(
    State(desk): State<Arc<Desk>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 << 20).await.unwrap_or_default();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    desk.seen.lock().unwrap().push(Seen {
        method,
        path: uri.to_string(),
        headers: headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        bytes: body.len(),
    });
    next.run(axum::extract::Request::from_parts(parts, Body::from(body))).await
}

async fn redirect(Query(query): Query<BTreeMap<String, String>>) -> Response {
    (StatusCode::FOUND, [(header::LOCATION, query["url"].clone())]).into_response()
}

/// So many bytes, announced.
async fn bytes(Path(count): Path<usize>) -> Vec<u8> {
    vec![b'x'; count]
}

/// So many bytes, in parts.
async fn parts(Path(count): Path<usize>) -> Body {
    let part = Bytes::from_static(&[b'x'; 1024]);
    let parts = stream::iter((0..count / 1024).map(move |_| Ok::<_, std::io::Error>(part.clone())));
    Body::from_stream(parts)
}

/// A header field of so many bytes.
async fn header(Path(count): Path<usize>) -> Response {
    ([("x-long", "x".repeat(count))], "").into_response()
}

/// Doesn't answer, and notices when nobody waits any more.
async fn never(State(desk): State<Arc<Desk>>) {
    struct Open(Arc<Desk>);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.open.send_modify(|open| *open -= 1);
        }
    }
    desk.open.send_modify(|open| *open += 1);
    let _open = Open(desk);
    std::future::pending::<()>().await;
}

/// Begins an answer and leaves it at that.
async fn stall() -> Body {
    let begun = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"begun"))]);
    Body::from_stream(begun.chain(stream::pending()))
}
