//! Probes at source lines of modules: by a debug file of the loaded build, and not in another build.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use control::Client;
use events::{Event, ProbeState};
use introspect::BuildId;

use crate::boot::{Boot, Stock, probe};

const SOCKET: &str = "x.sock";
/// Loads the module again and again.
const RELOADS: &str = "#!/bin/busybox sh
b=/bin/busybox
while :; do $b insmod $modload; $b rmmod dummy; done
";

/// Line 5 is behind the call of ftrace, with which each function of a stock module begins.
const SOURCE: &str = "\
	.text
	.globl dummy_setup
dummy_setup:
	nopl 8(%rax,%rax)
	nop
	ret
	.section .note.gnu.build-id,\"a\"
	.long 4, 2f - 1f, 3
	.asciz \"GNU\"
1:
";

/// Makes a debug file of the module `dummy` of the build `build_id`: no distribution's package is as small.
fn debug_file(folder: &Path, build_id: &str) -> PathBuf {
    let mut source = SOURCE.to_owned();
    for byte in build_id.as_bytes().chunks(2) {
        let digits = str::from_utf8(byte).expect("digits");
        writeln!(source, "\t.byte 0x{digits}").expect("text");
    }
    source.push_str("2:\n");
    fs::write(folder.join("made_up.S"), source).expect("written");
    let file = folder.join("dummy.ko.debug");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder)
        .args(["-g", "-c", "made_up.S", "-o"]);
    let status = gcc.arg(&file).status().expect("gcc");
    assert!(status.success(), "{status}");
    file
}

#[test]
fn line_of_a_module_of_debian_6_1_is_probed_in_its_build() {
    let stock = Stock::fetch("debian-6.1");
    let build_id = BuildId::of_elf(&stock.module("dummy")).expect("a build-id");
    let build_id = build_id.to_string();
    let folder = tempfile::tempdir().expect("tempdir");
    let file = debug_file(folder.path(), &build_id);
    let other = "kprobe:dummy@00000000:dummy_setup+0x5";
    let ran = Boot::new(&stock, "opens=5")
        .modules(&["dummy"])
        .option("--debug-info", file.to_str().expect("UTF-8"))
        .probe("kprobe:dummy:made_up.S:5")
        .probe(other)
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    let place = format!("kprobe:dummy@{}:dummy_setup+0x5", &build_id[..12]);
    assert_eq!(probe(&summary, &place).hits, 1);
    let other = probe(&summary, other);
    assert_eq!((other.hits, other.state), (0, ProbeState::Refused));
    let reason = other.reason.as_deref().expect("a reason");
    assert!(reason.contains(&build_id), "{reason}");
}

/// Serves `contents` at `path`. Returns the server's address.
fn serve(path: String, contents: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let len = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..len]).into_owned();
            let (status, body) = match request.starts_with(&format!("GET {path} ")) {
                true => ("200 OK", &contents[..]),
                false => ("404 Not Found", &[][..]),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let sent = stream.write_all(head.as_bytes());
            let _ = sent.and_then(|()| stream.write_all(body));
        }
    });
    address
}

/// Each load calls `dummy_setup`. The frames of the first loads have no line, and those after the fetch have one.
#[test]
fn debug_file_of_a_module_is_fetched_while_the_guest_runs() {
    let stock = Stock::fetch("debian-6.1");
    let build_id = BuildId::of_elf(&stock.module("dummy")).expect("a build-id");
    let build_id = build_id.to_string();
    let folder = tempfile::tempdir().expect("tempdir");
    let file = debug_file(folder.path(), &build_id);
    let path = format!("/buildid/{build_id}/debuginfo");
    let address = serve(path, fs::read(&file).expect("the debug file"));
    // A run has source lines if a file is named: here that of a module which is not loaded.
    let other = folder.path().join("other.ko");
    fs::rename(&file, &other).expect("renamed");
    let cache = folder.path().join("cache");
    let boot = Boot::with_script(&stock, RELOADS)
        .modules(&["dummy"])
        .expecting("[[probe]]\nat = 'kprobe:dummy:dummy_setup'\nstack = true\n")
        .option("--control", SOCKET)
        .option("--debug-info", other.to_str().expect("UTF-8"))
        .variable("DEBUGINFOD_URLS", address)
        .variable("DEBUGINFOD_CACHE_PATH", cache.display().to_string());
    let mut running = boot.start();
    let (events, mark) = (running.folder().join("events"), "made_up.S");
    while !fs::read_to_string(&events)
        .unwrap_or_default()
        .contains(mark)
    {
        assert!(!running.has_ended(), "it has ended without a line");
        std::thread::sleep(Duration::from_millis(100));
    }
    let client = Client::new(&running.folder().join(SOCKET)).expect("a client");
    client.command("stop").expect("stopped");
    let ran = running.finish();
    let ran_events = ran.events();
    let notes = ran_events.iter().filter_map(|event| match event {
        Event::Note(note) => Some(note.text.as_str()),
        _ => None,
    });
    let until = "frames of the module `dummy` have no source lines until";
    assert_eq!(notes.filter(|note| note.starts_with(until)).count(), 1);
    let lines = ran_events.iter().filter_map(|event| match event {
        Event::Hit(hit) => Some(hit.stack.as_ref()?.first()?.source.as_ref()?.line),
        _ => None,
    });
    let lines: Vec<u64> = lines.collect();
    // The probe is at the function's first instruction, or behind the call of ftrace.
    assert!(lines.iter().all(|line| [4, 5].contains(line)), "{lines:?}");
    assert!(cache.join(&build_id).join("debuginfo").exists());
}
