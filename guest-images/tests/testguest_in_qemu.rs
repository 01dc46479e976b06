//! The test guest in QEMU's TCG, without hyprobe: the reference for the results of the probed test guest.

use std::process::{Command, Stdio};

use hyprobe_guest_images::build_testguest;
use hyprobe_guest_images::testguest::{Outcome, text_checksum};

struct Run {
    console: String,
    /// Exit code of the guest; `None` if QEMU did not end through the debug-exit port.
    code: Option<i32>,
    checksum: u64,
}

fn boot(command_line: &str) -> Run {
    let dir = tempfile::tempdir().expect("tempdir");
    let guest = build_testguest(dir.path()).expect("the test guest compiles");
    let output = Command::new("timeout")
        .args([
            "60",
            "qemu-system-x86_64",
            "-machine",
            "q35",
            "-cpu",
            "max",
            "-smp",
            "2",
        ])
        .args([
            "-accel",
            "tcg,thread=multi",
            "-m",
            "64",
            "-nodefaults",
            "-display",
            "none",
        ])
        .args([
            "-serial",
            "stdio",
            "-no-reboot",
            "-device",
            "isa-debug-exit,iobase=0xf4",
        ])
        .args(["-append", command_line, "-kernel"])
        .arg(&guest)
        .stdin(Stdio::null())
        .output()
        .expect("timeout is part of coreutils");
    let code = output.status.code();
    assert_ne!(
        code,
        Some(127),
        "no qemu-system-x86_64: apt-get install qemu-system-x86"
    );
    assert_ne!(
        code,
        Some(124),
        "no end within 60 s: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    Run {
        console: String::from_utf8(output.stdout).expect("text"),
        code: code.filter(|code| code & 1 == 1).map(|code| code >> 1),
        checksum: text_checksum(&std::fs::read(guest).expect("read")).expect("text"),
    }
}

#[test]
fn every_scenario_passes_and_counts() {
    let run = boot(
        "run=checksum,calls=20,recurse=5,flags,selfpatch,int3=4,fault=3,ring3=6,syscall=7,smp=50,\
         msr,checksum",
    );
    let outcome = Outcome::from_console(&run.console);
    assert!(outcome.is_good(), "{}", run.console);
    assert_eq!(run.code, Some(0));
    let passed: Vec<_> = outcome
        .passed
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        passed,
        [
            "checksum",
            "calls",
            "recurse",
            "flags",
            "selfpatch",
            "int3",
            "fault",
            "ring3",
            "syscall",
            "smp",
            "msr",
            "checksum"
        ]
    );
    assert_eq!(outcome.passed[0].1["sum"], format!("{:#x}", run.checksum));
    // 20 rounds of `calls` and 50 by each of two processors.
    for (function, count) in [
        ("fn_nop", 120),
        ("fn_ret", 120),
        ("fn_loop", 360),
        ("fn_callee", 240),
        ("fn_pushf", 128),
        ("fn_recurse", 6),
        ("fn_patched", 30),
        ("fn_int3", 4),
        ("fn_fault", 3),
        ("fn_syscall", 7),
        ("user_main", 1),
        ("user_int3", 6),
        ("user_syscall", 7),
    ] {
        assert_eq!(outcome.counts.get(function), Some(&count), "{function}");
    }
}

#[test]
fn test_guest_ends_as_requested() {
    assert_eq!(boot("run=exit=7").code, Some(7));
    let reset = boot("run=checksum exit=reset");
    assert_eq!(reset.code, None);
    assert!(
        Outcome::from_console(&reset.console).is_good(),
        "{}",
        reset.console
    );
    let triple = boot("run=triple");
    assert!(
        !Outcome::from_console(&triple.console).ended,
        "{}",
        triple.console
    );
}

#[test]
fn unknown_scenarios_and_values_are_failures() {
    let run = boot("run=nonsense,recurse=x,recurse=3");
    let outcome = Outcome::from_console(&run.console);
    assert_eq!(
        (outcome.failures.len(), outcome.passed.len()),
        (2, 1),
        "{}",
        run.console
    );
    assert_eq!(run.code, Some(2));
}
