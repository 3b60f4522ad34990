//! From an upload's bytes to a plugin that can be called.

mod error;
mod header;
mod world;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use wasmtime::{Engine, component::Component};

pub use error::UploadError;
use world::World;

use super::{
    Plugin, Sandbox, Settings,
    compile::{Artifact, Reservation, off_runtime},
    engine::{MEMORIES, TABLES},
    v1,
};
use crate::model::plugin::PluginInfo;

/// Longest message of a parser or compiler that is passed on, in bytes.
const MESSAGE_MAX: usize = 2 << 10;

/// Size of a page of a guest's memory.
const PAGE: u64 = 64 << 10;

impl Sandbox {
    /// Room for an upload of a project in memory, held until it is loaded.
    /// `None` while the project has as many under way as it may.
    #[must_use]
    pub fn reserve(&self, project: &str) -> Option<Reservation> {
        self.turns.reserve(project)
    }

    /// Checks a component of one's own, and compiles it unless that was done
    /// before.
    ///
    /// # Errors
    /// Says to the plugin's author why it can't be run here.
    pub async fn load(
        self: &Arc<Self>,
        bytes: impl Into<Bytes>,
    ) -> Result<Arc<Plugin>, UploadError> {
        self.load_for("", bytes).await
    }

    /// Checks a component of a project, and compiles it unless that was done
    /// before: one of a project at a time, and few in all. To drop the future
    /// is to give up; a compiler's process is killed.
    ///
    /// # Errors
    /// Says to the plugin's author why it can't be run here.
    pub async fn load_for(
        self: &Arc<Self>,
        project: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<Arc<Plugin>, UploadError> {
        let bytes = bytes.into();
        header::check(&bytes, self.settings.component_max)?;
        let component = off_runtime(move || Uploaded::new(bytes)).await?;
        if let Some(plugin) = self.cached(&component).await? {
            return Ok(plugin);
        }
        let turn = self.turns.take(project).await;
        // Whoever had the turn before may have brought the same.
        if let Some(plugin) = self.cached(&component).await? {
            return Ok(plugin);
        }
        let began = Instant::now();
        let code = self.compile(component.bytes.clone(), &turn).await?;
        let artifact = Artifact::new(code, 0, began.elapsed());
        let sandbox = Arc::clone(self);
        off_runtime(move || {
            let _turn = turn;
            let plugin = sandbox.link(&component, &artifact)?;
            if let Some(cache) = &sandbox.cache {
                cache.keep(&component.digest, &artifact);
            }
            Ok(plugin)
        })
        .await?
    }

    /// The plugin, if its artifact was kept.
    async fn cached(
        self: &Arc<Self>,
        component: &Uploaded,
    ) -> Result<Option<Arc<Plugin>>, UploadError> {
        if self.cache.is_none() {
            return Ok(None);
        }
        let (sandbox, component) = (Arc::clone(self), component.clone());
        off_runtime(move || {
            let Some(cache) = &sandbox.cache else { return Ok(None) };
            let Some(artifact) = cache.find(&component.digest) else { return Ok(None) };
            match sandbox.link(&component, &artifact) {
                // It was one of ours, and yet the engine doesn't take it.
                Err(UploadError::CompileFailed { message }) => {
                    let digest = &component.digest;
                    tracing::warn!(digest, message, "a cached artifact can't be loaded");
                    cache.forget(digest);
                    Ok(None)
                }
                linked => linked.map(Some),
            }
        })
        .await?
    }

    /// Makes a plugin of a component that is compiled.
    fn link(
        self: &Arc<Self>,
        uploaded: &Uploaded,
        artifact: &Artifact,
    ) -> Result<Arc<Plugin>, UploadError> {
        let component = native(&self.engine, artifact).map_err(|error| broken(chain(&error)))?;
        let world = World::of(&component.component_type(), &self.engine);
        world.check()?;
        check_needs(&component, &self.settings)?;
        let linked = self.linker.instantiate_pre(&component).map_err(|error| unlinked(&error))?;
        let handler = v1::Handler::new(linked).map_err(|error| UploadError::HandlerType {
            handler: v1::HANDLER,
            message: chain(&error),
        })?;
        let info = uploaded.info(world, artifact.took);
        Ok(Arc::new(Plugin { info, sandbox: Arc::clone(self), handler }))
    }
}

/// Loads native code.
#[expect(unsafe_code, reason = "the engine can't check native code; where it is from can be")]
fn native(engine: &Engine, artifact: &Artifact) -> wasmtime::Result<Component> {
    // SAFETY: an `Artifact` is made of what this host's own compiler answered,
    // or of what a MAC proves to have been that. It is in this process's memory
    // alone, so nobody changes it now.
    unsafe { Component::deserialize(engine, artifact.code()) }
}

/// What was uploaded.
#[derive(Clone)]
struct Uploaded {
    bytes: Bytes,
    /// Its SHA-256 in hex.
    digest: String,
}

impl Uploaded {
    fn new(bytes: Bytes) -> Self {
        let digest = format!("{:x}", Sha256::digest(&bytes));
        Self { bytes, digest }
    }

