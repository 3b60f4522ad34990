//! What a component may consist of, at the most.

use serde::{Deserialize, Serialize};

/// Something that is counted before a component is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// Components within components, one in the other.
    Nesting,
    /// Types of components and instances, one in the other.
    TypeNesting,
    /// Components and core modules, all together.
    Parts,
    /// Instances that parts are instantiated to.
    Instances,
    /// Types that components define.
    ComponentTypes,
    /// Functions that cross between components and modules.
    Crossings,
    /// Imports, exports and aliases.
    Names,
    /// Types that core modules define.
    Types,
    /// Functions of core modules.
    Functions,
    /// Globals, tables and memories of core modules.
    Globals,
    /// Bytes of code, all functions together.
    Code,
    /// Bytes of one function.
    Body,
    /// Local variables of one function.
    Locals,
    /// Blocks of one function, one in the other.
    Blocks,
    /// Local variables of one function times its blocks: what a compiler has
    /// to keep track of.
    Flow,
    /// Targets of one function's branch tables.
    Targets,
    /// Elements that are put into tables.
    Elements,
    /// Segments of data.
    DataSegments,
    /// Bytes of memory from the first to the last that data is put into.
    Data,
    /// Bytes of native code and data that come of it.
    Artifact,
}

/// What there is too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Excess {
    /// What was counted.
    pub(super) limit: Limit,
    /// How much there is, or was seen before the rest was left unread.
    pub(super) found: u64,
}

impl Limit {
    /// Its name, the most there may be, what it counts, and what its author
    /// can do.
    ///
    /// Each leaves real plugins room: `docs/sandbox.md` says what they have.
    const fn describe(self) -> (&'static str, u64, &'static str, &'static str) {
        const SMALLER: &str = "Build it optimised and stripped, and leave out what it doesn't use.";
        const SPLIT: &str = "Split its largest function, or optimise for size.";
        const FLAT: &str = "Compose it of fewer parts.";
        const DATA: &str = "Keep large data out of the component.";
        match self {
            Self::Nesting => ("nesting", 16, "components in one another", FLAT),
            Self::TypeNesting => ("typeNesting", 32, "types in one another", FLAT),
            Self::Parts => ("parts", 256, "components and modules", FLAT),
            Self::Instances => ("instances", 512, "instances", FLAT),
            Self::ComponentTypes => ("componentTypes", 20_000, "component types", FLAT),
            Self::Crossings => {
                ("crossings", 5_000, "functions between components and modules", FLAT)
            }
            Self::Names => ("names", 100_000, "imports, exports and aliases", SMALLER),
            Self::Types => ("types", 50_000, "types of core modules", SMALLER),
            Self::Functions => ("functions", 60_000, "functions", SMALLER),
            Self::Globals => ("globals", 50_000, "globals, tables and memories", SMALLER),
            Self::Code => ("code", 24 << 20, "bytes of code", SMALLER),
            Self::Body => ("body", 1 << 20, "bytes of code in one function", SPLIT),
            Self::Locals => ("locals", 2_000, "local variables in one function", SPLIT),
            Self::Blocks => ("blocks", 2_500, "blocks in one another", SPLIT),
            Self::Flow => {
                ("flow", 1_000_000, "local variables times blocks in one function", SPLIT)
            }
            Self::Targets => ("targets", 50_000, "branch-table targets in one function", SPLIT),
            Self::Elements => ("elements", 100_000, "table elements", SMALLER),
            Self::DataSegments => ("dataSegments", 150_000, "segments of data", DATA),
            Self::Data => ("data", 48 << 20, "bytes of memory that data is put into", DATA),
            Self::Artifact => ("artifact", 128 << 20, "bytes of compiled code and data", SMALLER),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.describe().0
    }

    /// The most there may be.
    #[must_use]
    pub const fn max(self) -> u64 {
        self.describe().1
    }

    /// What it counts, in words.
    #[must_use]
    pub const fn what(self) -> &'static str {
        self.describe().2
    }

    /// What an author can do about it.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        self.describe().3
    }
}
