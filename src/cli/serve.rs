//! `outrigger serve`: router and HTTP interface in one process.

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Context, keys, output::Output};
use crate::{
    api::{self, Api},
    archive::Archive,
    config::{self, Config},
    metrics::Metrics,
    router::Router,
    sandbox::Sandbox,
    store::{self, HostId, Role, Store},
    targets::Plugins,
};

#[derive(Debug, Args)]
#[command(after_help = settings())]
pub(super) struct Serve {
    /// Work for these projects alone, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    projects: Option<Vec<String>>,
}

/// What the key is called that a host makes for itself.
const GENERATED: &str = "admin (generated)";

fn settings() -> String {
    format!("Settings (variable, key of outrigger.toml):\n{}", config::listing())
}

impl Serve {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut config = context.config()?;
        if let Some(projects) = self.projects {
            config.router.projects = Some(projects);
            config.validate()?;
        }
        Context::log(&config)?;
        // An address that is taken is found out before anything is touched.
        let listener = TcpListener::bind(config.server.listen)
            .await
            .with_context(|| format!("server.listen: {}", config.server.listen))?;
        let address = listener.local_addr()?;
        if let Some(folder) = &config.events.archive {
            let archive = Archive::new(folder, HostId(Uuid::new_v4()));
            archive.check().with_context(|| format!("events.archive: {}", folder.display()))?;
        }
        let url = &config.database.url;
        let store = store::connect(url.expose(), &config.store()).await?;
        store.join()?;
        store.migrate().await.with_context(|| url.to_string())?;
        let key = admin_key(&config, &*store).await?;
        let stop = signals()?;
        let host = Host::start(&config, store, listener)?;
        greet(context.out, &config, address, key);
        host.run(stop).await?;
        Ok(ExitCode::SUCCESS)
    }
}

fn greet(out: Output, config: &Config, address: std::net::SocketAddr, key: Key) {
    let (version, database) = (env!("CARGO_PKG_VERSION"), &config.database.url);
    let key = match key {
        Key::Configured => String::new(),
        Key::New(key) => format!(
            "\nThere was no admin key, so one was made. It is shown only now:\n\n    {key}\n\n\
             Give it to commands as OUTRIGGER_KEY."
        ),
        Key::Stored => "\nNo admin key is configured; those made earlier work. If they are lost, \
             `outrigger keys create --local` makes another."
            .to_owned(),
    };
    let text = format!("outrigger {version} listens on http://{address}, database {database}{key}");
    // Nobody may be reading; the host runs all the same.
    out.try_line(text);
}

/// Where the admin's key comes from.
enum Key {
    Configured,
    New(String),
    Stored,
}

/// Makes an admin key if there is no other way in. Its id is always the same,
/// so that of several hosts that start at once only one makes it.
async fn admin_key(config: &Config, store: &dyn Store) -> Result<Key> {
    if config.server.admin_key.is_some() {
        return Ok(Key::Configured);
    }
    if has_admin(store).await? {
        return Ok(Key::Stored);
    }
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, GENERATED.as_bytes());
    match keys::make_admin(store, id, GENERATED).await {
        Ok((_, key)) => Ok(Key::New(key)),
        Err(_) if has_admin(store).await? => Ok(Key::Stored),
        Err(error) => Err(error),
    }
}

/// Whether a key is stored that may do everything, for ever.
async fn has_admin(store: &dyn Store) -> Result<bool> {
    let keys = store.keys().await?;
    Ok(keys
        .iter()
        .any(|key| key.role == Role::Admin && key.project.is_none() && key.expires_at.is_none()))
}

/// Everything that runs.
struct Host {
    router: Router,
    grace: Duration,
    api: Arc<Api>,
    listener: TcpListener,
}

impl Host {
    fn start(config: &Config, store: Arc<dyn Store>, listener: TcpListener) -> Result<Self> {
        let sandbox = Sandbox::new(config.sandbox())?;
        let metrics = Arc::new(Metrics::new());
        let keyring = Arc::new(config.keyring()?);
        let plugins =
            Plugins::with_keyring(Arc::clone(&sandbox), store.clone(), Arc::clone(&keyring));
        let router =
            Router::start(Arc::clone(&store), plugins, Arc::clone(&metrics), config.router());
        let pulse = router.pulse();
        let settings = api::Settings { keyring, ..config.api() };
        let api = Arc::new(Api { store, sandbox, pulse, metrics, settings });
        Ok(Self { router, grace: config.router.grace.get(), api, listener })
    }

    /// Runs until `stop`: then nothing new is begun, and what is under way may
    /// end within the grace.
    async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let stopping = CancellationToken::new();
        let asked = stopping.clone();
        let served = api::serve(self.api, self.listener, async move { asked.cancelled().await });
        let mut served = std::pin::pin!(served);
        tokio::select! {
            () = stop => {}
            failed = &mut served => {
                self.router.stop(self.grace).await;
                return failed.context("the HTTP interface ended");
            }
        }
        tracing::info!(grace_seconds = self.grace.as_secs_f64(), "stopping");
        stopping.cancel();
        let (served, ()) = tokio::join!(served, self.router.stop(self.grace));
        served.context("the HTTP interface ended")
    }
}

/// SIGXFSZ, which has another number on MIPS alone.
#[cfg(all(unix, not(any(target_arch = "mips", target_arch = "mips64"))))]
const FILE_SIZE_SIGNAL: i32 = 25;
#[cfg(all(unix, any(target_arch = "mips", target_arch = "mips64")))]
const FILE_SIZE_SIGNAL: i32 = 31;

/// Resolves at the first signal to stop; a second one ends the process at once.
#[cfg(unix)]
fn signals() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut next = async move || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    // A file that reaches a limit on its size would end the process: with the
    // signal caught, the write fails as on a full disk.
    drop(signal(SignalKind::from_raw(FILE_SIZE_SIGNAL))?);
    let first = CancellationToken::new();
    let told = first.clone();
    tokio::spawn(async move {
        next().await;
        told.cancel();
        next().await;
        std::process::exit(130);
    });
    Ok(async move { first.cancelled().await })
}

/// Resolves at the first Ctrl-C; a second one ends the process at once.
#[cfg(not(unix))]
fn signals() -> Result<impl Future<Output = ()>> {
    let first = CancellationToken::new();
    let told = first.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            told.cancel();
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
    Ok(async move { first.cancelled().await })
}
