//! The symbol tables in a kernel's file.

#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

use address::{Gpa, Gva};
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::image::Segment;
use introspect::image::synthetic::elf;
use introspect::kallsyms::from_image;
use introspect::kallsyms::synthetic::{LAYOUTS, TEXT, kernel, symbols};
use introspect::{KernelImage, KernelLayout, SymbolTable};

/// The address of the tables.
const RODATA: Gva = Gva(0xffff_ffff_8240_0000);
const RODATA_GPA: Gpa = Gpa(0x240_0000);
/// The least number of functions with two markers of 256 names.
const FUNCTIONS: u64 = 500;

/// A kernel of each layout. Only every 50th name is long, because the time for an input depends mostly on the length of the names.
static KERNELS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let kernels = LAYOUTS.map(|layout| {
        let mut symbols = symbols(layout, FUNCTIONS);
        for (number, (_, _, name)) in symbols.iter_mut().enumerate() {
            name.truncate(if number % 50 == 0 { 400 } else { 14 });
        }
        kernel(layout, RODATA, TEXT, &symbols)
    });
    kernels.to_vec()
});

/// Which layout, and the changes to the tables and the bytes around.
#[derive(Arbitrary, Debug)]
struct Case {
    layout: u8,
    changes: Vec<Damage>,
}

fuzz_target!(|case: Case| {
    let mut bytes = KERNELS[usize::from(case.layout) % LAYOUTS.len()].clone();
    for change in &case.changes {
        change.apply(&mut bytes, RODATA.0);
    }
    let segment = Segment {
        file_offset: 0,
        file_size: 0,
        memory_size: bytes.len() as u64,
        physical: RODATA_GPA,
        virt: RODATA,
    };
    let image = KernelImage::parse(elf(RODATA_GPA.0, &[(segment, &bytes)]));
    match from_image(&image.expect("an ELF file")) {
        Ok(table) => check(&table),
        Err(error) => assert!(!case.changes.is_empty(), "{error}"),
    }
});

fn check(table: &SymbolTable) {
    let _ = KernelLayout::from_symbols(table);
    for symbol in table.iter().take(50) {
        assert!(symbol.name.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(table.lookup_all(&symbol.name).contains(&symbol));
        let _ = symbol.end();
        if let Some(found) = table.resolve(symbol.address) {
            assert!(found.symbol.address <= symbol.address);
        }
    }
    let _ = table.matching("vfs_*").count();
    assert_eq!(table.rebased(-0x1000).len(), table.len());
}
