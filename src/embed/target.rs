//! Closures as targets, and plugins beside them.

use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Instant,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::{task::JoinError, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::{Context, Failure, context::Inner};
use crate::{
    model::{
        attempt::Usage,
        event::Event,
        outcome::{Failure as Failed, FailureKind},
        trigger::{Target as Delivers, Trigger},
    },
    sandbox::{Asked, Call, Sandbox, Settings, TriggerView},
    secrets::Keyring,
    store::Control,
    targets::{Away, Plugins, Reader, Report, Request, Target, Targets, elsewhere},
};

/// A closure, whatever its type.
pub(super) type Handle =
    Arc<dyn Fn(Arc<Event>, Context) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// The closures of one project, and the plugins of all.
pub(super) struct Closures {
    project: String,
    handles: HashMap<String, Handle>,
    settings: Arc<Settings>,
    keyring: Arc<Keyring>,
    store: Arc<dyn Control>,
    /// Made when the first trigger of a plugin is seen.
    plugins: OnceLock<Result<Arc<Plugins>, String>>,
}

impl Closures {
    pub(super) fn new(
        project: String,
        handles: HashMap<String, Handle>,
        settings: Settings,
        keyring: Arc<Keyring>,
        store: Arc<dyn Control>,
    ) -> Self {
        let (settings, plugins) = (Arc::new(settings), OnceLock::new());
        Self { project, handles, settings, keyring, store, plugins }
    }

    fn handle(&self, trigger: &Trigger) -> Option<&Handle> {
        let ours = trigger.project == self.project && trigger.spec.target == Delivers::Embedded;
        self.handles.get(&trigger.name).filter(|_| ours)
    }

    fn plugins(&self) -> &Result<Arc<Plugins>, String> {
        self.plugins.get_or_init(|| {
            let sandbox = Sandbox::new(Settings::clone(&self.settings));
            let sandbox = sandbox.map_err(|error| format!("the sandbox can't start: {error}"))?;
            let keyring = Arc::clone(&self.keyring);
            Ok(Plugins::with_keyring(sandbox, Arc::clone(&self.store), keyring))
        })
    }
}

impl Targets for Closures {
    fn target(&self, trigger: &Trigger, active: Option<&str>) -> Arc<dyn Target> {
        if trigger.spec.target.plugin().is_some() {
            return match self.plugins() {
                Ok(plugins) => plugins.target(trigger, active),
                Err(why) => Arc::new(Away(why.clone())),
            };
        }
        match self.handle(trigger) {
            Some(handle) => Arc::new(Closure {
                handle: Arc::clone(handle),
                view: Arc::new(TriggerView::new(&trigger.name, &trigger.spec)),
                settings: Arc::clone(&self.settings),
            }),
            None => elsewhere(),
        }
    }

    fn can_reach(&self, trigger: &Trigger) -> bool {
        trigger.spec.target.plugin().is_some() || self.handle(trigger).is_some()
    }
}

struct Closure {
    handle: Handle,
    view: Arc<TriggerView>,
    settings: Arc<Settings>,
}

impl Closure {
    /// Runs the closure in a task of its own, so that neither a panic nor a
    /// destructor's reaches the host. It has ended when this returns, and soon
    /// after this is dropped.
    async fn run(&self, request: Request, asked: Arc<Asked>) -> Result<(), Failed> {
        let (handle, event, deadline) = (Arc::clone(&self.handle), request.event, request.deadline);
        let context = Context::new(Inner {
            trigger: self.view.name.clone(),
            attempt: request.attempt,
            max_attempts: request.max_attempts,
            idempotency_key: request.idempotency_key,
            now: request.now,
            asked,
        });
        let call = async move { handle(event, context).await }.in_current_span();
        let mut task = AbortOnDropHandle::new(tokio::spawn(call));
        let ended = if let Ok(ended) = timeout(deadline, &mut task).await {
            ended
        } else {
            task.abort();
            // Until it has ended, the next attempt could meet it.
            (&mut task).await
        };
        match ended {
            Ok(result) => result.map_err(Failure::into_inner),
            Err(error) => Err(explain(error, deadline)),
        }
    }
}

fn explain(error: JoinError, deadline: std::time::Duration) -> Failed {
    let failure = if let Ok(panic) = error.try_into_panic() {
        Failure::new(FailureKind::Panic, &format!("panicked: {}", message(&*panic)))
    } else {
        let why = format!("the closure was not done after {deadline:?}");
        Failure::new(FailureKind::Deadline, &why)
    };
    failure.into_inner()
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no text)")
}

#[async_trait]
impl Target for Closure {
    async fn deliver(&self, request: Request) -> Report {
        let began = Instant::now();
        let call = Call {
            event: Arc::clone(&request.event),
            trigger: Arc::clone(&self.view),
            attempt: request.attempt,
            max_attempts: request.max_attempts,
            deadline: request.deadline,
            idempotency_key: request.idempotency_key.clone(),
            now_ms: request.now,
            state: Arc::new(Reader(Arc::clone(&request.state))),
        };
        let asked = Arc::new(Asked::new(&call, &self.settings));
        let result = self.run(request, Arc::clone(&asked)).await;
        // What it asked for is taken from it, whatever became of it.
        let effects = asked.finish().await;
        let duration_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Report {
            result: result.map(|()| effects),
            usage: Usage { duration_us, ..Usage::default() },
            logs: Vec::new(),
            digest: None,
        }
    }

    async fn warm(&self) {}
}
