//! The engine with a busy stock guest, nested: see `hyprobe_rigs::busy`.
//!
//! Built with the feature `test-nested`, which promises QEMU and a network or a filled image cache.

#![cfg(feature = "test-nested")]

use std::path::Path;
use std::time::Duration;

use hyprobe_rigs::launch::{self, Launch, Program};
use hyprobe_rigs::line::{Backend, Line};

fn check(image: &str, arguments: &[&str]) {
    let results = tempfile::tempdir().expect("tempdir");
    let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let busy = Path::new(env!("CARGO_BIN_EXE_busy"));
    let launch = Launch {
        backend: Backend::Nested,
        program: Program::Busy { image },
        programs: busy.parent().expect("it is in a directory"),
        results: results.path(),
        timeout: Duration::from_secs(280),
        arguments: &arguments,
    };
    let report = |line: &Line| println!("{line:?}");
    let launched = launch::run(&launch, &report).expect("the last line comes out");
    assert_eq!((launched.cases, launched.failed), (1, 0));
}

#[test]
fn every_call_of_a_function_that_many_tasks_sleep_in_is_accounted_for_in_debian_6_1() {
    check("debian-6.1", &["--only", "returns"]);
}

#[test]
fn every_call_of_a_function_that_many_tasks_sleep_in_is_accounted_for_in_debian_sid() {
    check("debian-sid", &["--only", "returns"]);
}

#[test]
fn long_pauses_are_no_lockups() {
    check("debian-6.1", &["--only", "pauses"]);
}

#[test]
fn probe_in_a_program_comes_and_goes_and_leaves_nothing() {
    check("debian-6.1", &["--only", "program", "--cycles", "100"]);
}

#[test]
fn probes_come_and_go_and_no_hit_is_lost() {
    check("debian-6.1", &["--only", "soak", "--seconds", "20"]);
}

#[test]
fn jumps_come_and_go_too() {
    check(
        "debian-6.1",
        &[
            "--only",
            "soak",
            "--optimise",
            "--most",
            "1000",
            "--seconds",
            "20",
        ],
    );
}

#[test]
fn jumps_on_hundreds_of_hot_functions_are_switched_and_no_hit_is_lost() {
    check("debian-6.1", &["--only", "hot", "--seconds", "20"]);
}
