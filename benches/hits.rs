//! Benchmarks of the work at every hit: the look-up of a plant by address, and the reading of the detours' records.
//!
//! Both are internals of the crate `probes`, exported only by the feature `bench-internals`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use probes::bench::{Plants, Records};

/// A plant on every second page, each at another offset in the page: as with a probe on every function.
const STEP_BYTES: u64 = 0x2000 + 16;
/// The stride divides none of the counts below, so consecutive look-ups use different plants.
const STRIDE: u64 = 7_919;

fn lookups(criterion: &mut Criterion) {
    for count in [10, 40_000] {
        let plants = Plants::new(count, STEP_BYTES);
        let mut number = 0;
        let mut next = move || {
            number = (number + STRIDE) % count;
            Plants::at(number, STEP_BYTES)
        };
        let mut group = criterion.benchmark_group(format!("{count} plants"));
        group.bench_function("an address with one", |bencher| {
            bencher.iter(|| assert!(plants.has(black_box(next()))));
        });
        // A plant on another page has the same offset.
        group.bench_function("an address without", |bencher| {
            bencher.iter(|| assert!(!plants.has(black_box(next().wrapping_add(0x1000)))));
        });
        group.bench_function("an address with an offset that none has", |bencher| {
            bencher.iter(|| assert!(!plants.has(black_box(next().wrapping_add(1)))));
        });
    }
}

fn records(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("records taken out");
    for count in [1, 100, 7_000] {
        let records = Records::new();
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("{count}"), |bencher| {
            bencher.iter_batched(
                || records.leave(count),
                |()| assert_eq!(records.take_out().expect("memory"), count),
                BatchSize::PerIteration,
            );
        });
    }
}

criterion_group!(benches, lookups, records);
criterion_main!(benches);
