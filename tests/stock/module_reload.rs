//! Probes across reloads of a module, also in another build: each build is recognised by its build-id, and code that the kernel frees after a load
//! comes anew.

use std::fs;
use std::path::Path;
use std::process::Command;

use control::Client;
use events::{ProbeState, ProbeStatus};
use introspect::BuildId;

use crate::boot::{Boot, Stock, probe};

const SOCKET: &str = "x.sock";
const RELOADED: &str = "the other build is loaded";
/// In the module's text, behind the call of ftrace.
const SETUP: &str = "dummy_setup+0x5";
/// In the module's init text.
const INIT: &str = "kprobe:dummy:dummy_init_module";
/// The kernel ignores a signature without this mark, and loads the module as an unsigned one.
const SIGNATURE_MARK: &[u8] = b"~Module signature appended~\n";

/// Writes the module `dummy` and a copy with another build-id. Returns both build-ids.
fn builds(stock: &Stock, folder: &Path) -> [String; 2] {
    let mut bytes = stock.module("dummy");
    if bytes.ends_with(SIGNATURE_MARK) {
        bytes.truncate(bytes.len() - SIGNATURE_MARK.len());
    }
    let own = BuildId::of_elf(&bytes).expect("a build-id").to_string();
    let digits = own.as_bytes().chunks(2).map(|pair| {
        let pair = str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    });
    let own_bytes: Vec<u8> = digits.collect();
    let at = bytes
        .windows(own_bytes.len())
        .position(|it| it == own_bytes);
    fs::write(folder.join("own.ko"), &bytes).expect("written");
    bytes[at.expect("in the file")] ^= 0xff;
    fs::write(folder.join("other.ko"), &bytes).expect("written");
    let other = BuildId::of_elf(&bytes).expect("a build-id").to_string();
    assert_ne!(own, other);
    [own, other]
}

/// The state, the hits and the reason of the probe at `spec`.
fn state(probes: &[ProbeStatus], spec: &str) -> (ProbeState, u64, String) {
    let found = probes.iter().find(|it| it.summary.probe == spec);
    let found = &found
        .unwrap_or_else(|| panic!("{spec}: {probes:#?}"))
        .summary;
    let reason = found.reason.clone().unwrap_or_default();
    (found.state, found.hits, reason)
}

/// Adds `spec` by the command. Returns the exit code and the output.
fn add(socket: &Path, spec: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hyprobe"));
    let socket = socket.to_str().expect("UTF-8");
    let output = command
        .args(["probe", "add", "--socket", socket, spec])
        .output();
    let output = output.expect("the command starts");
    let texts =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), texts.concat())
}

#[test]
fn probe_of_a_build_is_refused_in_a_reload_of_another_and_armed_in_its_own() {
    let stock = Stock::fetch("debian-6.1");
    let folder = tempfile::tempdir().expect("tempdir");
    let [own, other] = builds(&stock, folder.path());
    let [own_file, other_file] = ["own.ko", "other.ko"].map(|name| folder.path().join(name));
    let (own_path, other_path) = (own_file.display(), other_file.display());
    // The guest waits for the test's looks, which pause it.
    let script = format!(
        "#!/bin/busybox sh
b=/bin/busybox
$b insmod {own_path} && $b rmmod dummy && $b insmod {other_path} && echo {RELOADED}
$b sleep 20
$b rmmod dummy && $b insmod {own_path} && echo all loads are done
$b poweroff -f
"
    );
    let in_own = format!("kprobe:dummy@{}:{SETUP}", &own[..12]);
    let in_other = format!("kprobe:dummy@{}:{SETUP}", &other[..12]);
    let boot = Boot::with_script(&stock, &script)
        .host_file(&own_file)
        .host_file(&other_file)
        .probe(&in_own)
        .probe(&in_other)
        .probe(INIT)
        .option("--control", SOCKET);
    let mut running = boot.start();
    running.wait_for_console(RELOADED);
    let socket = running.folder().join(SOCKET);
    let client = Client::new(&socket).expect("a client");
    client.command("pause").expect("paused");
    let probes = client.probes().expect("probes");
    let (refused, hits, reason) = state(&probes, &in_own);
    assert_eq!((refused, hits), (ProbeState::Refused, 1), "{reason}");
    assert!(
        reason.contains(&other) && reason.contains(&own[..12]),
        "{reason}"
    );
    let (armed, hits, _) = state(&probes, &in_other);
    assert_eq!((armed, hits), (ProbeState::Armed, 1));
    // The code of the second load is freed, too.
    let (gone, hits, reason) = state(&probes, INIT);
    assert_eq!((gone, hits), (ProbeState::Gone, 2), "{reason}");
    let loaded = client.modules().expect("modules").modules;
    let loaded = loaded.iter().find(|module| module.name == "dummy");
    assert_eq!(loaded.and_then(|it| it.build_id.as_ref()), Some(&other));
    let (code, told) = add(&socket, &in_own);
    assert_eq!(code, Some(2), "{told}");
    for part in ["cannot probe", &other, &own[..12]] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let (code, told) = add(&socket, &in_other);
    assert_eq!(code, Some(0), "{told}");
    client.command("resume").expect("resumed");
    let ran = running.finish();
    ran.assert_well();
    assert!(
        ran.console.contains("all loads are done"),
        "{}",
        ran.report()
    );
    let summary = ran.summary();
    let of_own = probe(&summary, &in_own);
    assert_eq!(
        (of_own.hits, of_own.state),
        (2, ProbeState::Armed),
        "{of_own:?}"
    );
    assert_eq!(of_own.reason, None);
    let of_other = probe(&summary, &in_other);
    assert_eq!((of_other.hits, of_other.state), (1, ProbeState::Refused));
    let init = probe(&summary, INIT);
    assert_eq!((init.hits, init.state), (3, ProbeState::Gone), "{init:?}");
}
