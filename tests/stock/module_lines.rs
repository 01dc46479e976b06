//! Probes at source lines of modules: by a debug file of the loaded build, and not in another build.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use events::ProbeState;
use introspect::BuildId;

use crate::boot::{Boot, Stock, probe};

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
