//! Projects, plugins, triggers, keys and hosts: what operators and authors define.
//!
//! Every change that a match could depend on raises the control version in
//! its own transaction. A host that has read version *n* after a claim, and
//! matches with definitions at least that new, misses no trigger that was put
//! before the event was recorded.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{HostId, StoreError};
use crate::model::{
    UnixMillis,
    capability::Allow,
    plugin::{Plugin, PluginInfo},
    trigger::{Trigger, TriggerSpec},
};

/// Rises with every change of a definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControlVersion(pub i64);

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Project {
    /// Its name.
    pub name: String,
    /// Whether its events are delivered.
    pub enabled: bool,
    /// What its triggers may grant.
    pub allow: Allow,
    /// When it was created.
    pub created_at: UnixMillis,
}

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Pause, resume, requeue, purge, replay.
    Operator,
    /// Plugins and triggers.
    Developer,
    /// Record events.
    Publisher,
    /// Look.
    Viewer,
}

/// An API key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Its id.
    pub id: Uuid,
    /// What a person calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The one project that it is for; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// What it may do.
    pub role: Role,
    /// When it was made.
    pub created_at: UnixMillis,
    /// When it stops working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
}

/// An API key to store.
#[derive(Debug, Clone)]
pub struct KeyRow {
    /// What is shown of it.
    pub key: ApiKey,
    /// SHA-256 of its secret.
    pub hash: [u8; 32],
}

/// A running host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostInfo {
    /// New at every start.
    pub id: Uuid,
    /// The machine's name and the process id.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// When it started.
    pub started_at: UnixMillis,
    /// When it was last heard of.
    pub heartbeat_at: UnixMillis,
}

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretInfo {
    /// Its name.
    pub name: String,
    /// When it was last set.
    pub updated_at: UnixMillis,
}

/// A secret as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedSecret {
    /// The tenant.
    pub project: String,
    /// Its name.
    pub name: String,
    /// Its value, sealed.
    pub sealed: Vec<u8>,
}

/// What became of a secret that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretPut {
    /// It is new.
    New,
    /// It has another value.
    Replaced,
    /// The project has as many as it may have.
    Full,
}

/// Everything that a host matches with.
#[derive(Debug, Clone, Default)]
pub struct Definitions {
    /// How new they are.
    pub version: ControlVersion,
    /// All projects.
    pub projects: Vec<Project>,
    /// All triggers.
    pub triggers: Vec<Trigger>,
    /// Active plugin versions: project, plugin, digest.
    pub active: Vec<(String, String, String)>,
    /// Secrets: project, name, and what tells one value from the next.
    pub secrets: Vec<(String, String, Vec<u8>)>,
}

/// A trigger that was deleted while it had deliveries, or couldn't be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerGone {
    /// It is gone.
    Yes,
    /// There is none of that name.
    Unknown,
}

