//! Secrets that triggers are granted, opened once for all that are granted the
//! same.
//!
//! What keeps a secret out of logs takes some fifty times its bytes, and time
//! to be made. So it is made apart from the runtime, for one set of a project
//! at a time, and a project has only so much of it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use crate::{
    model::units::Bytes,
    sandbox::{Sandbox, Secrets},
    secrets::Keyring,
    store::{Control, SealedSecret},
};

/// Bytes that all different sets of secrets of one project may have together.
const PROJECT_MAX: Bytes = Bytes::mib(1);

/// What was opened, for as long as a trigger uses it.
pub(super) struct Opened {
    sandbox: Arc<Sandbox>,
    store: Arc<dyn Control>,
    keyring: Arc<Keyring>,
    sets: Mutex<HashMap<[u8; 32], Weak<Set>>>,
}

/// The secrets of one project that some of its triggers are granted.
pub(super) struct Set {
    project: String,
    bytes: usize,
    secrets: OnceCell<Secrets>,
}

impl Opened {
    pub(super) fn new(
        sandbox: Arc<Sandbox>,
        store: Arc<dyn Control>,
        keyring: Arc<Keyring>,
    ) -> Self {
        Self { sandbox, store, keyring, sets: Mutex::default() }
    }

    /// Opens a project's secrets of these names. They are shared for as long as
    /// the set is kept.
    ///
    /// # Errors
    /// Names the secret that isn't there or doesn't open, or the bound.
    pub(super) async fn open(
        &self,
        project: &str,
        names: &[String],
    ) -> Result<(Secrets, Arc<Set>), String> {
        let sealed = self.store.sealed_secrets(project, names).await;
        let sealed = sealed.map_err(|error| error.to_string())?;
        if let Some(name) = names.iter().find(|name| !sealed.iter().any(|row| row.name == **name)) {
            return Err(format!(
                "the secret `{name}` isn't there: set it, or take it out of `grants.secrets`"
            ));
        }
        let set = self.set(project, &sealed)?;
        let open = async || {
            let opened = sealed.iter().map(|SealedSecret { project, name, sealed }| {
                let value = self.keyring.open(project, name, sealed);
                let value = value.map_err(|error| format!("the secret `{name}`: {error}"))?;
                Ok((name.clone(), value))
            });
            let values = opened.collect::<Result<BTreeMap<_, _>, String>>()?;
            self.sandbox.hide(project, values).await
        };
        let secrets = set.secrets.get_or_try_init(open).await?.clone();
        Ok((secrets, set))
    }

    fn set(&self, project: &str, sealed: &[SealedSecret]) -> Result<Arc<Set>, String> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|_, set| set.strong_count() > 0);
        let id = id(project, sealed);
        if let Some(set) = sets.get(&id).and_then(Weak::upgrade) {
            return Ok(set);
        }
        let bytes: usize = sealed.iter().map(|row| row.sealed.len()).sum();
        let others = sets.values().filter_map(Weak::upgrade).filter(|set| set.project == project);
        let all = bytes + others.map(|set| set.bytes).sum::<usize>();
        if all > PROJECT_MAX.as_usize() {
            return Err(format!(
                "the different sets of secrets that the project's triggers are granted have {all} \
                 bytes together; they may have {PROJECT_MAX}: grant fewer, or the same to all"
            ));
        }
        let set = Set { project: project.to_owned(), bytes, secrets: OnceCell::new() };
        let set = Arc::new(set);
        sets.insert(id, Arc::downgrade(&set));
        Ok(set)
    }
}

/// The same for the same secrets alone.
fn id(project: &str, sealed: &[SealedSecret]) -> [u8; 32] {
    let mut rows: Vec<_> = sealed.iter().map(|row| (&*row.name, &*row.sealed)).collect();
    rows.sort_unstable();
    let mut digest = Sha256::new();
    let mut add = |part: &[u8]| {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    };
    add(project.as_bytes());
    for (name, sealed) in rows {
        add(name.as_bytes());
        add(sealed);
    }
    digest.finalize().into()
}
