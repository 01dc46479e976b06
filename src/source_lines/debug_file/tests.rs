use std::fs;

use errors::chain;

use super::*;

const RELEASE: &str = "6.1.0-50-cloud-amd64";

fn kernel(own: Option<(PathBuf, &[u8])>) -> KernelIdentity<'_> {
    KernelIdentity {
        build_id: Some("00ab12".to_owned()),
        banner: Some(format!("Linux version {RELEASE} (debian-kernel@lists")),
        own,
    }
}

#[test]
fn damaged_file_is_named_with_the_cause() {
    let dir = tempfile::tempdir().expect("tempdir");
    let damaged = dir.path().join("damaged");
    fs::write(&damaged, "no ELF file").expect("written");
    let paths = [damaged.clone(), dir.path().join("missing")];
    let error = among(&paths, &kernel(None), "kprobe:a.c:1").expect_err("no file");
    let told = chain(&error);
    let path = damaged.display().to_string();
    assert!(told.contains(&path), "{told}");
    assert!(told.contains("not a readable 64-bit ELF file"), "{told}");
    let help = error.help().expect("help");
    let again = format!("install Debian's linux-image-{RELEASE}-dbg again");
    assert!(help.starts_with(&again), "{help}");
}

#[test]
fn unreadable_file_is_named_with_the_cause() {
    let dir = tempfile::tempdir().expect("tempdir");
    let error = among(&[dir.path().to_owned()], &kernel(None), "kprobe:a.c:1");
    let error = error.expect_err("a directory");
    let told = chain(&error);
    assert!(told.contains("not a regular file"), "{told}");
}

#[test]
fn file_of_another_kernel_is_named() {
    let dir = tempfile::tempdir().expect("tempdir");
    let guest = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
    let error = among(&[guest], &kernel(None), "kprobe:a.c:1").expect_err("another kernel");
    let told = chain(&error);
    assert!(told.contains("belongs to another kernel"), "{told}");
    assert!(told.contains("00ab12"), "{told}");
}

#[test]
fn files_that_do_not_exist_are_missing() {
    let dir = tempfile::tempdir().expect("tempdir");
    fs::write(dir.path().join("file"), "").expect("written");
    let paths = ["missing", "file/below"].map(|name| dir.path().join(name));
    let error = among(&paths, &kernel(None), "kprobe:a.c:1").expect_err("no file");
    assert!(matches!(error, DebugFileError::Missing { .. }), "{error:?}");
}

#[test]
fn kernel_without_debug_information_of_its_own_leaves_the_file_missing() {
    let dir = tempfile::tempdir().expect("tempdir");
    let bzimage = dir.path().join("vmlinuz");
    fs::write(&bzimage, "compressed").expect("written");
    let kernel = kernel(Some((bzimage.clone(), b"an ELF file")));
    let error = among(&[bzimage], &kernel, "kprobe:a.c:1").expect_err("no file");
    assert!(matches!(error, DebugFileError::Missing { .. }), "{error:?}");
}
