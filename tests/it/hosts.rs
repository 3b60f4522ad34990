//! Host processes: the built program, run as its user would.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

/// The admin key of every test host.
pub(crate) const KEY: &str = "or_test_0123456789abcdef0123456789abcdef";

/// A running `outrigger serve`; killed when it is dropped.
pub(crate) struct Host {
    child: Child,
    url: String,
    client: reqwest::Client,
}

impl Host {
    /// Starts a host on a database.
    pub(crate) async fn start(database: &str) -> Self {
        Self::with(database, &[]).await
    }

    /// Starts a host with further settings, as environment variables.
    pub(crate) async fn with(database: &str, settings: &[(&str, &str)]) -> Self {
        Self::logging(database, settings, Stdio::inherit()).await
    }

    /// The same, with its log elsewhere.
    pub(crate) async fn logging(database: &str, settings: &[(&str, &str)], log: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .arg("serve")
            .env("OUTRIGGER_DATABASE_URL", database)
            .env("OUTRIGGER_LISTEN", "127.0.0.1:0")
            .env("OUTRIGGER_ADMIN_KEY", KEY)
            .env("OUTRIGGER_CACHE", cache())
            .envs(settings.iter().copied())
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let url = tokio::task::spawn_blocking(move || {
            out.lines().map_while(Result::ok).find_map(|line| {
                let (_, rest) = line.split_once("listens on ")?;
                Some(rest.split([',', ' ']).next()?.to_owned())
            })
        });
        let url = url.await.unwrap().expect("the host says where it listens");
        let client = client();
        Self { child, url, client }
    }

    /// A request with the admin key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(KEY)
    }

    /// Sends a request and answers status and JSON body.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Sends a request that must succeed.
    pub(crate) async fn ok(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.send(method.clone(), path, body).await;
        assert!(status.is_success(), "{method} {path}: {status} {answer}");
        answer
    }

    /// `GET`, which must succeed.
    pub(crate) async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, None).await
    }

    /// Creates a project and puts the probe in it.
    pub(crate) async fn project(&self, name: &str) {
        self.ok(Method::PUT, &format!("/v1/projects/{name}"), Some(json!({}))).await;
        self.push(name, "probe", crate::guests::probe()).await;
    }

    /// Uploads a plugin that must be accepted.
    pub(crate) async fn push(&self, project: &str, name: &str, component: Vec<u8>) {
        let (status, answer) = self.upload(project, name, component).await;
        assert!(status.is_success(), "{status} {answer}");
    }

    /// Uploads a plugin; answers status and JSON body.
    pub(crate) async fn upload(
        &self,
        project: &str,
        name: &str,
        component: Vec<u8>,
    ) -> (StatusCode, Value) {
        let url = format!("{}/v1/projects/{project}/plugins/{name}?activate=true", self.url);
        let request = self.client.put(url).timeout(Duration::from_mins(10)).body(component);
        let response = request.bearer_auth(KEY).send().await.unwrap();
        let status = response.status();
        (status, response.json().await.unwrap())
    }

    /// Puts a trigger.
    pub(crate) async fn trigger(&self, project: &str, name: &str, document: Value) {
        let path = format!("/v1/projects/{project}/triggers/{name}");
        self.ok(Method::PUT, &path, Some(document)).await;
    }

    /// Counts of a project.
    pub(crate) async fn status(&self, project: &str) -> Value {
        self.get(&format!("/v1/projects/{project}/status")).await
    }

    /// Kills the process, as a crash would.
    pub(crate) fn kill(&mut self) {
        // Whoever is gone already needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end and answers its exit code.
    pub(crate) async fn exit_code(&mut self, at_most: Duration) -> Option<i32> {
        let end = Instant::now() + at_most;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the host still runs after {at_most:?}");
    }

    /// Sends the process a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").arg(format!("-{name}")).arg(pid).status().unwrap();
        assert!(sent.success(), "kill -{name}: {sent}");
    }

    /// Whether the process runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// One of its numbers; the sum, where it has several under that name.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").await;
        text.as_str()
            .unwrap()
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|rest| rest.starts_with([' ', '{']))
            .map(|rest| rest.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// Whether the host says that it is ready, or why it isn't.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        let (status, problem) = self.send(Method::GET, "/readyz", None).await;
        if status == StatusCode::OK {
            return Ok(());
        }
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
        Err(problem["detail"].as_str().unwrap().to_owned())
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where all hosts of the tests that have no cache of their own keep what they
/// compile, from run to run.
pub(crate) fn cache() -> &'static str {
    concat!(env!("CARGO_TARGET_TMPDIR"), "/cache")
}

/// A client; the provider of cryptography is installed once.
pub(crate) fn client() -> reqwest::Client {
    // A second time in one process is refused, and needn't be done.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(Duration::from_mins(1)).build().unwrap()
}

/// Waits until something holds, and says what was there when it never did.
pub(crate) async fn eventually<T: std::fmt::Debug>(
    what: &str,
    at_most: Duration,
    mut look: impl AsyncFnMut() -> Result<(), T>,
) {
    let end = Instant::now() + at_most;
    loop {
        match look().await {
            Ok(()) => return,
            Err(seen) if Instant::now() > end => panic!("{what}: after {at_most:?} {seen:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
