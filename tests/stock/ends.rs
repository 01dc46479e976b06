//! Bad ends of a guest: the exit code and the summary name the end.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};

const IMAGE: &str = "debian-6.1";

#[test]
fn guest_panic_is_reported() {
    let stock = Stock::fetch(IMAGE);
    let ran = Boot::new(&stock, "opens=7 end=exit")
        .probe("kprobe:do_sys_openat2")
        .run();
    assert_eq!(ran.code, Some(4), "{}", ran.report());
    assert!(ran.console.contains("Kernel panic"), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Panic);
    let log = summary.guest.log.as_ref().expect("the log");
    let said = |line: &str| line.contains("Kernel panic - not syncing");
    assert!(log.text.lines().any(said), "{log:?}");
    let detail = summary.guest.detail.as_deref().unwrap_or_default();
    assert!(detail.contains("kill init"), "{detail}");
    assert_eq!(
        probe(&summary, "kprobe:do_sys_openat2").hits,
        ran.counts().openat
    );
}

#[test]
fn timeout_is_reported() {
    let stock = Stock::fetch(IMAGE);
    // The workload repeats the same calls for far longer than the timeout.
    let ran = Boot::new(&stock, "getpids=1 repeat=1000000 pause=1")
        .probe("kprobe:__x64_sys_getpid")
        .option("--timeout", "10s")
        .run();
    assert_eq!(ran.code, Some(5), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Timeout);
    assert!(summary.ran_ns >= 10_000_000_000, "{} ns", summary.ran_ns);
}

/// An event forbidden by `never` might have happened later.
#[test]
fn a_run_that_a_signal_ends_is_not_judged() {
    let stock = Stock::fetch(IMAGE);
    let mut running = Boot::new(&stock, "getpids=1 repeat=1000000 pause=1")
        .expecting(
            "[[expect]]\nprobe = 'kprobe:panic'\nnever = true\n\
             [[expect]]\nconsole = 'workload: done'\n",
        )
        .start();
    running.wait_for_console("workload: start");
    running.terminate();
    for file in ["events", "console"] {
        let metadata = std::fs::metadata(running.folder().join(file)).expect("it is written");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
    }
    let ran = running.finish();
    assert_eq!(ran.code, Some(6), "{}", ran.report());
    assert_eq!(ran.summary().guest.end, GuestEnd::Stopped);
    let told = ran.report();
    assert!(told.contains("the run was interrupted"), "{told}");
    assert!(!told.contains("expectation"), "{told}");
}

/// The events fill the pipe, the queues of both Linuxes and the guest's ring; with the ring full, the probe's hits exit.
#[test]
fn run_with_unread_events_ends_at_its_timeout_and_counts_them() {
    let stock = Stock::fetch(IMAGE);
    let began = Instant::now();
    // On a busy host the kernel alone takes 20 s to boot.
    let ran = Boot::new(&stock, "getpids=100000 repeat=1000000")
        .probe("kprobe:__x64_sys_getpid")
        .option("--timeout", "40s")
        .unread()
        .run();
    let took = began.elapsed();
    let told = ran.report();
    assert_eq!(ran.code, Some(3), "{told}");
    let (_, lost) = told.split_once("was not read for 30 s: ").expect(&told);
    let (lost, _) = lost.split_once(' ').expect(&told);
    let lost: u64 = lost.parse().expect(&told);
    // A pipe holds some hundred.
    assert!(lost > 5000, "{told}");
    assert!(took < Duration::from_secs(200), "{took:?}: {told}");
}

/// A line of the log without the time.
fn after_time(line: &str) -> &str {
    line.split_once("] ").map_or(line, |(_, text)| text)
}

#[test]
fn halted_guest_is_reported_with_the_stacks_of_its_vcpus() {
    let stock = Stock::fetch(IMAGE);
    let script = "#!/bin/busybox sh\n/bin/busybox halt -f\n";
    let ran = Boot::with_script(&stock, script).cpus(2).run();
    let guest = ran.summary().guest;
    assert_eq!(guest.end, GuestEnd::Halted, "{}", ran.report());
    let [first, second] = &guest.vcpus[..] else {
        panic!("{guest:?}")
    };
    let frames = first
        .stack
        .iter()
        .filter_map(|frame| frame.symbol.as_deref());
    let frames: Vec<_> = frames.collect();
    assert!(frames[0].starts_with("stop_this_cpu+"), "{frames:?}");
    let called = |name| frames.iter().any(|frame| frame.starts_with(name));
    assert!(called("__do_sys_reboot+"), "{frames:?}");
    assert_eq!(first.task.as_ref().map(|task| &*task.comm), Some("busybox"));
    for vcpu in [first, second] {
        assert_eq!(vcpu.stack_incomplete, None, "{vcpu:?}");
    }
    let log = guest.log.as_ref().expect("the log");
    assert_eq!((log.left_out, &log.missing), (0, &None));
    assert_eq!(
        log.text.lines().last().map(after_time),
        Some("reboot: System halted")
    );
    // The interrupt of the halt has met an idle processor.
    let idle = second
        .stack
        .iter()
        .filter_map(|frame| frame.symbol.as_ref());
    let has = |name| idle.clone().any(|frame| frame.starts_with(name));
    assert!(has("asm_sysvec_reboot+") && has("do_idle+"), "{second:?}");
}

#[test]
fn a_console_that_cannot_be_written_is_a_failure_and_the_events_are_whole() {
    let stock = Stock::fetch(IMAGE);
    let ran = Boot::new(&stock, "getpids=10")
        .probe("kprobe:__x64_sys_getpid")
        .console_at("/dev/full")
        .run();
    assert_eq!(ran.code, Some(3), "{}", ran.report());
    let told = ran.report();
    assert!(told.contains("cannot write to /dev/full: "), "{told}");
    assert!(told.contains(" bytes are lost: No space left"), "{told}");
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert!(probe(&summary, "kprobe:__x64_sys_getpid").hits >= 10);
}

#[test]
fn system_management_interrupt_is_reported() {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest_images::build_testguest(folder.path()).expect("the test guest compiles");
    let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .args([
            "run",
            "--accel",
            "nested",
            "--memory",
            "64M",
            "--console",
            "none",
            "--timeout",
            "60s",
        ])
        .args(["--cmdline", "run=calls=1,smi", "--kernel"])
        .arg(kernel)
        .output()
        .expect("the command starts");
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(
        told.contains("vCPU 0 a system-management interrupt"),
        "{told}"
    );
}
