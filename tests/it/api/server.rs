//! An interface on a store of its own, with no router behind it.

use std::sync::Arc;

use outrigger::{
    api::{Api, KeyHash, Settings},
    metrics::Metrics,
    model::units::Bytes,
    router::Pulse,
    sandbox::{self, Sandbox},
    store::{Options, Store, connect},
};
use reqwest::{Method, RequestBuilder, StatusCode, header::HeaderMap};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{database::Database, hosts::client};

/// The key that may do everything.
pub(super) const ADMIN: &str = "or_the_admin_of_this_test";

/// A served interface; it ends when it is dropped.
pub(super) struct Server {
    pub(super) url: String,
    pub(super) store: Arc<dyn Store>,
    pub(super) client: reqwest::Client,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
    _database: Database,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl Server {
    /// Serves on a free port. JSON bodies may have 256 KiB, payloads 64 KiB,
    /// components 8 MiB.
    pub(super) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// The same with other settings.
    pub(super) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let database = Database::sqlite();
        let store = connect(&database.url, &Options::default()).await.unwrap();
        store.migrate().await.unwrap();
        let mut settings = Settings {
            admin_key: Some(KeyHash::of(ADMIN)),
            body_max: Bytes::kib(256),
            payload_max: Bytes::kib(64),
            component_max: Bytes::mib(8),
            ..Settings::default()
        };
        change(&mut settings);
        let api = Api {
            store: Arc::clone(&store),
            sandbox: Sandbox::new(sandbox::Settings { slots: 4, ..Default::default() }).unwrap(),
            pulse: Arc::new(Pulse::default()),
            metrics: Arc::new(Metrics::new()),
            settings,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(outrigger::api::serve(Arc::new(api), listener, stopped));
        Self { url, store, client: client(), stop, task, _database: database }
    }

    /// The same with a project.
    pub(super) async fn with_project(name: &str) -> Self {
        let server = Self::start().await;
        assert!(server.store.put_project(name).await.unwrap());
        server
    }

    /// A request with the admin's key.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(ADMIN)
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Answer {
        answer(self.request(Method::DELETE, path)).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Answer {
        answer(self.request(Method::POST, path).json(&body)).await
    }

    pub(super) async fn put(&self, path: &str, body: Value) -> Answer {
        answer(self.request(Method::PUT, path).json(&body)).await
    }

    /// Uploads a component.
    pub(super) async fn push(&self, path: &str, bytes: Vec<u8>) -> Answer {
        answer(self.request(Method::PUT, path).body(bytes)).await
    }

    /// Stops it and waits for its end.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        (&mut self.task).await.unwrap().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Sends a request. An error must be a problem document.
pub(super) async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    let answer = Answer { status, headers, body };
    if status.is_client_error() || status.is_server_error() {
        answer.assert_problem();
    }
    answer
}

impl Answer {
    /// A header as text.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Which problem it is.
    pub(super) fn problem(&self) -> &str {
        self.body["type"].as_str().unwrap_or("none").trim_start_matches("urn:outrigger:problem:")
    }

    /// Fails unless the status is this one.
    #[track_caller]
    pub(super) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    #[track_caller]
    fn assert_problem(&self) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], self.status.as_u16(), "{self:?}");
        for member in ["type", "title", "detail"] {
            assert!(self.body[member].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        }
    }
}