/// What operators and authors define.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Brings the schema to this program's version; safe while older hosts
    /// run, and when several do it at once.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Whether the database answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// The version of the definitions.
    async fn control_version(&self) -> Result<ControlVersion, StoreError>;

    /// All definitions, as one consistent snapshot.
    async fn definitions(&self) -> Result<Definitions, StoreError>;

    /// Creates a project, or leaves it as it is. Answers whether it is new.
    async fn put_project(&self, name: &str) -> Result<bool, StoreError>;

    /// Enables or disables a project. Answers whether there is one.
    async fn enable_project(&self, name: &str, enabled: bool) -> Result<bool, StoreError>;

    /// Says what a project's triggers may grant; those that grant more keep what
    /// it allows of that. Answers whether there is such a project.
    async fn allow(&self, project: &str, allow: &Allow) -> Result<bool, StoreError>;

    /// One project.
    async fn project(&self, name: &str) -> Result<Option<Project>, StoreError>;

    /// All projects, by name.
    async fn projects(&self) -> Result<Vec<Project>, StoreError>;

    /// Deletes a project's definitions: plugins, triggers, secrets, keys and itself.
    /// Answers whether there was one. Its rows are [`super::Inspect::delete_project_data`]'s.
    async fn delete_project(&self, name: &str) -> Result<bool, StoreError>;

    /// Stores a version of a plugin, active if it is the first or `activate`
    /// says so. Answers whether it is new; the same bytes again change nothing
    /// but what is active.
    async fn put_plugin(
        &self,
        project: &str,
        name: &str,
        info: &PluginInfo,
        bytes: &[u8],
        activate: bool,
    ) -> Result<bool, StoreError>;

    /// Makes a version the active one. Answers whether there is such a version.
    async fn activate_plugin(
        &self,
        project: &str,
        name: &str,
        digest: &str,
    ) -> Result<bool, StoreError>;

    /// One plugin with its versions.
    async fn plugin(&self, project: &str, name: &str) -> Result<Option<Plugin>, StoreError>;

    /// All plugins of a project, by name.
    async fn plugins(&self, project: &str) -> Result<Vec<Plugin>, StoreError>;

    /// A version's bytes, whichever plugin of the project has it.
    async fn plugin_bytes(
        &self,
        project: &str,
        digest: &str,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Deletes a plugin that no trigger names. Answers the triggers that do,
    /// or `None` if there is no such plugin.
    async fn delete_plugin(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError>;

    /// Creates or replaces a trigger. Answers whether it is new; the plugin
    /// (and version) and the secrets that the document names must exist, else
    /// `None`.
    /// A paused trigger stays paused.
    async fn put_trigger(
        &self,
        project: &str,
        name: &str,
        spec: &TriggerSpec,
    ) -> Result<Option<bool>, StoreError>;

    /// One trigger.
    async fn trigger(&self, project: &str, name: &str) -> Result<Option<Trigger>, StoreError>;

    /// All triggers of a project, by name.
    async fn triggers(&self, project: &str) -> Result<Vec<Trigger>, StoreError>;

    /// Pauses with a reason, or resumes with `None`. Answers whether there is
    /// such a trigger, of this `revision` if one is named.
    async fn pause_trigger(
        &self,
        project: &str,
        name: &str,
        reason: Option<&str>,
        revision: Option<i64>,
    ) -> Result<bool, StoreError>;

    /// Deletes a trigger's definition.
    async fn delete_trigger(&self, project: &str, name: &str) -> Result<TriggerGone, StoreError>;

    /// Stores a secret's sealed value, unless it would be one more than `most`.
    async fn put_secret(
        &self,
        project: &str,
        name: &str,
        sealed: &[u8],
        most: u32,
    ) -> Result<SecretPut, StoreError>;

    /// A project's secrets, by name.
    async fn secrets(&self, project: &str) -> Result<Vec<SecretInfo>, StoreError>;

    /// Those of a project's secrets that have these names.
    async fn sealed_secrets(
        &self,
        project: &str,
        names: &[String],
    ) -> Result<Vec<SealedSecret>, StoreError>;

    /// Deletes a secret that no trigger is granted. Answers the triggers that
    /// are, or `None` if there is no such secret.
    async fn delete_secret(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Vec<String>>, StoreError>;

    /// Secrets of all projects, by project and name, behind one of them.
    async fn all_sealed(
        &self,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<SealedSecret>, StoreError>;

    /// Replaces what is stored of a secret by the same value sealed anew, unless
    /// it was set meanwhile. Answers whether it was replaced.
    async fn reseal(&self, old: &SealedSecret, sealed: &[u8]) -> Result<bool, StoreError>;

    /// Stores a key.
    async fn put_key(&self, key: &KeyRow) -> Result<(), StoreError>;

    /// The key with this hash, unless it has expired.
    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<ApiKey>, StoreError>;

    /// All keys, the oldest first.
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Deletes a key. Answers whether there was one.
    async fn delete_key(&self, id: Uuid) -> Result<bool, StoreError>;

    /// Says that a host lives, and forgets those not heard of for ten times
    /// `lease`. Answers how many lived within `lease`, this one included.
    async fn heartbeat(
        &self,
        host: HostId,
        name: &str,
        lease: Duration,
    ) -> Result<usize, StoreError>;

    /// Says that a host has stopped.
    async fn goodbye(&self, host: HostId) -> Result<(), StoreError>;

    /// Hosts heard of lately.
    async fn hosts(&self) -> Result<Vec<HostInfo>, StoreError>;
}
