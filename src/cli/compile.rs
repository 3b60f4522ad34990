//! `outrigger compile-component`: what a host runs to compile an upload, which
//! is for nobody else.

use std::process::ExitCode;

use clap::Args;

use crate::{
    model::units::{Bytes, Span},
    sandbox::{self, Allowance},
};

#[derive(Debug, Args)]
pub(super) struct Compile {
    /// Address space of this process
    #[arg(long, value_name = "SIZE")]
    memory: Bytes,
    /// Its time on a processor
    #[arg(long, value_name = "DURATION")]
    time: Span,
}

impl Compile {
    pub(super) fn run(&self) -> ExitCode {
        sandbox::compile_for_parent(Allowance { memory: self.memory, time: self.time })
    }
}
