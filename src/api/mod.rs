//! The HTTP interface: JSON over the store, the sandbox and the router's pulse.
//!
//! One file per resource, each with its `routes`. A call passes `body` (what is
//! left unread is drained), `auth` (its key), its query's check (`routes`) and
//! ends in a handler; every error is a problem document (`problem`).

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Method, Uri},
    middleware,
    response::{IntoResponse as _, Response},
    serve::ListenerExt as _,
};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

pub use auth::{KeyHash, NoRandomness, generate_key};

use self::{
    problem::{Kind, Problem},
    routes::Routes,
};
use crate::{metrics::Metrics, model::units::Bytes, router::Pulse, sandbox::Sandbox, store::Store};

mod auth;
mod body;
mod dead_letters;
mod deliveries;
mod events;
mod extract;
mod health;
mod keys;
mod openapi;
mod operations;
mod page;
mod plugins;
mod problem;
mod projects;
mod routes;
mod status;
mod triggers;
mod unsupported;

/// What the interface works with.
pub struct Api {
    /// Everything that is kept.
    pub store: Arc<dyn Store>,
    /// Checks and compiles uploads.
    pub sandbox: Arc<Sandbox>,
    /// How this host's router fares, and when it settles an event.
    pub pulse: Arc<Pulse>,
    /// This host's counters.
    pub metrics: Arc<Metrics>,
    /// Limits, and who may call.
    pub settings: Settings,
}

/// Limits of the interface, and who may call it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The configured admin key's hash; stored keys work beside it.
    pub admin_key: Option<KeyHash>,
    /// Largest JSON body.
    pub body_max: Bytes,
    /// Largest component that can be uploaded.
    pub component_max: Bytes,
    /// Largest payload of one event.
    pub payload_max: Bytes,
    /// For how long the router may fail before this host says that it isn't ready.
    pub stall_after: Duration,
    /// How long a shutdown waits for calls under way.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            admin_key: None,
            body_max: Bytes::mib(8),
            component_max: Bytes::mib(32),
            payload_max: Bytes::mib(1),
            stall_after: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

/// What the handlers share.
struct App {
    api: Arc<Api>,
    /// The last counts, for a second.
    status: status::Cache,
    /// Where events of requests go.
    recorder: events::Recorder,
    /// There is bulk work to do.
    bulk: Notify,
    /// The host is about to stop: nobody is kept waiting any more.
    stopping: CancellationToken,
}

type Shared = Arc<App>;

impl App {
    fn new(api: Arc<Api>) -> Shared {
        Arc::new(Self {
            recorder: events::Recorder::new(Arc::clone(&api) as _),
            api,
            status: status::Cache::default(),
            bulk: Notify::new(),
            stopping: CancellationToken::new(),
        })
    }
}

/// The interface as a service. Bulk work that is asked of it is stored, and
/// carried out by [`serve`] or by any host's router.
pub fn router(api: Arc<Api>) -> Router {
    service(App::new(api))
}

/// Serves the interface until `shutdown` resolves and calls under way have
/// ended, or have used up their grace.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    api: Arc<Api>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let grace = api.settings.grace;
    let app = App::new(api);
    let stopping = app.stopping.clone();
    // Small answers go out at once.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection has no TCP_NODELAY");
        }
    });
    let server = axum::serve(listener, service(Arc::clone(&app))).with_graceful_shutdown({
        let stopping = stopping.clone();
        async move {
            shutdown.await;
            stopping.cancel();
        }
    });
    let too_late = async {
        stopping.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    let work = operations::work(&app);
    let all = async {
        let (end, ()) = tokio::join!(server.into_future(), work);
        // Those whose callers have gone are recorded too.
        app.recorder.finish().await;
        end
    };
    tokio::select! {
        end = all => end,
        () = too_late => {
            tracing::warn!(grace_seconds = grace.as_secs_f64(), "calls were cut off");
            Ok(())
        }
    }
}

fn service(app: Shared) -> Router {
    let keyed = all_routes()
        .router()
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), auth::check));
    let open = health::open_routes().router().method_not_allowed_fallback(method_not_allowed);
    keyed
        .merge(open)
        .fallback(unknown_path)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(body::drain))
        .with_state(app)
}

/// Every route that needs a key.
fn all_routes() -> Routes {
    [
        projects::routes,
        keys::routes,
        events::routes,
        plugins::routes,
        triggers::routes,
        deliveries::routes,
        dead_letters::routes,
        operations::routes,
        status::routes,
        health::routes,
        openapi::routes,
        unsupported::routes,
    ]
    .into_iter()
    .fold(Routes::default(), |routes, add| add(routes))
}

async fn unknown_path(uri: Uri) -> Problem {
    let path = uri.path();
    let detail = format!("nothing is at `{path}`; `/openapi.json` lists the calls");
    Problem::new(Kind::UnknownPath, detail)
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let path = uri.path();
    Problem::new(Kind::MethodNotAllowed, format!("`{path}` can't be asked to {method}"))
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let panic = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    tracing::error!(panic, "a request panicked");
    Problem::new(Kind::Internal, "the host's log says more").into_response()
}

/// Does several steps to their end, even if whoever asked goes away.
async fn to_the_end(
    steps: impl Future<Output = problem::Answer> + Send + 'static,
) -> problem::Answer {
    match tokio::spawn(steps).await {
        Ok(answer) => answer,
        Err(error) => Err(Problem::internal(&error)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use super::*;

    async fn panics() -> Response {
        panic!("as it was told")
    }

    #[tokio::test]
    async fn a_panic_is_answered_and_ends_nothing_else() {
        let service = Router::new()
            .route("/", axum::routing::get(panics))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(middleware::from_fn(body::drain));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(axum::serve(listener, service).into_future());
        for _ in 0..2 {
            let mut stream = TcpStream::connect(address).await.expect("a connection");
            let request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await.expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
            assert!(answer.contains("application/problem+json"), "{answer}");
            assert!(answer.contains("urn:outrigger:problem:internal"), "{answer}");
            assert!(!answer.contains("told"), "{answer}");
        }
    }
}
