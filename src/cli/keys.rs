//! `outrigger keys`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    Context,
    output::{Column, Show},
    time::Time,
};
use crate::{
    api::{KeyHash, generate_key},
    store::{self, ApiKey, KeyRow, Role, Store},
};

#[derive(Debug, Subcommand)]
pub(super) enum Keys {
    /// Make a key and print it, once; for one project with --project
    /// (`OUTRIGGER_PROJECT` doesn't count here)
    Create(Create),
    /// List keys, without their secrets
    List,
    /// Delete a key: it stops working at once
    Delete {
        /// The key's id
        id: Uuid,
    },
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// What to call it
    #[arg(long)]
    name: Option<String>,
    /// What it may do
    #[arg(long, default_value = "admin")]
    role: String,
    /// When it stops working, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    expires_at: Option<Time>,
    /// Write it into the configured database, with no key and no host needed
    #[arg(long)]
    local: bool,
}

const COLUMNS: [Column; 6] = [
    ("ID", "/id", Show::Plain),
    ("NAME", "/name", Show::Plain),
    ("ROLE", "/role", Show::Plain),
    ("PROJECT", "/project", Show::Plain),
    ("CREATED", "/createdAt", Show::Time),
    ("EXPIRES", "/expiresAt", Show::Time),
];

impl Keys {
    pub(super) async fn run(self, context: &Context) -> Result<ExitCode> {
        let out = context.out;
        match self {
            Self::Create(create) if create.local => create.locally(context).await?,
            Self::Create(create) => create.remotely(context).await?,
            Self::List => {
                out.list(&context.client()?.get(&["keys"]).await?, &COLUMNS, "There is no key.");
            }
            Self::Delete { id } => {
                context.client()?.delete(&["keys", &id.to_string()]).await?;
                out.note(format_args!("key {id} is deleted"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Create {
    async fn remotely(self, context: &Context) -> Result<()> {
        let mut body = Map::from_iter([("role".to_owned(), Value::from(self.role))]);
        let mut add = |member: &str, value: Option<Value>| {
            value.map(|value| body.insert(member.to_owned(), value));
        };
        add("name", self.name.map(Value::from));
        add("project", context.shared.project.clone().map(Value::from));
        add("expiresAt", self.expires_at.map(|at| at.0.into()));
        let answer = context.client()?.post(&["keys"], &body.into()).await?;
        if !context.out.json(&answer) {
            let member = |name: &str| answer.value()[name].as_str().unwrap_or_default();
            context.out.note(format_args!("key {}, shown only now:", member("id")));
            context.out.line(member("key"));
        }
        Ok(())
    }

    async fn locally(self, context: &Context) -> Result<()> {
        if self.role != "admin" || self.expires_at.is_some() || context.shared.project.is_some() {
            bail!("--local makes an admin key for everything; use it to make others");
        }
        let config = context.config()?;
        let store = store::connect(config.database.url.expose(), &config.store()).await?;
        store.migrate().await?;
        let name = self.name.as_deref().unwrap_or("admin (local)");
        let (id, key) = make_admin(&*store, Uuid::new_v4(), name).await?;
        if context.out.is_json() {
            context.out.line(json!({ "id": id, "key": key }));
        } else {
            context.out.note(format_args!("key {id}, shown only now:"));
            context.out.line(key);
        }
        Ok(())
    }
}

/// Draws an admin key and stores its hash. Answers its id and the key.
pub(super) async fn make_admin(store: &dyn Store, id: Uuid, name: &str) -> Result<(Uuid, String)> {
    let secret = generate_key()?;
    let key = ApiKey {
        id,
        name: Some(name.to_owned()),
        project: None,
        role: Role::Admin,
        // The database's clock decides.
        created_at: 0,
        expires_at: None,
    };
    let row = KeyRow { key, hash: *KeyHash::of(&secret).as_bytes() };
    store.put_key(&row).await.context("the key can't be stored")?;
    Ok((id, secret))
}
