//! The engine with a stock guest that changes its own kernel under the probes, nested: see `hyprobe_rigs::ground`.
//!
//! Built with the feature `test-nested`, which promises QEMU and a network or a filled image cache.

#![cfg(feature = "test-nested")]

use std::path::Path;
use std::time::Duration;

use hyprobe_rigs::launch::{self, Launch, Program};
use hyprobe_rigs::line::{Backend, Line};

fn check(event: &str) {
    let results = tempfile::tempdir().expect("tempdir");
    let arguments = ["--only", event].map(str::to_owned);
    let ground = Path::new(env!("CARGO_BIN_EXE_ground"));
    let launch = Launch {
        backend: Backend::Nested,
        program: Program::Ground {
            image: "debian-6.1",
        },
        programs: ground.parent().expect("it is in a directory"),
        results: results.path(),
        timeout: Duration::from_secs(520),
        arguments: &arguments,
    };
    let report = |line: &Line| println!("{line:?}");
    let launched = launch::run(&launch, &report).expect("the last line comes out");
    assert_eq!((launched.cases, launched.failed), (1, 0));
}

#[test]
fn same_kernel_started_by_kexec_is_probed_again_and_counts_are_exact() {
    check("kexec");
}

#[test]
fn crash_kernel_runs_to_its_end_and_counts_are_exact() {
    check("crash");
}

#[test]
fn modules_come_and_go_with_return_probes_in_flight() {
    check("modules");
}
