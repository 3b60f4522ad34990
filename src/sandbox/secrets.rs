//! The secrets that a trigger is granted, opened: what `secrets` answers, and
//! what no text that leaves the sandbox shows.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{Sandbox, redact::Redactor};
use crate::model::{
    names::storable,
    secret::{GRANTED_MAX, SecretValue},
};

/// Secrets by their names; `Debug` hides them. Clones share them.
#[derive(Clone, Default)]
pub struct Secrets(Option<Arc<Granted>>);

struct Granted {
    values: BTreeMap<String, SecretValue>,
    redactor: Redactor,
}

impl Secrets {
    /// These secrets.
    ///
    /// # Errors
    /// When they are more than one trigger may have.
    pub fn new(values: BTreeMap<String, SecretValue>) -> Result<Self, String> {
        if values.is_empty() {
            return Ok(Self::default());
        }
        let bytes: usize = values.values().map(|value| value.expose().len()).sum();
        if bytes > GRANTED_MAX.as_usize() {
            return Err(format!(
                "the secrets of one trigger may have {GRANTED_MAX} together; these have {bytes} \
                 bytes"
            ));
        }
        let redactor = Redactor::new(&values)?;
        Ok(Self(Some(Arc::new(Granted { values, redactor }))))
    }

    /// What [`storable`] makes of a text, with `[secret NAME]` in the place of
    /// each secret.
    #[must_use]
    pub fn storable(&self, text: &str, limit: usize) -> String {
        match &self.0 {
            Some(granted) => granted.redactor.storable(text.as_bytes(), limit),
            None => storable(text, limit),
        }
    }

    /// The value of one that is granted.
    pub(super) fn get(&self, name: &str) -> Option<&SecretValue> {
        self.0.as_ref()?.values.get(name)
    }

    /// How far behind a limit a text is to be known to be shown up to there.
    pub(super) fn reach(&self) -> usize {
        self.0.as_ref().map_or(0, |granted| granted.redactor.reach())
    }
}

impl Sandbox {
    /// These secrets of a project, made ready off the runtime: one set of a
    /// project at a time, and one in all.
    ///
    /// # Errors
    /// As [`Secrets::new`].
    pub async fn hide(
        &self,
        project: &str,
        values: BTreeMap<String, SecretValue>,
    ) -> Result<Secrets, String> {
        let turn = self.hiding.take(project).await;
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Secrets::new(values)
        });
        made.await.map_err(|error| error.to_string())?
    }
}

impl PartialEq for Secrets {
    fn eq(&self, other: &Self) -> bool {
        let own = self.0.as_ref().map(|granted| &granted.values);
        own == other.0.as_ref().map(|granted| &granted.values)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().flat_map(|granted| granted.values.keys());
        f.debug_set().entries(names).finish()
    }
}
