//! The rights of the command and of QEMU.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::boot::{Boot, Stock};

/// The values of `field` in the status of each thread of the process `pid`.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process goes on");
    let values = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    });
    values.collect()
}

fn children(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("there is /proc");
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |child: &u32| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent.is_some_and(|parent| parent.trim() == pid.to_string())
    };
    numbers.filter(is_child).collect()
}

#[test]
fn all_threads_of_the_command_and_of_qemu_gain_no_rights_and_filter_their_calls() {
    let stock = Stock::fetch("debian-6.1");
    let mut running = Boot::new(&stock, "getpids=1 repeat=1000000 pause=1")
        .probe("kprobe:__x64_sys_getpid")
        .start();
    running.wait_for_console("start");
    let command = running.pid();
    let [qemu] = children(command)[..] else {
        panic!("one QEMU: {:?}", children(command));
    };
    for pid in [command, qemu] {
        let values = of_threads(pid, "NoNewPrivs");
        assert!(values.len() > 2, "{values:?}");
        assert!(values.iter().all(|value| value == "1"), "{values:?}");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
        let core = limits.lines().find(|line| line.starts_with("Max core"));
        let core = core.expect("a limit of core files");
        assert_eq!(core.split_whitespace().nth(4), Some("1"), "{core}");
    }
    for pid in [command, qemu] {
        let filters = of_threads(pid, "Seccomp");
        assert!(filters.len() > 2, "{filters:?}");
        assert!(filters.iter().all(|value| value == "2"), "{filters:?}");
    }
    running.terminate();
    running.finish();
}

/// A script in QEMU's place: the program tries to read the file beside the program, and prints the result.
const READS: &str = r#"#!/bin/sh
case "$*" in --version | *help) exec qemu-system-x86_64 "$@" ;; esac
if cat "$0.secret"; then echo 'it was read' >&2; else echo 'it was refused' >&2; fi
exit 7
"#;

#[test]
fn qemu_reads_no_file_of_the_user() {
    for (options, said) in [
        (&[][..], "it was refused"),
        (&["--no-sandbox"], "it was read"),
    ] {
        let folder = tempfile::tempdir().expect("tempdir");
        let qemu = folder.path().join("qemu");
        fs::write(&qemu, READS).expect("written");
        fs::write(folder.path().join("qemu.secret"), "a secret").expect("written");
        fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).expect("executable");
        let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .env("HYPROBE_QEMU", &qemu)
            .args([
                "run",
                "--image",
                "debian-6.1",
                "--accel",
                "nested",
                "--console",
                "none",
            ])
            .args(options)
            .output()
            .expect("the command starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains(said), "{told}");
    }
}
