//! The debug file of the test guest from a server of debuginfod.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use guest_images::build_testguest;
use tempfile::TempDir;

/// A note with a build-id, as a linker writes it.
const NOTE: &[u8] = b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\xcd\0\0";
const BUILD_ID: &str = "abcd";
/// The function is inlined: only debug information has its place.
const MANIFEST: &str = "\
[guest]
kernel = 'stripped'
memory = '64M'
cmdline = 'run=calls=7 exit=reset'
[run]
accel = 'kvm'
timeout = '100s'
[[expect]]
probe = 'kprobe:check:inlined'
at_least = 1
";

fn binutils(program: &str, folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(program);
    let status = command.current_dir(folder).args(arguments).status();
    assert!(status.expect(program).success(), "{program} {arguments:?}");
}

/// Makes the kernel without debug information and the manifest in a folder. Returns the folder and the debug file.
fn prepare() -> (TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path();
    build_testguest(path).expect("the test guest compiles");
    fs::write(path.join("note"), NOTE).expect("written");
    fs::write(path.join("m.toml"), MANIFEST).expect("written");
    let note = ["--add-section", ".note.gnu.build-id=note"];
    binutils(
        "objcopy",
        path,
        &[&note[..], &["testguest", "whole"]].concat(),
    );
    binutils("strip", path, &["-g", "-o", "stripped", "whole"]);
    let whole = fs::read(path.join("whole")).expect("read");
    for name in ["whole", "testguest"] {
        fs::remove_file(path.join(name)).expect("removed");
    }
    (folder, whole)
}

/// Serves `contents` as the debug file. Returns the server's address and the number of requests.
fn serve(contents: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let requests = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&requests);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let len = stream.read(&mut request).unwrap_or(0);
            let expected = format!("GET /buildid/{BUILD_ID}/debuginfo ");
            assert!(request[..len].starts_with(expected.as_bytes()));
            counter.fetch_add(1, Ordering::Relaxed);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                contents.len()
            );
            let sent = stream.write_all(head.as_bytes());
            let _ = sent.and_then(|()| stream.write_all(&contents));
        }
    });
    (address, requests)
}

#[test]
fn missing_debug_file_is_fetched_before_the_process_is_confined_and_kept() {
    let (folder, whole) = prepare();
    let (address, requests) = serve(whole);
    let test = |servers: Option<&str>| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hyprobe"));
        command
            .current_dir(folder.path())
            .args(["test", "m.toml"])
            .env_remove("DEBUGINFOD_URLS")
            .env("DEBUGINFOD_CACHE_PATH", folder.path().join("cache"));
        command.envs(servers.map(|servers| ("DEBUGINFOD_URLS", servers)));
        command.output().expect("the command starts")
    };
    for (servers, code, asked) in [
        (None, 2, 0),
        (Some(address.as_str()), 0, 1),
        // The cache has the file.
        (Some(address.as_str()), 0, 1),
        // Without the variable, the cache is not read.
        (None, 2, 1),
    ] {
        let output = test(servers);
        let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!(output.status.code(), Some(code), "{texts:?}");
        assert_eq!(requests.load(Ordering::Relaxed), asked, "{texts:?}");
    }
}
