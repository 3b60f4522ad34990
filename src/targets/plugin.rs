//! Plugins as targets: from a digest to a component that can be called.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::{
    Report, Request, State, Target, Targets, elsewhere,
    opened::{Opened, Set},
};
use crate::{
    model::{
        attempt::Usage,
        outcome::{Failure, FailureKind},
        trigger::{Isolation, Trigger},
    },
    sandbox::{Batch, Call, Plugin, Sandbox, StateReader, TriggerView},
    secrets::Keyring,
    store::Control,
};

/// Longest text of an error that is looked through for secrets.
const TEXT_MAX: usize = 8 << 10;

/// Compiled plugin versions, each loaded once and kept while a trigger uses it.
pub struct Plugins(Arc<Loader>);

struct Loader {
    sandbox: Arc<Sandbox>,
    store: Arc<dyn Control>,
    opened: Opened,
    loaded: Mutex<HashMap<(String, String), Weak<Slot>>>,
}

/// A version that is loaded, or will be at its first use.
struct Slot {
    project: String,
    digest: Arc<str>,
    plugin: OnceCell<Arc<Plugin>>,
}

impl Plugins {
    /// Plugins of the projects in `store`, whose secrets stay sealed.
    #[must_use]
    pub fn new(sandbox: Arc<Sandbox>, store: Arc<dyn Control>) -> Arc<Self> {
        Self::with_keyring(sandbox, store, Arc::default())
    }

    /// The same, with what opens secrets.
    #[must_use]
    pub fn with_keyring(
        sandbox: Arc<Sandbox>,
        store: Arc<dyn Control>,
        keyring: Arc<Keyring>,
    ) -> Arc<Self> {
        let opened = Opened::new(Arc::clone(&sandbox), Arc::clone(&store), keyring);
        Arc::new(Self(Arc::new(Loader { sandbox, store, opened, loaded: Mutex::default() })))
    }
}

impl Loader {
    fn slot(&self, project: &str, digest: &str) -> Arc<Slot> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|_, slot| slot.strong_count() > 0);
        let place = (project.to_owned(), digest.to_owned());
        if let Some(slot) = loaded.get(&place).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(Slot {
            project: place.0.clone(),
            digest: digest.into(),
            plugin: OnceCell::new(),
        });
        loaded.insert(place, Arc::downgrade(&slot));
        slot
    }

    async fn load(&self, slot: &Slot) -> Result<Arc<Plugin>, String> {
        let load = async || {
            let bytes = self
                .store
                .plugin_bytes(&slot.project, &slot.digest)
                .await
                .map_err(|error| error.to_string())?
                .ok_or_else(|| format!("there is no version {}", slot.digest))?;
            self.sandbox.load_for(&slot.project, bytes).await.map_err(|error| error.to_string())
        };
        slot.plugin.get_or_try_init(load).await.map(Arc::clone)
    }
}

impl Targets for Plugins {
    fn target(&self, trigger: &Trigger, active: Option<&str>) -> Arc<dyn Target> {
        let spec = &trigger.spec;
        let Some(plugin) = spec.target.plugin() else { return elsewhere() };
        let digest = spec.target.digest().or(active);
        Arc::new(PluginTarget {
            loader: Arc::clone(&self.0),
            name: plugin.into(),
            slot: digest.map(|digest| self.0.slot(&trigger.project, digest)),
            view: Arc::new(View::new(trigger)),
            isolation: spec.isolation,
            batch: None,
        })
    }

    fn can_reach(&self, trigger: &Trigger) -> bool {
        trigger.spec.target.plugin().is_some()
    }
}

struct PluginTarget {
    loader: Arc<Loader>,
    name: Arc<str>,
    slot: Option<Arc<Slot>>,
    view: Arc<View>,
    isolation: Isolation,
    /// Set up at the first call, where this is a batch's own.
    batch: Option<OnceLock<Arc<Batch>>>,
}

/// A trigger as the sandbox sees it: with its secrets, which are opened when
/// they are first needed.
struct View {
    project: String,
    secrets: Vec<String>,
    sealed: TriggerView,
    open: OnceCell<Open>,
}

