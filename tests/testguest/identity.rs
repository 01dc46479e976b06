//! `--user` and `--chroot` on this host's KVM.
//!
//! Only root can change its user. Without root, each test looks at the refusal instead.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use control::Client;
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::confined::Running;

/// Any user but root.
const NOBODY: u32 = 65_534;
const USER: &str = "65534:65534";

fn hyprobe(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the command starts")
}

/// Whether this process is root. If it is not, the command is refused: that is looked at here.
fn is_root() -> bool {
    if geteuid().is_root() {
        return true;
    }
    let folder = tempfile::tempdir().expect("tempdir");
    for command in ["run", "test"] {
        let output = hyprobe(folder.path(), &[command, "x.toml", "--user", USER]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("only root can do that"), "{told}");
    }
    false
}

/// The status of each thread of a process.
fn statuses(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the command runs");
    let statuses =
        tasks.map(|task| fs::read_to_string(task.expect("a task").path().join("status")));
    statuses.map(|status| status.expect("a status")).collect()
}

fn field<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.expect("a field").split_whitespace().collect()
}

#[test]
fn run_of_root_becomes_the_user_in_the_new_root_and_root_controls_it() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().expect("tempdir");
    let root = root.path().to_str().expect("UTF-8");
    for sandbox in [&[][..], &["--no-sandbox"]] {
        let options = [&["--user", USER, "--chroot", root, "-o", "events"], sandbox].concat();
        let mut running = Running::start(&options);
        let pid = running.child.id();
        let all = statuses(pid);
        assert!(all.len() > 5, "{all:?}");
        for status in &all {
            assert_eq!(field(status, "Uid:"), ["65534"; 4], "{status}");
            assert_eq!(field(status, "Gid:"), ["65534"; 4], "{status}");
            assert!(field(status, "Groups:").is_empty(), "{status}");
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_eq!(field(status, set), ["0000000000000000"], "{status}");
            }
        }
        let seen = fs::read_link(format!("/proc/{pid}/root")).expect("a root");
        assert_eq!(seen, Path::new(root));
        let seen = fs::read_link(format!("/proc/{pid}/cwd")).expect("a directory");
        assert_eq!(seen, Path::new(root));

        let socket = running.folder.path().join("x.sock");
        let mut client = Client::new(&socket).expect("a client");
        client.command("stop").expect("stopped");
        let end = running.child.wait().expect("it ends");
        assert_eq!(end.code(), Some(0));
        let events = fs::metadata(running.folder.path().join("events")).expect("events");
        assert_eq!((events.uid(), events.mode() & 0o777), (0, 0o600));
        assert!(events.len() > 0);
    }
}

/// A folder that anybody can read, with a manifest whose expectation does not hold.
fn failing() -> TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest_images::build_testguest(&folder.path().join("guest"));
    let kernel = kernel.expect("the test guest compiles");
    let manifest = format!(
        "[guest]\nkernel = '{}'\nmemory = '64M'\ncmdline = 'run=calls=1'\n[[expect]]\nprobe = 'kprobe:fn_nop'\nnever = true\n",
        kernel.display()
    );
    fs::write(folder.path().join("m.toml"), manifest).expect("written");
    allow(folder.path(), 0o755);
    folder
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
}

#[test]
fn test_of_root_keeps_the_artifacts_as_the_user() {
    if !is_root() {
        return;
    }
    let folder = failing();
    let args = ["test", "m.toml", "--accel", "kvm", "--user", USER];
    let output = hyprobe(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let reasons = folder.path().join("hyprobe-artifacts/m/reasons.txt");
    let made = fs::metadata(&reasons).expect("kept");
    assert_eq!((made.uid(), made.gid()), (NOBODY, NOBODY));
    assert!(
        fs::read_to_string(&reasons)
            .expect("read")
            .contains("fn_nop")
    );

    // Each boot reads the kernel again.
    allow(folder.path(), 0o700);
    let output = hyprobe(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("the user 65534 cannot read"), "{told}");
}

#[test]
fn combinations_that_cannot_work_are_refused() {
    if !is_root() {
        return;
    }
    let folder = failing();
    for (args, said) in [
        (
            &["test", "m.toml", "--user", USER, "--chroot", "/"][..],
            "--chroot is for `hyprobe run`",
        ),
        (
            &["run", "m.toml", "--user", "root", "--accel", "kvm"],
            "is root, and would keep the rights of root",
        ),
        (&["run", "m.toml", "--chroot", "/"], "--user <USER[:GROUP]>"),
    ] {
        let output = hyprobe(folder.path(), args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    }
    // The chroot fails: hyprobe does not run on as root.
    let args = [
        "run", "m.toml", "--accel", "kvm", "--user", USER, "--chroot", "m.toml",
    ];
    let output = hyprobe(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(
        told.contains("cannot make m.toml the root directory"),
        "{told}"
    );
}
