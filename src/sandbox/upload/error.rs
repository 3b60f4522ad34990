//! What is said of an upload that can't be run.

use crate::{
    model::units::{Bytes, Span},
    sandbox::compile::Limit,
};

/// Why an upload is refused: what is wrong and what to do, for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// There are no bytes.
    #[error("The upload is empty. Send the component's bytes as the request's body.")]
    Empty,
    /// There are too many bytes.
    #[error(
        "The component has {size} bytes; this host accepts {max}. Build it in release mode, \
         optimised for size and stripped, or ask the operator to raise `component_max`."
    )]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The host's limit.
        max: String,
    },
    /// It is something else.
    #[error("The upload is no WebAssembly: it {looks}.")]
    NotWebAssembly {
        /// What it looks like, and what to do with that.
        looks: String,
    },
    /// It is native code.
    #[error(
        "The upload is a precompiled artifact (`.cwasm`), which holds native code that no host \
         can check. Send the component (`.wasm`) that it was made from."
    )]
    Precompiled,
    /// It is a core module.
    #[error(
        "The upload is a core WebAssembly module; a component is needed. In Rust, build with \
         `--target wasm32-wasip2`. Elsewhere, turn the module into a component with \
         `wasm-tools component new` (and `--adapt` for modules that import \
         `wasi_snapshot_preview1`)."
    )]
    CoreModule,
    /// It is WebAssembly that can't be read.
    #[error("The component is broken: {message}. {advice}")]
    Invalid {
        /// The parser's message and the offset.
        message: String,
        /// What to do.
        advice: &'static str,
    },
    /// It exports no handler.
    #[error(
        "The component exports no `{handler}`, so nothing can be delivered to it. It exports \
         {exports}. {advice}"
    )]
    NoHandler {
        /// The export that is needed.
        handler: &'static str,
        /// What there is instead.
        exports: String,
        /// What to do.
        advice: &'static str,
    },
    /// Its handler is of a version that this host doesn't run.
    #[error(
        "The component exports `{found}`; this host runs `{handler}`. Build it against the \
         `trigger.wit` of that version, or upgrade the host."
    )]
    HandlerVersion {
        /// The export that is needed.
        handler: &'static str,
        /// The export that there is.
        found: String,
    },
    /// Its handler has other types.
    #[error(
        "The component's handler doesn't have the types of `{handler}`: {message}. Generate its \
         bindings again from the host's own `trigger.wit`, unchanged."
    )]
    HandlerType {
        /// The export that is needed.
        handler: &'static str,
        /// What differs.
        message: String,
    },
    /// It imports an interface that isn't offered.
    #[error("The component imports `{import}`. {advice}")]
    UnknownImport {
        /// The import.
        import: String,
        /// What to do.
        advice: String,
    },
    /// It imports an interface that is offered, but not as it needs it.
    #[error(
        "The component's import `{import}` doesn't fit: {message}. It was built against another \
         version of that interface; build it against one that this host offers."
    )]
    ImportType {
        /// The import.
        import: String,
        /// What differs.
        message: String,
    },
    /// It needs more than any call gets.
    #[error(
        "The component needs more than this host gives to a call: {message}. Build it smaller \
         (with less initial memory, say), or ask the operator to raise the sandbox's limits."
    )]
    TooDemanding {
        /// What it needs and what there is.
        message: String,
    },
    /// It consists of more than is compiled for anybody.
    #[error(
        "The component has {found} {}; this host compiles {} at the most (limit `{}`). {}",
        limit.what(), limit.max(), limit.name(), limit.advice()
    )]
    TooComplex {
        /// What there is too much of.
        limit: Limit,
        /// How much there is, at the least.
        found: u64,
    },
    /// Compiling it takes too much memory.
    #[error(
        "Compiling the component takes too much memory: the host's `compile_memory` is {max}. \
         Build it smaller, optimised and with shorter functions, or ask the operator to raise it."
    )]
    CompilerMemory {
        /// The host's limit.
        max: Bytes,
    },
    /// Compiling it takes too long.
    #[error(
        "Compiling the component takes too long: the host's `compile_time` is {max} on a \
         processor. Build it smaller, optimised and with shorter functions, or ask the operator \
         to raise it."
    )]
    CompilerTime {
        /// The host's limit.
        max: Span,
    },
    /// The compiler broke.
    #[error(
        "The compiler broke on the component ({message}). Build it again with other tools or \
         options; the operator can report it, with the component."
    )]
    CompilerCrashed {
        /// How it ended.
        message: String,
    },
    /// There is no compiler, which is no fault of the component's.
    #[error("This host can't compile anything at the moment: {message}.")]
    CompilerAway {
        /// Why.
        message: String,
    },
    /// The compiler gave up.
    #[error("The component can't be compiled: {message}.")]
    CompileFailed {
        /// The compiler's message.
        message: String,
    },
}

impl UploadError {
    /// A short name for machines, which stays the same.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLarge { .. } => "tooLarge",
            Self::NotWebAssembly { .. } => "notWebAssembly",
            Self::Precompiled => "precompiled",
            Self::CoreModule => "coreModule",
            Self::Invalid { .. } => "invalid",
            Self::NoHandler { .. } => "noHandler",
            Self::HandlerVersion { .. } => "handlerVersion",
            Self::HandlerType { .. } => "handlerType",
            Self::UnknownImport { .. } => "unknownImport",
            Self::ImportType { .. } => "importType",
            Self::TooDemanding { .. } => "tooDemanding",
            Self::TooComplex { .. } => "tooComplex",
            Self::CompilerMemory { .. } => "compilerMemory",
            Self::CompilerTime { .. } => "compilerTime",
            Self::CompilerCrashed { .. } => "compilerCrashed",
            Self::CompilerAway { .. } => "compilerAway",
            Self::CompileFailed { .. } => "compileFailed",
        }
    }
}
