//! Reads a component from end to end and counts, before anything of it is
//! compiled: what a compiler takes minutes and gigabytes for is told by what
//! it consists of.
//!
//! It reads with no recursion, and holds on to nothing. What it can't read it
//! leaves to the compiler, which says better what is wrong.

use wasmparser::{
    BinaryReader, BinaryReaderError, ComponentAlias, ComponentImport, ComponentType, ConstExpr,
    CoreType, DataKind, ElementItems, FromReader, FunctionBody, Operator, Parser, Payload,
};

use super::limit::{Excess, Limit};

/// Checks that a component stays within every [`Limit`].
///
/// # Errors
/// The first limit that it passes.
pub(super) fn check(bytes: &[u8]) -> Result<(), Excess> {
    let mut tally = Tally::default();
    match tally.walk(bytes) {
        Err(Stop::Excess(excess)) => Err(excess),
        Ok(()) | Err(Stop::Unreadable) => Ok(()),
    }
}

/// Why a walk ends early.
enum Stop {
    Excess(Excess),
    Unreadable,
}

impl From<Excess> for Stop {
    fn from(excess: Excess) -> Self {
        Self::Excess(excess)
    }
}

impl From<BinaryReaderError> for Stop {
    fn from(_: BinaryReaderError) -> Self {
        Self::Unreadable
    }
}

type Step = Result<(), Stop>;

/// What has been counted so far, all parts together.
#[derive(Default)]
struct Tally {
    parts: u64,
    instances: u64,
    component_types: u64,
    crossings: u64,
    names: u64,
    types: u64,
    functions: u64,
    globals: u64,
    code: u64,
    elements: u64,
    segments: u64,
    /// Of the modules that have ended.
    data: u64,
    /// Where the current module's data begins and ends.
    span: Option<(u64, u64)>,
}

/// Whether so much is within a limit.
pub(super) fn within(limit: Limit, found: u64) -> Result<(), Excess> {
    if found > limit.max() { Err(Excess { limit, found }) } else { Ok(()) }
}

/// Counts more of something.
fn add(count: &mut u64, more: u64, limit: Limit) -> Step {
    *count = count.saturating_add(more);
    Ok(within(limit, *count)?)
}

