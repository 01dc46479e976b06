//! Runs each fuzz target on the seeds, in programs without libFuzzer.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The files in the folder `target`; at least one.
fn seeds(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let entries = std::fs::read_dir(folder.join(target)).expect("a folder");
    let seeds: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// Runs `program` on `seeds`. The program always runs the target on short inputs first.
fn run(program: &str, seeds: &[PathBuf]) {
    let output = Command::new(program).args(seeds).output();
    let output = output.expect("a program");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", output.status);
}

macro_rules! program {
    ($target:ident) => {
        env!(concat!("CARGO_BIN_EXE_", stringify!($target)))
    };
}

macro_rules! targets_with_seeds {
    ($($target:ident)+) => {
        $(
            #[test]
            fn $target() {
                run(program!($target), &seeds(stringify!($target)));
            }
        )+
    };
}

targets_with_seeds! {
    http_body http_stream inner_run manifest probe_spec program
}

/// Targets with other inputs than texts: changes in a valid kernel, an instruction, or frames.
macro_rules! targets_without_seeds {
    ($($target:ident)+) => {
        $(
            #[test]
            fn $target() {
                run(program!($target), &[]);
            }
        )+
    };
}

targets_without_seeds! {
    boot_image btf debug_info devices emulator kallsyms link_frames module_list patch_sites ring tracepoint
}