    fn info(&self, world: World, compile: Duration) -> PluginInfo {
        PluginInfo {
            digest: self.digest.clone(),
            size: self.bytes.len() as u64,
            imports: world.imports,
            exports: world.exports,
            compile_ms: u64::try_from(compile.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// A component that can't be parsed, or compiled, or that no slot has room for.
pub(super) fn broken(message: String) -> UploadError {
    if message.contains("component model async") || message.contains("async feature") {
        let advice = "It uses asynchronous component functions, which this host doesn't run: \
                      build it without (with componentize-qjs, `--sync`).";
        UploadError::Invalid { message, advice }
    } else if message.contains("unexpected end") || message.contains("out of bounds (bound") {
        UploadError::Invalid { message, advice: header::CUT_OFF }
    } else if message.contains("failed to parse") || message.contains("at offset") {
        let advice = "Build it again with current tools; if a message about a feature or proposal \
                      is part of this, build without that feature.";
        UploadError::Invalid { message, advice }
    } else if message.contains("pooling allocator") || message.contains("exceeds the limit") {
        UploadError::TooDemanding { message: message.replace(" in the pooling allocator", "") }
    } else {
        UploadError::CompileFailed { message }
    }
}

/// A component with an import whose functions or types differ.
fn unlinked(error: &wasmtime::Error) -> UploadError {
    let mut messages = error.chain().map(ToString::to_string);
    let first = messages.next().unwrap_or_default();
    // "component imports instance `…`, but a matching implementation …"
    let import = first.split('`').nth(1).unwrap_or(&first).to_owned();
    let rest: Vec<_> = messages.collect();
    let message = if rest.is_empty() { first } else { rest.join(": ") };
    UploadError::ImportType { import, message: shown(&message) }
}

/// Checks what an instance takes from the start. With a pool the engine does
/// so too; this holds without one.
fn check_needs(component: &Component, settings: &Settings) -> Result<(), UploadError> {
    let Some(needs) = component.resources_required() else {
        let message = "it imports modules or components to instantiate, so what it needs can't \
                       be known"
            .into();
        return Err(UploadError::TooDemanding { message });
    };
    let memory = needs.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE);
    let elements = needs.max_initial_table_size.unwrap_or(0);
    let bounds = [
        ("memories", u64::from(needs.num_memories), u64::from(MEMORIES)),
        ("tables", u64::from(needs.num_tables), u64::from(TABLES)),
        ("bytes of initial memory", memory, settings.memory_max.get()),
        ("table elements", elements, settings.table_elements.into()),
    ];
    match bounds.into_iter().find(|(_, needs, max)| needs > max) {
        Some((what, needs, max)) => Err(UploadError::TooDemanding {
            message: format!("it needs {needs} {what}, and there are {max}"),
        }),
        None => Ok(()),
    }
}

/// An error's message and those of its causes.
pub(super) fn chain(error: &wasmtime::Error) -> String {
    let messages: Vec<_> = error.chain().map(ToString::to_string).collect();
    shown(&messages.join(": "))
}

fn shown(message: &str) -> String {
    crate::model::names::storable(message.trim_end_matches('.'), MESSAGE_MAX)
}
