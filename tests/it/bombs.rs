//! Components that would cost a compiler minutes and gigabytes: made by code,
//! small to send.

use wasm_encoder::{
    BlockType, CanonicalFunctionSection, CodeSection, Component, ComponentExportKind,
    ComponentImportSection, ComponentInstanceSection, ComponentTypeRef, ComponentTypeSection,
    ComponentValType, ConstExpr, DataSection, Function, FunctionSection, InstanceSection,
    MemorySection, MemoryType, Module, ModuleArg, ModuleSection, NestedComponentSection,
    RawSection, TypeSection, ValType,
};

/// A component of one core module.
fn of(module: &Module) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    component.finish()
}

/// A core module of these functions, none of which takes or returns anything.
fn module(functions: &[Function]) -> Module {
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let (mut section, mut code) = (FunctionSection::new(), CodeSection::new());
    for function in functions {
        section.function(0);
        code.function(function);
    }
    let mut module = Module::new();
    module.section(&types).section(&section).section(&code);
    module
}

/// A function that moves values between its local variables: `moves` of them,
/// in a loop of its own each time that `per_loop` are through.
pub(crate) fn tangle(locals: u32, moves: u32, per_loop: u32) -> Function {
    let mut function = Function::new([(locals, ValType::I32)]);
    let mut tangled = function.instructions();
    let mut depth = 0;
    for n in 0..moves {
        if n % per_loop == 0 {
            tangled.loop_(BlockType::Empty);
            depth += 1;
        }
        tangled
            .local_get(n * 7 % locals)
            .local_get(n * 13 % locals)
            .i32_add()
            .local_set(n * 11 % locals);
    }
    for _ in 0..depth {
        tangled.local_get(0).br_if(0).end();
    }
    tangled.end();
    function
}

/// One function of 5,000 local variables in a loop, just below a megabyte.
pub(crate) fn locals() -> Vec<u8> {
    of(&module(&[tangle(5_000, 95_000, u32::MAX)]))
}

/// So many functions that do nothing.
pub(crate) fn functions(count: usize) -> Vec<u8> {
    let mut nothing = Function::new([]);
    nothing.instructions().nop().end();
    of(&module(&vec![nothing; count]))
}

/// Branch tables of half a million targets.
pub(crate) fn tables() -> Vec<u8> {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.block(BlockType::Empty);
    for _ in 0..55 {
        let targets: Vec<u32> = (0..10_000).map(|n| n % 2).collect();
        code.block(BlockType::Empty).i32_const(0).br_table(targets, 0).end();
    }
    code.end().end();
    of(&module(&[function]))
}

/// So many functions that cross between a component and a module.
pub(crate) fn crossings(count: u32) -> Vec<u8> {
    let mut types = ComponentTypeSection::new();
    types.function().params([] as [(&str, ComponentValType); 0]).result(None);
    let mut imports = ComponentImportSection::new();
    imports.import("f", ComponentTypeRef::Func(0));
    let mut lowered = CanonicalFunctionSection::new();
    for _ in 0..count {
        lowered.lower(0, []);
    }
    let mut component = Component::new();
    component.section(&types).section(&imports).section(&lowered);
    component.finish()
}

/// Two bytes of data so far apart, or data of so many bytes.
pub(crate) fn data(bytes: usize, dense: bool) -> Vec<u8> {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: (bytes as u64 >> 16) + 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut data = DataSection::new();
    let last = i32::try_from(bytes - 1).unwrap();
    if dense {
        data.active(0, &ConstExpr::i32_const(0), vec![7; bytes]);
    } else {
        data.active(0, &ConstExpr::i32_const(0), [7]);
        data.active(0, &ConstExpr::i32_const(last), [7]);
    }
    let mut module = Module::new();
    module.section(&memories).section(&data);
    of(&module)
}

/// Types of instances, so many in one another: few bytes each.
pub(crate) fn nested_types(depth: usize) -> Vec<u8> {
    // One type; of an instance, with one declaration, which is a type.
    let mut types = vec![1];
    types.extend([0x42, 1, 1].repeat(depth));
    types.extend([0x42, 0]);
    let mut component = Component::new();
    component.section(&RawSection { id: 7, data: &types });
    component.finish()
}

/// Components, so many in one another.
pub(crate) fn nested_components(depth: usize) -> Vec<u8> {
    let mut component = Component::new();
    for _ in 0..depth {
        let mut outer = Component::new();
        outer.section(&NestedComponentSection(&component));
        component = outer;
    }
    component.finish()
}

/// Components that instantiate the one within themselves many times each.
pub(crate) fn multiplied(depth: u32, times: u32) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(&module(&[tangle(10, 100, 10)])));
    let mut instances = InstanceSection::new();
    for _ in 0..times {
        instances.instantiate(0, [] as [(&str, ModuleArg); 0]);
    }
    component.section(&instances);
    for _ in 0..depth {
        let mut outer = Component::new();
        outer.section(&NestedComponentSection(&component));
        let mut instances = ComponentInstanceSection::new();
        for _ in 0..times {
            instances.instantiate(0, [] as [(&str, ComponentExportKind, u32); 0]);
        }
        outer.section(&instances);
        component = outer;
    }
    component.finish()
}

/// Functions within all limits that take some ten seconds each.
pub(crate) fn heavy(functions: usize) -> Vec<u8> {
    of(&module(&vec![tangle(1_900, 30_000, 100); functions]))
}