impl Tally {
    fn walk(&mut self, bytes: &[u8]) -> Step {
        let mut depth = 0;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                    depth += 1;
                    within(Limit::Nesting, depth)?;
                    add(&mut self.parts, 1, Limit::Parts)?;
                }
                Payload::End(_) => {
                    depth = depth.saturating_sub(1);
                    self.end_module()?;
                }
                Payload::ComponentTypeSection(section) => {
                    self.component_types(section.count())?;
                    let range = section.range();
                    let start = range.start;
                    let section = bytes.get(range).ok_or(Stop::Unreadable)?;
                    self.nested_types(BinaryReader::new(section, start))?;
                }
                payload => {
                    self.component(&payload)?;
                    self.module(&payload)?;
                }
            }
        }
        Ok(())
    }

    /// Counts what a component consists of.
    fn component(&mut self, payload: &Payload<'_>) -> Step {
        match payload {
            Payload::InstanceSection(section) => self.instances(section.count()),
            Payload::ComponentInstanceSection(section) => self.instances(section.count()),
            Payload::ComponentCanonicalSection(section) => {
                add(&mut self.crossings, section.count().into(), Limit::Crossings)
            }
            Payload::ComponentAliasSection(section) => self.names(section.count()),
            Payload::ComponentImportSection(section) => self.names(section.count()),
            Payload::ComponentExportSection(section) => self.names(section.count()),
            Payload::CoreTypeSection(section) => self.component_types(section.count()),
            _ => Ok(()),
        }
    }

    /// Counts what a core module consists of.
    fn module(&mut self, payload: &Payload<'_>) -> Step {
        match payload {
            Payload::TypeSection(section) => {
                add(&mut self.types, section.count().into(), Limit::Types)
            }
            Payload::ImportSection(section) => self.names(section.count()),
            Payload::ExportSection(section) => self.names(section.count()),
            Payload::FunctionSection(section) => {
                add(&mut self.functions, section.count().into(), Limit::Functions)
            }
            Payload::GlobalSection(section) => self.globals(section.count()),
            Payload::TableSection(section) => self.globals(section.count()),
            Payload::MemorySection(section) => self.globals(section.count()),
            Payload::ElementSection(section) => {
                for element in section.clone() {
                    let count = match element?.items {
                        ElementItems::Functions(items) => items.count(),
                        ElementItems::Expressions(_, items) => items.count(),
                    };
                    add(&mut self.elements, count.into(), Limit::Elements)?;
                }
                Ok(())
            }
            Payload::DataSection(section) => {
                add(&mut self.segments, section.count().into(), Limit::DataSegments)?;
                for data in section.clone() {
                    let data = data?;
                    let length = data.data.len() as u64;
                    match data.kind {
                        DataKind::Passive => add(&mut self.data, length, Limit::Data)?,
                        DataKind::Active { offset_expr, .. } => {
                            self.stretch(constant(&offset_expr), length);
                        }
                    }
                }
                Ok(())
            }
            Payload::CodeSectionEntry(body) => {
                add(&mut self.code, body.as_bytes().len() as u64, Limit::Code)?;
                match function(body) {
                    // The others are compiled before this one is found out.
                    Err(Stop::Unreadable) => Ok(()),
                    step => step,
                }
            }
            _ => Ok(()),
        }
    }

    fn instances(&mut self, more: u32) -> Step {
        add(&mut self.instances, more.into(), Limit::Instances)
    }

    fn names(&mut self, more: u32) -> Step {
        add(&mut self.names, more.into(), Limit::Names)
    }

    fn globals(&mut self, more: u32) -> Step {
        add(&mut self.globals, more.into(), Limit::Globals)
    }

    fn component_types(&mut self, more: u32) -> Step {
        add(&mut self.component_types, more.into(), Limit::ComponentTypes)
    }

    /// Data at an address that isn't known counts from the beginning.
    fn stretch(&mut self, offset: Option<u64>, length: u64) {
        let begin = offset.unwrap_or(0);
        let end = begin.saturating_add(length);
        let (from, to) = self.span.unwrap_or((begin, end));
        self.span = Some((from.min(begin), to.max(end)));
    }

    /// The gaps between a module's data become part of what is compiled.
    fn end_module(&mut self) -> Step {
        let (from, to) = self.span.take().unwrap_or_default();
        add(&mut self.data, to - from, Limit::Data)
    }

    /// Counts types within types. The parser reads them recursively, so how
    /// deep they go is found out first.
    fn nested_types(&mut self, mut reader: BinaryReader<'_>) -> Step {
        // How many are left at each depth.
        let mut left = vec![reader.read_var_u32()?];
        while let Some(rest) = left.last_mut() {
            if *rest == 0 {
                left.pop();
                continue;
            }
            *rest -= 1;
            let is_outermost = left.len() == 1;
            if let Some(declarations) = declared(&mut reader, is_outermost)? {
                self.component_types(declarations)?;
                left.push(declarations);
                within(Limit::TypeNesting, left.len() as u64)?;
            }
        }
        Ok(())
    }
}

/// Reads a type, or a declaration within one; answers how many declarations
/// follow, if it consists of some.
fn declared(reader: &mut BinaryReader<'_>, is_type: bool) -> Result<Option<u32>, Stop> {
    if !is_type {
        match reader.read_u8()? {
            0x00 => return skipped::<CoreType<'_>>(reader),
            0x01 => {}
            0x02 => return skipped::<ComponentAlias<'_>>(reader),
            0x03 => return skipped::<ComponentImport<'_>>(reader),
            0x04 => {
                reader.read::<wasmparser::ComponentExternName<'_>>()?;
                return skipped::<wasmparser::ComponentTypeRef>(reader);
            }
            _ => return Err(Stop::Unreadable),
        }
    }
    let mut ahead = reader.clone();
    if matches!(ahead.read_u8()?, 0x41 | 0x42) {
        let declarations = ahead.read_var_u32()?;
        *reader = ahead;
        return Ok(Some(declarations));
    }
    skipped::<ComponentType<'_>>(reader)
}

fn skipped<'a, T: FromReader<'a>>(reader: &mut BinaryReader<'a>) -> Result<Option<u32>, Stop> {
    reader.read::<T>()?;
    Ok(None)
}

/// The value of an expression, if it is plain.
fn constant(expression: &ConstExpr<'_>) -> Option<u64> {
    match expression.get_operators_reader().read() {
        Ok(Operator::I32Const { value }) => Some(u64::from(value.cast_unsigned())),
        _ => None,
    }
}

