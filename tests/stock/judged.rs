//! `hyprobe test` on stock kernels, nested: the manifests shipped with hyprobe pass, and a kernel's panic leaves the artifacts that
//! explain the panic.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::turns::Turn;

fn test(folder: &Path, manifests: &Path) -> Output {
    // The command uses both processors, so the test takes both turns.
    let turns = [Turn::take(), Turn::take()];
    let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .current_dir(folder)
        .arg("test")
        .arg(manifests)
        .args(["--json", "--accel", "nested", "--junit", "junit.xml"])
        .output();
    drop(turns);
    output.expect("the command starts")
}

fn cases(output: &Output) -> Vec<Value> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    stdout.lines().map(parse).collect()
}

#[test]
fn the_manifests_that_come_along_pass() {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest-images/tests");
    let there = std::fs::read_dir(&manifests)
        .expect("folder")
        .filter(|entry| {
            let path = entry.as_ref().expect("entry").path();
            path.extension()
                .is_some_and(|extension| extension == "toml")
        });
    let there = there.count();
    let folder = tempfile::tempdir().expect("tempdir");
    let output = test(folder.path(), &manifests);
    let cases = cases(&output);
    for case in &cases {
        assert_eq!(case["outcome"], "passed", "{case}");
        assert!(
            case["expectations"]
                .as_array()
                .is_some_and(|all| all.len() >= 4)
        );
    }
    assert_eq!((output.status.code(), cases.len()), (Some(0), there));
    assert!(there >= 5);
    let junit = std::fs::read_to_string(folder.path().join("junit.xml")).expect("written");
    assert!(
        junit.contains(&format!("tests=\"{there}\" failures=\"0\" errors=\"0\"")),
        "{junit}"
    );
}

/// The kernel finds neither an init nor a root.
#[test]
fn a_panic_is_kept_with_registers_and_stack() {
    let folder = tempfile::tempdir().expect("tempdir");
    let manifest = folder.path().join("panic.toml");
    let text = "
        [guest]
        image = 'debian-6.1'
        cmdline = 'console=ttyS0 loglevel=4 panic=-1 rdinit=/no/such/init root=/dev/none'
        [run]
        timeout = '280s'
        [[expect]]
        end = 'poweroff'
        [[expect]]
        probe = 'kprobe:panic'
        exactly = 1
    ";
    std::fs::write(&manifest, text).expect("write");
    let output = test(folder.path(), &PathBuf::from("panic.toml"));
    assert_eq!(output.status.code(), Some(1));
    let case = &cases(&output)[0];
    let reasons = case["reasons"].as_array().expect("reasons");
    assert_eq!(reasons.len(), 1, "{case}");
    let reason = reasons[0].as_str().expect("text");
    assert!(reason.contains("it ended by panic"), "{reason}");
    let crash = &case["summary"]["guest"]["crash"];
    assert_eq!(crash["task"], "swapper/0", "{crash}");
    let frames = crash["frames"].as_array().expect("frames");
    let is_in = |function: &str| {
        let mut symbols = frames.iter().filter_map(|frame| frame["symbol"].as_str());
        symbols.any(|symbol| symbol.starts_with(&format!("{function}+")))
    };
    assert!(is_in("mount_block_root") || is_in("mount_root"), "{crash}");
    assert!(is_in("ret_from_fork"), "{crash}");
    let kept = folder.path().join("hyprobe-artifacts/panic");
    let crash = std::fs::read_to_string(kept.join("crash.txt")).expect("kept");
    assert!(
        crash.contains("task swapper/0") && crash.contains("ret_from_fork+"),
        "{crash}"
    );
    let console = std::fs::read_to_string(kept.join("console.log")).expect("kept");
    assert!(
        console.contains("Kernel panic - not syncing: VFS"),
        "{console}"
    );
}

/// Crashes at the first start, before the outer Linux is up.
const CRASHES_ONCE: &str = r#"#!/bin/sh
case "$*" in --version | *help) exec qemu-system-x86_64 "$@" ;; esac
if mkdir "$0.tried" 2>/dev/null; then
    echo 'Assertion `x < y` failed.' >&2
    kill -ABRT $$
fi
exec qemu-system-x86_64 "$@"
"#;

/// If a case passes at the second start of QEMU, the text output and the JUnit file report the restart.
#[test]
fn restart_of_qemu_is_reported() {
    let folder = tempfile::tempdir().expect("tempdir");
    let qemu = folder.path().join("qemu");
    std::fs::write(&qemu, CRASHES_ONCE).expect("written");
    std::fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).expect("executable");
    let manifest = folder.path().join("boot.toml");
    let text =
        "[guest]\nimage = 'debian-6.1'\n[run]\ntimeout = '100s'\n[[expect]]\nend = 'poweroff'\n";
    std::fs::write(&manifest, text).expect("written");
    let turn = Turn::take();
    let output = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .current_dir(folder.path())
        .env("HYPROBE_QEMU", &qemu)
        .args([
            "test",
            "boot.toml",
            "--accel",
            "nested",
            "--junit",
            "junit.xml",
            // The script in QEMU's place leaves a mark in the script's folder.
            "--no-sandbox",
        ])
        .output();
    drop(turn);
    let output = output.expect("the command starts");
    let words = String::from_utf8_lossy(&output.stdout);
    let junit = std::fs::read_to_string(folder.path().join("junit.xml")).expect("written");
    assert_eq!(output.status.code(), Some(0), "{words}{output:?}");
    let assertion = "QEMU was started again: QEMU ended after ";
    for text in [&*words, &*junit] {
        assert!(text.contains(assertion), "{text}");
        assert!(text.contains("signal: 6 (SIGABRT)"), "{text}");
        assert!(text.contains("failed.)"), "{text}");
    }
}
