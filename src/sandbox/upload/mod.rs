//! From an upload's bytes to a plugin that can be called.

mod error;
mod header;
mod world;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use wasmtime::component::Component;

pub use error::UploadError;
use world::World;

use super::{
    Plugin, Sandbox, Settings,
    engine::{MEMORIES, TABLES},
    v1,
};
use crate::model::plugin::PluginInfo;

/// Longest message of a parser or compiler that is passed on, in bytes.
const MESSAGE_MAX: usize = 2 << 10;

/// Size of a page of a guest's memory.
const PAGE: u64 = 64 << 10;

impl Sandbox {
    /// Checks a component and compiles it; one at a time, off the runtime.
    ///
    /// # Errors
    /// Says to the plugin's author why it can't be run here.
    pub async fn load(self: &Arc<Self>, bytes: Vec<u8>) -> Result<Arc<Plugin>, UploadError> {
        header::check(&bytes, self.settings.component_max)?;
        let turn = Arc::clone(&self.compiling).acquire_owned().await;
        let sandbox = Arc::clone(self);
        let compiled = tokio::task::spawn_blocking(move || {
            // Held until the compilation ends, even if nobody waits for it.
            let _turn = turn;
            sandbox.compile(&bytes)
        });
        match compiled.await {
            Ok(plugin) => plugin.map(Arc::new),
            Err(error) => Err(UploadError::CompileFailed { message: error.to_string() }),
        }
    }

    fn compile(self: Arc<Self>, bytes: &[u8]) -> Result<Plugin, UploadError> {
        let began = Instant::now();
        let component =
            Component::from_binary(&self.engine, bytes).map_err(|error| broken(&error))?;
        let took = began.elapsed();
        let world = World::of(&component.component_type(), &self.engine);
        world.check()?;
        check_needs(&component, &self.settings)?;
        let linked = self.linker.instantiate_pre(&component).map_err(|error| unlinked(&error))?;
        let handler = v1::Handler::new(linked).map_err(|error| UploadError::HandlerType {
            handler: v1::HANDLER,
            message: chain(&error),
        })?;
        Ok(Plugin { info: info(bytes, world, took), sandbox: self, handler })
    }
}

/// Digest, size and world of a component.
fn info(bytes: &[u8], world: World, compile: Duration) -> PluginInfo {
    PluginInfo {
        digest: format!("{:x}", Sha256::digest(bytes)),
        size: bytes.len() as u64,
        imports: world.imports,
        exports: world.exports,
        compile_ms: u64::try_from(compile.as_millis()).unwrap_or(u64::MAX),
    }
}

/// A component that can't be parsed, or compiled, or that no slot has room for.
fn broken(error: &wasmtime::Error) -> UploadError {
    let message = chain(error);
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

fn chain(error: &wasmtime::Error) -> String {
    let messages: Vec<_> = error.chain().map(ToString::to_string).collect();
    shown(&messages.join(": "))
}

fn shown(message: &str) -> String {
    crate::model::names::storable(message.trim_end_matches('.'), MESSAGE_MAX)
}
