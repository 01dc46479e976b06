//! Benchmarks of symbol names: the cost for a hit, for a report and for the start of a run.
//!
//! `HYPROBE_TEST_KERNELS` lists decompressed kernels, separated by colons; the benchmark reads the first from the file. Without the
//! variable, the benchmark measures only a table of a stock kernel's size.

use std::hint::black_box;

use address::Gva;
use criterion::{Criterion, criterion_group, criterion_main};
use introspect::{KernelImage, PatchSites, SymbolTable, SymbolTableBuilder, kallsyms};

const KERNELS: &str = "HYPROBE_TEST_KERNELS";
const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const SYMBOLS: u64 = 100_000;
const FUNCTION_BYTES: u64 = 192;
/// The stride does not divide the number of symbols, so consecutive look-ups use different addresses.
const STRIDE: u64 = 48_271;

fn table() -> SymbolTable {
    let mut builder = SymbolTableBuilder::new();
    for index in 0..SYMBOLS {
        let at = TEXT.wrapping_add(index * FUNCTION_BYTES);
        builder.push(at, 'T', &format!("function_{index}"));
    }
    builder.build()
}

fn lookups(criterion: &mut Criterion) {
    let symbols = table();
    let mut index = 0;
    criterion.bench_function("the function that an address is in", |bencher| {
        bencher.iter(|| {
            index = (index + STRIDE) % SYMBOLS;
            let at = TEXT.wrapping_add(index * FUNCTION_BYTES + FUNCTION_BYTES / 2);
            symbols.resolve(black_box(at)).expect("it is in one")
        });
    });
    criterion.bench_function("the address of a name", |bencher| {
        bencher.iter(|| {
            symbols
                .address_of(black_box("function_77777"))
                .expect("known")
        });
    });
}

fn kernel(criterion: &mut Criterion) {
    let list = std::env::var(KERNELS).unwrap_or_default();
    let Some(path) = list.split(':').find(|path| !path.is_empty()) else {
        eprintln!("left out: {KERNELS} lists no kernels");
        return;
    };
    let bytes = std::fs::read(path).expect("the kernel's file");
    let image = KernelImage::parse(bytes).expect("a kernel");
    let symbols = kallsyms::from_image(&image).expect("its symbols");
    let mut group = criterion.benchmark_group("a kernel's file");
    group.sample_size(10);
    group.bench_function("kallsyms", |bencher| {
        bencher.iter(|| kallsyms::from_image(black_box(&image)).expect("its symbols"));
    });
    group.bench_function("places that it patches itself", |bencher| {
        bencher.iter(|| PatchSites::read(black_box(&image), &symbols));
    });
}

criterion_group!(benches, lookups, kernel);
criterion_main!(benches);
