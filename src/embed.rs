//! The router inside an application, with closures as targets.
//!
//! No server, no plugins, no second process: the application declares its
//! triggers in code, records events in its own transactions, and the closures
//! are called once they have committed. On PostgreSQL, on an SQLite file, or on
//! `sqlite::memory:` in tests.
//!
//! ```
//! use std::{error::Error, time::Duration};
//!
//! use outrigger::{
//!     embed::{Builder, Emit, Failure, On},
//!     model::event::NewEvent,
//!     outbox,
//! };
//! use tokio::sync::mpsc;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn Error>> {
//! let (sent, mut mails) = mpsc::unbounded_channel();
//! let router = Builder::new("sqlite::memory:")
//!     .project("shop")
//!     .trigger("ship", On::event("order.*").resource("order"), |event, ctx| async move {
//!         let order: serde_json::Value = event.decode()?;
//!         if order["total"] == 0 {
//!             return Err(Failure::reject("nothing to ship"));
//!         }
//!         // Both commit with the acknowledgement of the event, or not at all.
//!         ctx.state().increment("shipped", 1).await?;
//!         ctx.emit(Emit::new("mail", &event.aggregate_id, "mail.due", &event.payload))?;
//!         Ok(())
//!     })
//!     .trigger("mail", On::event("mail.due"), move |event, ctx| {
//!         let sent = sent.clone();
//!         async move {
//!             // The key is the same at every attempt.
//!             sent.send((event.aggregate_id.clone(), ctx.idempotency_key().to_owned()))?;
//!             Ok(())
//!         }
//!     })
//!     .start()
//!     .await?;
//!
//! let database = router.sqlite().expect("it is SQLite");
//! let mut tx = database.begin().await?;
//! sqlx::query("CREATE TABLE orders (id, total)").execute(&mut *tx).await?;
//! sqlx::query("INSERT INTO orders VALUES ('o-1', 120)").execute(&mut *tx).await?;
//! let placed = NewEvent::new("shop", "order", "o-1", "order.placed", r#"{"total": 120}"#);
//! outbox::record(&mut tx, &placed).await?;
//! tx.commit().await?;
//!
//! let (order, _key) = mails.recv().await.expect("the mail is sent");
//! assert_eq!(order, "o-1");
//! router.stop(Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! What holds for plugins holds for closures: events are delivered at least
//! once, in the order of their aggregate, and what a call asks of its
//! [`Context`] is done exactly once. A closure that returns an error, panics
//! or overruns its deadline has used up an attempt, and so goes on without
//! harm to others; one that blocks its thread holds up whatever shares the
//! runtime. A panic is caught where panics unwind, which is the default.
//!
//! # Beside other hosts
//!
//! Triggers are stored like any other, so that none is missed, and each event
//! is matched by whichever host claims it. But only a process with the code in
//! it can deliver to a closure. So a host that finds a trigger that it can't
//! deliver to *stands by*: it claims nothing, gives back what it has not begun,
//! and leaves its lanes to hosts that can. Hosts of one application share the
//! work; in a rolling update those that lack a new trigger leave it to those
//! that have it. With no such host at all, events wait.
//!
//! An embedded router delivers to plugins as well, and starts the sandbox when
//! it first sees one. Still, `outrigger serve` on the same tables only stands
//! by, and its plugins wait while the application is down. Where that isn't
//! wanted, give the application tables of its own
//! ([`Options::prefix`](crate::store::Options::prefix)).
//!
//! A trigger that is no longer in the code stays stored, and makes hosts stand
//! by: name it in [`Builder::retire`], or pause it. Two versions of an
//! application that declare one trigger differently agree on the one that
//! started last.

use std::{collections::HashMap, future::Future, sync::Arc};

pub use context::{Context, Emit, State};
pub use failure::Failure;
pub use on::On;
pub use router::{RecordError, Router};

use uuid::Uuid;

use self::target::{Closures, Handle};
use crate::{
    archive::Archive,
    metrics::Metrics,
    model::{
        event::Event,
        names::{self, Invalid},
        trigger::{Target, Trigger},
    },
    router::{Router as Running, Settings},
    sandbox,
    secrets::Keyring,
    store::{HostId, Options, Store, StoreError},
};

mod context;
mod failure;
mod on;
mod pool;
mod router;
mod target;

/// A router that is to run inside an application.
#[must_use = "nothing runs before `start`"]
pub struct Builder {
    url: String,
    project: String,
    database: Options,
    settings: Settings,
    sandbox: sandbox::Settings,
    keyring: Arc<Keyring>,
    triggers: Vec<(String, On, Handle)>,
    retired: Vec<String>,
}