/// Counts what one function consists of.
fn function(body: &FunctionBody<'_>) -> Step {
    within(Limit::Body, body.as_bytes().len() as u64)?;
    let mut locals: u64 = 0;
    for group in body.get_locals_reader()? {
        add(&mut locals, group?.0.into(), Limit::Locals)?;
    }
    let (mut depth, mut blocks, mut targets) = (0u64, 0u64, 0u64);
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        match operators.read()? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                blocks += 1;
                add(&mut depth, 1, Limit::Blocks)?;
                within(Limit::Flow, locals.saturating_mul(blocks))?;
            }
            Operator::End => depth = depth.saturating_sub(1),
            Operator::BrTable { targets: table } => {
                add(&mut targets, table.len().into(), Limit::Targets)?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        BlockType, CodeSection, Component, DataSection, Function, FunctionSection, MemorySection,
        MemoryType, Module, ModuleSection, RawSection, TypeSection, ValType,
    };

    use super::*;

    fn component(modules: &[Module]) -> Vec<u8> {
        let mut component = Component::new();
        for module in modules {
            component.section(&ModuleSection(module));
        }
        component.finish()
    }

    fn code(functions: &[Function]) -> Vec<u8> {
        let (mut types, mut declared, mut code) = Default::default();
        (&mut types as &mut TypeSection).ty().function([], []);
        for function in functions {
            (&mut declared as &mut FunctionSection).function(0);
            (&mut code as &mut CodeSection).function(function);
        }
        component(&[Module::new().section(&types).section(&declared).section(&code).clone()])
    }

    fn data(offsets: &[i32]) -> Module {
        let mut memories = MemorySection::new();
        let memory64 = false;
        let (minimum, maximum, shared, page_size_log2) = (1, None, false, None);
        memories.memory(MemoryType { minimum, maximum, memory64, shared, page_size_log2 });
        let mut data = DataSection::new();
        for offset in offsets {
            data.active(0, &wasm_encoder::ConstExpr::i32_const(*offset), [1]);
        }
        Module::new().section(&memories).section(&data).clone()
    }

    fn excess(bytes: &[u8]) -> (Limit, u64) {
        let Excess { limit, found } = check(bytes).expect_err("too much");
        (limit, found)
    }

    #[test]
    fn what_is_at_a_limit_passes() {
        let locals = |count| Function::new([(count, ValType::I32), (1, ValType::I64)]);
        let most = u32::try_from(Limit::Locals.max()).expect("few");
        let ended = |mut function: Function| {
            function.instructions().end();
            function
        };
        assert_eq!(check(&code(&[ended(locals(most - 1))])), Ok(()));
        assert_eq!(excess(&code(&[ended(locals(most))])), (Limit::Locals, 2001));
        let nested = |depth| {
            let mut function = Function::new([]);
            for _ in 0..depth {
                function.instructions().block(BlockType::Empty);
            }
            for _ in 0..=depth {
                function.instructions().end();
            }
            function
        };
        assert_eq!(check(&code(&[nested(2500)])), Ok(()));
        assert_eq!(excess(&code(&[nested(2501)])), (Limit::Blocks, 2501));
    }

    #[test]
    fn gaps_between_data_count_and_modules_add_up() {
        assert_eq!(check(&component(&[data(&[1 << 30, (1 << 30) + 5])])), Ok(()));
        assert_eq!(excess(&component(&[data(&[5, 1 << 30])])), (Limit::Data, (1 << 30) - 4));
        let half = || data(&[0, 30 << 20]);
        assert_eq!(check(&component(&[half()])), Ok(()));
        assert_eq!(excess(&component(&[half(), half()])).0, Limit::Data);
    }

    #[test]
    fn types_in_types_are_counted_among_others() {
        let types = |depth: usize| {
            // Two types: an instance's with an export of a function's within,
            // then what is nested; each in turn with a type beside it.
            let mut types = vec![2, 0x42, 2, 1, 0x40, 0, 1, 0, 4, 0, 1, b'f', 1, 0];
            types.extend([0x42, 2, 1, 0x7f, 1].repeat(depth));
            types.extend([0x42, 0]);
            let mut component = Component::new();
            component.section(&RawSection { id: 7, data: &types });
            component.finish()
        };
        assert_eq!(check(&types(30)), Ok(()));
        assert_eq!(excess(&types(40)), (Limit::TypeNesting, 33));
    }

    #[test]
    fn a_function_that_can_not_be_read_hides_no_other() {
        let mut broken = Function::new([]);
        broken.raw([0xff, 0xff, 0x0b]);
        let mut large = Function::new([(3000, ValType::I32)]);
        large.instructions().end();
        assert_eq!(check(&code(&[broken.clone()])), Ok(()), "the compiler says it better");
        assert_eq!(excess(&code(&[broken, large])), (Limit::Locals, 3000));
    }
}
