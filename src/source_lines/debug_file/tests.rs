use std::fs;

use errors::chain;

use debuginfo::synthetic::Program;

use super::*;
use crate::source_lines::debuginfod::tests::Server;

const RELEASE: &str = "6.1.0-50-cloud-amd64";

fn kernel(own: Option<(PathBuf, &[u8])>) -> KernelIdentity<'_> {
    KernelIdentity {
        build_id: Some("00ab12".to_owned()),
        banner: Some(format!("Linux version {RELEASE} (debian-kernel@lists")),
        own,
    }
}

/// Opens the first of `paths`, without servers.
fn among(
    paths: &[PathBuf],
    kernel: &KernelIdentity<'_>,
    spec: &str,
) -> Result<DebugInfo, DebugFileError> {
    search(paths.to_vec(), kernel, spec, None, MayFetch::No)
}

#[test]
fn missing_file_is_fetched_once_if_the_process_may() {
    let program = Program::compile(&[]);
    let info = DebugInfo::open(&program.path()).expect("debug information");
    let kernel = KernelIdentity {
        build_id: info.build_id().map(ToString::to_string),
        ..kernel(None)
    };
    let id = kernel.build_id.clone().expect("a build-id");
    let contents = fs::read(program.path()).expect("read");
    let server = Server::with_file(&format!("/buildid/{id}/debuginfo"), &contents);
    let cache = tempfile::tempdir().expect("tempdir");
    let servers = Debuginfod::at(&[&server.address], cache.path());
    let spec = "kprobe:a.c:1";
    let open = |may_fetch| search(Vec::new(), &kernel, spec, Some(&servers), may_fetch);
    let error = open(MayFetch::No).expect_err("not fetched");
    assert!(matches!(error, DebugFileError::Missing { .. }), "{error:?}");
    assert_eq!(server.requests(), [] as [&str; 0]);
    open(MayFetch::Yes(&|_| {})).expect("fetched");
    // The cache has the file.
    open(MayFetch::No).expect("kept");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn fetched_file_of_another_kernel_is_refused_with_both_build_ids_and_not_kept() {
    let program = Program::compile(&[]);
    let contents = fs::read(program.path()).expect("read");
    let server = Server::with_file("/buildid/00ab12/debuginfo", &contents);
    let cache = tempfile::tempdir().expect("tempdir");
    let servers = Debuginfod::at(&[&server.address], cache.path());
    let error = search(
        Vec::new(),
        &kernel(None),
        "kprobe:a.c:1",
        Some(&servers),
        MayFetch::Yes(&|_| {}),
    );
    let told = chain(error.expect_err("another kernel"));
    let info = DebugInfo::open(&program.path()).expect("debug information");
    let theirs = info.build_id().expect("a build-id").to_string();
    assert!(told.contains(&theirs) && told.contains("00ab12"), "{told}");
    assert_eq!(fs::read_dir(cache.path()).expect("the cache").count(), 0);
}

#[test]
fn unreachable_server_is_named_with_a_remedy() {
    let cache = tempfile::tempdir().expect("tempdir");
    let servers = Debuginfod::at(&["http://127.0.0.1:1"], cache.path());
    let may_fetch = MayFetch::Yes(&|_| {});
    let opened = search(
        Vec::new(),
        &kernel(None),
        "kprobe:a.c:1",
        Some(&servers),
        may_fetch,
    );
    let error = opened.expect_err("no server");
    let told = chain(&error);
    assert!(told.contains("from http://127.0.0.1:1"), "{told}");
    let help = error.help().expect("help");
    assert!(
        help.starts_with("correct DEBUGINFOD_URLS or the network, install Debian's linux-image-"),
        "{help}"
    );
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
    assert!(help.contains(&again), "{help}");
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
