//! A plugin and its versions.

use serde::{Deserialize, Serialize};

use super::{UnixMillis, capability::Capability};

/// What a host found out about a component when it was uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginInfo {
    /// SHA-256 of its bytes, in lower-case hex: the version's identity.
    pub digest: String,
    /// Its size in bytes.
    pub size: u64,
    /// The interfaces that it imports, with their versions.
    pub imports: Vec<String>,
    /// The interfaces that it exports, with their versions.
    pub exports: Vec<String>,
    /// How long compiling it took, in milliseconds.
    pub compile_ms: u64,
}

impl PluginInfo {
    /// What it asks for.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Capability> {
        Capability::asked(&self.imports)
    }
}

/// One upload of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginVersion {
    /// What it is.
    pub info: PluginInfo,
    /// Whether triggers that name no digest run it.
    pub active: bool,
    /// When it was uploaded.
    pub created_at: UnixMillis,
}

/// A named component and all that was uploaded under the name.
#[derive(Debug, Clone, PartialEq)]
pub struct Plugin {
    /// The tenant.
    pub project: String,
    /// Its name, unique within the project.
    pub name: String,
    /// Its versions, the newest first.
    pub versions: Vec<PluginVersion>,
}
