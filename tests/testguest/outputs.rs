//! Outputs and artifacts, and symbolic links in their way.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a kernel, and a manifest whose expectation fails.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest_images::build_testguest(&folder.path().join("guest"));
    let kernel = kernel.expect("the test guest compiles");
    let manifest = format!(
        "[guest]\nkernel = '{}'\nmemory = '64M'\ncmdline = 'run=calls=1'\n[[expect]]\nprobe = 'kprobe:fn_nop'\nnever = true\n",
        kernel.display()
    );
    fs::write(folder.path().join("m.toml"), manifest).expect("written");
    fs::write(folder.path().join("mine"), "mine").expect("written");
    symlink("mine", folder.path().join("link")).expect("link");
    folder
}

fn hyprobe(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hyprobe"))
        .args(args)
        .args(["--accel", "kvm"])
        .current_dir(folder)
        .output()
        .expect("the command starts")
}

#[test]
fn link_at_the_name_of_an_output_is_refused_before_the_boot() {
    let folder = folder();
    for args in [
        &["run", "m.toml", "--output", "link"][..],
        &["run", "m.toml", "--console", "link"],
        &["test", "m.toml", "--junit", "link"],
    ] {
        let output = hyprobe(folder.path(), args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("it is a symbolic link to \"mine\""), "{told}");
        assert!(told.contains("remove the link"), "{told}");
        let mine = fs::read_to_string(folder.path().join("mine"));
        assert_eq!(mine.expect("read"), "mine", "{args:?}");
    }
}

#[test]
fn link_below_the_artifacts_is_refused_and_the_verdict_is_printed() {
    let folder = folder();
    let (artifacts, elsewhere) = (folder.path().join("a"), folder.path().join("elsewhere"));
    fs::create_dir(&artifacts).expect("mkdir");
    fs::create_dir(&elsewhere).expect("mkdir");
    symlink(&elsewhere, artifacts.join("m")).expect("link");
    let output = hyprobe(folder.path(), &["test", "m.toml", "--artifacts", "a"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("cannot write the results to a/m"), "{told}");
    assert!(told.contains("it is a symbolic link to"), "{told}");
    let verdict = String::from_utf8_lossy(&output.stdout);
    assert!(verdict.contains("1 failed"), "{verdict}");
    assert_eq!(fs::read_dir(&elsewhere).expect("a directory").count(), 0);
}

#[test]
fn descriptors_devices_and_pipes_stay_outputs() {
    let folder = folder();
    for (output, lines) in [
        ("/dev/stdout", true),
        ("/dev/fd/1", true),
        ("/dev/null", false),
    ] {
        let args = [
            "run",
            "m.toml",
            "--console",
            "none",
            "--format",
            "json",
            "--output",
            output,
        ];
        let ran = hyprobe(folder.path(), &args);
        let told = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{told}");
        let written = String::from_utf8_lossy(&ran.stdout);
        let has_summary = written.contains("\"type\":\"summary\"");
        assert_eq!(has_summary, lines, "{output}: {written}");
    }
}

#[test]
fn files_of_an_earlier_failure_are_replaced_by_private_ones() {
    let folder = folder();
    let case = folder.path().join("hyprobe-artifacts/m");
    fs::create_dir_all(&case).expect("mkdir");
    let reasons = case.join("reasons.txt");
    fs::write(&reasons, "old").expect("written");
    fs::set_permissions(&reasons, PermissionsExt::from_mode(0o644)).expect("a mode");
    fs::write(case.join("crash.txt"), "old").expect("written");
    let output = hyprobe(folder.path(), &["test", "m.toml"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let mode = fs::metadata(&reasons).expect("kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        fs::read_to_string(&reasons)
            .expect("read")
            .contains("fn_nop")
    );
    assert!(
        !case.join("crash.txt").exists(),
        "the guest has not crashed"
    );
}
