//! Artifacts on disk, so that a component is compiled once and not at every
//! start: verified, never trusted.
//!
//! A file is named after the component's digest and what the engine is. It is
//! loaded only if this host's user wrote it and nobody else could, and if a
//! keyed MAC over its name and its content proves that it is what was written
//! (`file`, `key`). Whatever else is found is reported, removed and compiled
//! again. What was not used for longest goes first when the folder is full
//! (`prune`). Where the disk fails, only the cache is lost.

mod file;
mod key;
mod prune;

use std::{
    fmt::Write as _,
    fs,
    hash::{Hash as _, Hasher},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use sha2::{Digest, Sha256};
use wasmtime::Engine;

use super::compile::Artifact;
use crate::model::units::Bytes;

/// A folder of artifacts, which several hosts may share.
pub(super) struct Cache {
    folder: PathBuf,
    max: Bytes,
    /// What an engine must be to run them, as it is part of their names.
    engine: String,
    /// Whether it was said that the folder can't be used.
    told: AtomicBool,
}

impl Cache {
    /// A cache for this engine, of so many bytes; nothing is touched yet.
    pub(super) fn new(folder: &Path, max: Bytes, engine: &Engine) -> Self {
        let folder = folder.to_owned();
        Self { folder, max, engine: fingerprint(engine), told: AtomicBool::new(false) }
    }

    /// The artifact of a component, if it is there and is what was kept.
    pub(super) fn find(&self, digest: &str) -> Option<Artifact> {
        let name = self.name(digest);
        let path = self.folder.join(&name);
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(file::Unfit::Failed(error)),
            Ok(_) => self
                .key()
                .map_err(file::Unfit::Failed)
                .and_then(|key| file::read(&path, &name, &key)),
        };
        match found {
            Ok(artifact) => Some(artifact),
            Err(file::Unfit::Failed(error)) => {
                self.tell(&error);
                None
            }
            Err(file::Unfit::Not(why)) => {
                let file = path.display();
                tracing::warn!(%file, why, "a cached artifact isn't used: it is compiled again");
                self.forget(digest);
                None
            }
        }
    }

    /// Keeps an artifact, as far as there is room.
    pub(super) fn keep(&self, digest: &str, artifact: &Artifact) {
        if artifact.code().len() as u64 > self.max.get() {
            return;
        }
        let name = self.name(digest);
        let kept = self.key().and_then(|key| {
            let written = file::write(&self.folder, &name, &key, artifact)?;
            prune::prune(&self.folder, self.max, &name, written)
        });
        match kept {
            Ok(()) => self.told.store(false, Ordering::Relaxed),
            Err(error) => self.tell(&error),
        }
    }

    /// Removes what turned out to be of no use.
    pub(super) fn forget(&self, digest: &str) {
        // If it can't be removed, the next one that is kept replaces it.
        let _ = fs::remove_file(self.folder.join(self.name(digest)));
    }

    fn key(&self) -> io::Result<ring::hmac::Key> {
        file::make_folder(&self.folder)?;
        key::of(&self.folder)
    }

    fn name(&self, digest: &str) -> String {
        format!("{digest}-{}{}", self.engine, file::SUFFIX)
    }

    /// Says once that the cache is of no use, until it is again.
    fn tell(&self, error: &io::Error) {
        if !self.told.swap(true, Ordering::Relaxed) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "artifacts can't be kept: plugins are compiled anew");
        }
    }
}

/// What artifacts depend on beside the component: the compiler, its settings,
/// the processor, and this program's own format.
fn fingerprint(engine: &Engine) -> String {
    let mut hasher = Fingerprint(Sha256::new());
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    let digest = hasher.0.finalize();
    digest[..8].iter().fold(String::new(), |mut text, byte| {
        // Writing to a string doesn't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A hash that is the same in every process and version of the language.
struct Fingerprint(Sha256);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
    }
}

#[cfg(all(test, unix))]
mod tests;
