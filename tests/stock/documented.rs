//! The tests that `docs/kernels.md` names.

use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/kernels.md");

#[test]
fn every_test_in_the_table_of_kernels_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock");
    let named = PAGE.split('`').skip(1).step_by(2);
    let mut tests = 0;
    for (module, name) in named.filter_map(|text| text.split_once("::")) {
        let source = fs::read_to_string(folder.join(module).with_extension("rs"));
        let source = source.unwrap_or_else(|error| panic!("{module}::{name}: {error}"));
        let test = format!("#[test]\nfn {name}() {{");
        assert!(source.contains(&test), "{module}::{name}");
        tests += 1;
    }
    assert!(tests > 30, "{tests}");
}