/// Why a router doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting can't be used.
    #[error("{0}")]
    Setting(#[from] Invalid),
    /// A trigger can't be declared like this.
    #[error("the trigger `{trigger}`: {why}")]
    Trigger {
        /// Its name.
        trigger: String,
        /// What is wrong with it.
        why: String,
    },
    /// The database failed, or another process is the host of the file.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Builder {
    /// A router on the database of this URL: `postgres://…`, `sqlite:path`, or
    /// `sqlite::memory:` for one that goes with the router.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            project: "default".into(),
            database: Options::default(),
            settings: Settings::default(),
            sandbox: sandbox::Settings::default(),
            keyring: Arc::default(),
            triggers: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// The project that the triggers belong to, `default` if none is said; it
    /// is created if it is missing.
    pub fn project(mut self, name: impl Into<String>) -> Self {
        self.project = name.into();
        self
    }

    /// Declares a trigger: which events, and what to do with each.
    ///
    /// Its name stands for its state, its deliveries and its place in the
    /// order of events: keep it when the code changes.
    pub fn trigger<F, R>(mut self, name: impl Into<String>, on: On, handle: F) -> Self
    where
        F: Fn(Arc<Event>, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let handle: Handle = Arc::new(move |event, context| Box::pin(handle(event, context)));
        self.triggers.push((name.into(), on, handle));
        self
    }

    /// Deletes a trigger that an earlier version of the application declared,
    /// and its state. Its open deliveries become dead letters.
    pub fn retire(mut self, name: impl Into<String>) -> Self {
        self.retired.push(name.into());
        self
    }

    /// How to use the database: table prefix, connections, lanes.
    pub fn database(mut self, options: Options) -> Self {
        self.database = options;
        self
    }

    /// How the router works: batches, lease, calls at once, retention.
    pub fn router(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// What one call may ask for, of closures too, and what plugins may use.
    pub fn sandbox(mut self, settings: sandbox::Settings) -> Self {
        self.sandbox = settings;
        self
    }

    /// What opens the secrets that triggers of plugins are granted.
    pub fn keyring(mut self, keyring: Keyring) -> Self {
        self.keyring = Arc::new(keyring);
        self
    }

    /// Opens the database, brings its schema up, stores the triggers, and
    /// starts on the current runtime.
    ///
    /// # Errors
    /// When a setting or a trigger can't be used, the database fails, or
    /// another process is the host of the SQLite file.
    pub async fn start(self) -> Result<Router, StartError> {
        self.check()?;
        if let Some(folder) = &self.settings.archive {
            let archive = Archive::new(folder, HostId(Uuid::new_v4()));
            let wrong = |error| Invalid::new("archive", format!("{}: {error}", folder.display()));
            archive.check().map_err(wrong)?;
        }
        let (store, pool) = pool::open(&self.url, &self.database).await?;
        store.join()?;
        store.migrate().await?;
        self.declare(&*store).await?;
        let payload_max = self.sandbox.payload_max;
        let metrics = Arc::new(Metrics::new());
        let handles: HashMap<_, _> =
            self.triggers.into_iter().map(|(name, _, handle)| (name, handle)).collect();
        let closures =
            Closures::new(self.project, handles, self.sandbox, self.keyring, store.clone());
        let running =
            Running::start(store.clone(), Arc::new(closures), metrics.clone(), self.settings);
        Ok(Router::new(running, store, pool, metrics, payload_max))
    }

    fn check(&self) -> Result<(), StartError> {
        names::name("project", &self.project)?;
        self.settings.validate()?;
        self.sandbox.validate()?;
        for (index, (name, on, _)) in self.triggers.iter().enumerate() {
            let wrong = |why: String| StartError::Trigger { trigger: name.clone(), why };
            names::name("the name", name).map_err(|error| wrong(error.to_string()))?;
            on.spec().map_err(wrong)?;
            if self.triggers[..index].iter().any(|(other, ..)| other == name) {
                return Err(wrong("is declared twice".into()));
            }
            if self.retired.contains(name) {
                return Err(wrong("is declared and retired".into()));
            }
        }
        Ok(())
    }

    /// Stores what is new or has changed. What breaks off here is done again
    /// at the next start.
    async fn declare(&self, store: &dyn Store) -> Result<(), StartError> {
        let project = &self.project;
        store.put_project(project).await?;
        for (name, on, _) in &self.triggers {
            let wrong = |why: String| StartError::Trigger { trigger: name.clone(), why };
            let spec = on.spec().map_err(wrong)?;
            let there = store.trigger(project, name).await?;
            if let Some(plugin) = there.as_ref().and_then(|there| there.spec.target.plugin()) {
                let why = format!("is there already, for the plugin `{plugin}`; call it otherwise");
                return Err(wrong(why));
            }
            if there.is_none_or(|there| there.spec != *spec) {
                store.put_trigger(project, name, spec).await?;
            }
        }
        for name in &self.retired {
            let there = store.trigger(project, name).await?;
            let embedded = |there: &Trigger| there.spec.target == Target::Embedded;
            if there.as_ref().is_none_or(embedded) {
                store.delete_trigger(project, name).await?;
                store.end_trigger(project, name, true).await?;
            }
        }
        Ok(())
    }
}