/// A view with its secrets, and what shares them.
struct Open {
    view: Arc<TriggerView>,
    _set: Option<Arc<Set>>,
}

impl View {
    fn new(trigger: &Trigger) -> Self {
        let sealed = TriggerView::new(&trigger.name, &trigger.spec);
        let secrets = trigger.spec.grants.secrets.clone();
        let open = secrets.is_empty().then(|| Open { view: Arc::new(sealed.clone()), _set: None });
        let open = OnceCell::new_with(open);
        Self { project: trigger.project.clone(), secrets, sealed, open }
    }

    async fn open(&self, loader: &Loader) -> Result<Arc<TriggerView>, String> {
        if let Some(open) = self.open.get() {
            return Ok(Arc::clone(&open.view));
        }
        let open = async || {
            let (secrets, set) = loader.opened.open(&self.project, &self.secrets).await?;
            let view = Arc::new(TriggerView { secrets, ..self.sealed.clone() });
            Ok(Open { view, _set: Some(set) })
        };
        self.open.get_or_try_init(open).await.map(|open| Arc::clone(&open.view))
    }
}

impl PluginTarget {
    /// What a call needs; what is missing is said by its name.
    async fn ready(&self) -> Result<(Arc<Plugin>, Arc<TriggerView>), String> {
        let plugin = self.plugin().await.map_err(|why| format!("plugin `{}`: {why}", self.name))?;
        Ok((plugin, self.view.open(&self.loader).await?))
    }

    async fn plugin(&self) -> Result<Arc<Plugin>, String> {
        match &self.slot {
            // Past the first call, with no more than a look.
            Some(slot) => match slot.plugin.get() {
                Some(plugin) => Ok(Arc::clone(plugin)),
                None => self.loader.load(slot).await,
            },
            None => Err("there is no such plugin".into()),
        }
    }
}

#[async_trait]
impl Target for PluginTarget {
    async fn deliver(&self, request: Request) -> Report {
        let digest = self.slot.as_ref().map(|slot| Arc::clone(&slot.digest));
        let (plugin, view) = match self.ready().await {
            Ok(ready) => ready,
            Err(why) => {
                return Report {
                    result: Err(Failure::new(FailureKind::HostFault, why)),
                    usage: Usage::default(),
                    logs: Vec::new(),
                    digest,
                };
            }
        };
        let call = Call {
            event: request.event,
            trigger: view,
            attempt: request.attempt,
            max_attempts: request.max_attempts,
            deadline: request.deadline,
            idempotency_key: request.idempotency_key,
            now_ms: request.now,
            state: Arc::new(Reader(request.state)),
        };
        let report = match &self.batch {
            Some(batch) => batch.get_or_init(|| Batch::new(&plugin)).call(call).await,
            None => plugin.call(call).await,
        };
        Report { result: report.result, usage: report.usage, logs: report.logs, digest }
    }

    async fn warm(&self) {
        if let Err(error) = self.ready().await {
            let trigger = &*self.view.sealed.name;
            tracing::warn!(trigger, error, "a trigger's plugin can't be called");
        }
    }

    fn redact(&self, text: String) -> String {
        match self.view.open.get() {
            Some(open) => open.view.secrets.storable(&text, TEXT_MAX),
            None => text,
        }
    }

    fn batch(&self) -> Option<Arc<dyn Target>> {
        (self.isolation == Isolation::Batch).then(|| {
            Arc::new(Self {
                loader: Arc::clone(&self.loader),
                name: Arc::clone(&self.name),
                slot: self.slot.clone(),
                view: Arc::clone(&self.view),
                isolation: self.isolation,
                batch: Some(OnceLock::new()),
            }) as _
        })
    }
}

/// The router's state, as the sandbox reads it.
pub(crate) struct Reader(pub(crate) Arc<dyn State>);

#[async_trait]
impl StateReader for Reader {
    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        self.0.get(key).await
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, String> {
        self.0.keys(prefix, after, limit).await
    }
}
