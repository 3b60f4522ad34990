//! The components that tests run.

use std::path::PathBuf;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A built component, by the name of its file.
pub(crate) fn component(name: &str) -> Vec<u8> {
    let path = root().join(format!("target/plugins/wasm32-wasip2/release/{name}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; `scripts/test` builds it", path.display()))
}

/// The component that does what an event's payload tells it.
pub(crate) fn probe() -> Vec<u8> {
    component("probe")
}

/// A fixture in the text format, encoded.
pub(crate) fn wat(name: &str) -> Vec<u8> {
    wat::parse_file(root().join("tests/guests/wat").join(name)).unwrap()
}

/// A hostile plugin, by the name of its file.
pub(crate) fn hostile(name: &str) -> Vec<u8> {
    let read = |name: &str| {
        let path = root().join("tests/hostile").join(name).with_extension("wat");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let text = read("component").replacen(";; MODULES", &read(name), 1);
    wat::parse_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}
