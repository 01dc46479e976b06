//! `--user` and `--chroot` on this host's KVM.
//!
//! Only root can change its user. Without root, each test looks at the refusal instead.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use control::Client;
use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::confined::Running;

/// Any user but root.
const OTHER_USER: u32 = 65_534;
const USER: &str = "65534:65534";

fn hyprobe(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the command starts")
}

/// Whether this process is root. If not, checks that the command is refused.
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
        // A shell may have left the files open: the second file leads out of the new root.
        let open = ["/proc/self/status", "/"].map(|path| fs::File::open(path).expect("a file"));
        for file in &open {
            fcntl_setfd(file, FdFlags::empty()).expect("inherited");
        }
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
        drop(open);
        let outside = directories(pid).into_iter();
        let outside: Vec<_> = outside.filter(|path| path != Path::new(root)).collect();
        assert!(outside.is_empty(), "{outside:?} {sandbox:?}");

        let socket = running.folder.path().join("x.sock");
        let client = Client::new(&socket).expect("a client");
        client.command("stop").expect("stopped");
        let end = running.child.wait().expect("it ends");
        assert_eq!(end.code(), Some(0));
        let events = fs::metadata(running.folder.path().join("events")).expect("events");
        assert_eq!((events.uid(), events.mode() & 0o777), (0, 0o600));
        assert!(events.len() > 0);
    }
}

/// The directories opened by a process.
fn directories(pid: u32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("the command runs");
    let targets = open.map(|entry| entry.expect("a descriptor").path());
    let targets = targets.filter_map(|path| fs::read_link(path).ok());
    targets.filter(|target| target.is_dir()).collect()
}

/// A folder readable for all users, with a manifest whose expectation fails.
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
    assert_eq!((made.uid(), made.gid()), (OTHER_USER, OTHER_USER));
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
    // The new root is opened before the outputs are. A link of another user could lead to any directory.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/", &link).expect("a link");
    let (user, group) = (
        Some(Uid::from_raw(OTHER_USER)),
        Some(Gid::from_raw(OTHER_USER)),
    );
    chownat(CWD, &link, user, group, AtFlags::SYMLINK_NOFOLLOW).expect("given away");
    for root in ["m.toml", "link", "missing"] {
        let args = [
            "run", "m.toml", "--accel", "kvm", "--user", USER, "--chroot", root, "-o", "events",
        ];
        let output = hyprobe(folder.path(), &args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        let said = format!("cannot open the new root directory {root}");
        assert!(told.contains(&said), "{told}");
        assert!(!folder.path().join("events").exists());
    }
}

#[test]
fn path_that_the_user_cannot_use_is_refused_before_the_first_boot() {
    if !is_root() {
        return;
    }
    let folder = failing();
    let artifacts = folder.path().join("kept");
    fs::create_dir(&artifacts).expect("a folder");
    let args = [
        "test",
        "m.toml",
        "--accel",
        "kvm",
        "--user",
        USER,
        "--artifacts",
        "kept",
    ];
    let output = hyprobe(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("cannot write to the folder kept"), "{told}");

    let manifest = fs::read_to_string(folder.path().join("m.toml")).expect("a manifest");
    let manifest = manifest.replace("[guest]", "[guest]\nworkload = 'demo'");
    fs::write(folder.path().join("demo.toml"), manifest).expect("written");
    let args = ["test", "demo.toml", "--accel", "kvm", "--user", USER];
    let output = hyprobe(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("the image cache is not the user 65534's"),
        "{told}"
    );
}

#[test]
fn nested_run_is_refused_before_qemu_starts() {
    if !is_root() {
        return;
    }
    let folder = failing();
    let args = ["run", "m.toml", "--accel", "nested", "--user", USER];
    let output = hyprobe(folder.path(), &args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("--user is for runs on this host's KVM"),
        "{told}"
    );
    assert!(!told.contains("QEMU…"), "{told}");
}
