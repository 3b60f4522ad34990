//! `outrigger plugins new`: a project that builds with one command.

use std::{fs, io, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::output::Output;

#[derive(Debug, Args)]
pub(super) struct New {
    /// The plugin's name
    name: String,
    /// Its language
    #[arg(long, value_enum, default_value = "rust")]
    lang: Language,
    /// Where to write it [./NAME]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Language {
    Rust,
}

/// Files of a project: where they go, and what is in them. `{name}` stands for
/// the plugin's name, `{artifact}` for what the compiler calls it.
type Template = &'static [(&'static str, &'static str)];

const RUST: Template = &[
    ("Cargo.toml", include_str!("templates/rust/Cargo.toml.template")),
    ("src/lib.rs", include_str!("templates/rust/lib.rs.template")),
    ("wit/trigger.wit", include_str!("../../wit/trigger.wit")),
    ("event.json", include_str!("templates/rust/event.json")),
    ("apply.toml", include_str!("templates/rust/apply.toml")),
    ("README.md", include_str!("templates/rust/README.md")),
    (".gitignore", "/target\n"),
];

impl New {
    pub(super) fn run(self, out: Output) -> Result<ExitCode> {
        check(&self.name)?;
        let Language::Rust = self.lang;
        let folder = self.dir.unwrap_or_else(|| PathBuf::from(&self.name));
        let present = RUST.iter().map(|(path, _)| folder.join(path)).find(|path| path.exists());
        if let Some(path) = present {
            bail!("{} is there already; nothing was written", path.display());
        }
        let artifact = self.name.replace('-', "_");
        for (path, text) in RUST {
            let path = folder.join(path);
            let text = text.replace("{name}", &self.name).replace("{artifact}", &artifact);
            write(&path, &text).with_context(|| path.display().to_string())?;
        }
        if out.is_json() {
            out.line(json!({ "folder": folder }));
        } else {
            out.line(format_args!("{} is written; build it there with", folder.display()));
            out.line("  cargo build --release --target wasm32-wasip2");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What both this program and Cargo take for a name.
fn check(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let letter = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if !letter || !name.chars().all(allowed) || name.len() > 64 {
        bail!(
            "`{name}` is no name for a plugin: up to 64 letters, digits, `-` and `_`, a letter first"
        );
    }
    Ok(())
}

/// Writes a file that isn't there yet.
fn write(path: &std::path::Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::File::options().write(true).create_new(true).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}
