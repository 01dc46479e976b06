//! A file with debug information: a small program of the host's compiler, linked or as a module.

#![cfg_attr(fuzzing, no_main)]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use address::Gva;
use debuginfo::synthetic::{CALL_LINES, LEAF_LINE, Program};
use debuginfo::{DebugInfo, OpenError};
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use tempfile::TempDir;

/// The last makes a relocatable file.
const FLAGS: [&[&str]; 5] = [
    &["-gdwarf-4"],
    &["-gdwarf-5"],
    &["-gdwarf-5", "-gz=zlib"],
    &["-gdwarf-5", "-gstrict-dwarf"],
    &["-gdwarf-5", "-r"],
];
const MODULE: usize = 4;
const FUNCTIONS: [&str; 4] = ["one", "two", "other", "code"];

/// A program as the compiler wrote it, and the addresses of its functions.
struct Intact {
    file: Vec<u8>,
    functions: [Gva; 4],
}

/// Opens the file of the program with this number in [`FLAGS`].
fn open(number: usize, path: &Path) -> Result<DebugInfo, OpenError> {
    match number {
        MODULE => DebugInfo::open_module(path, &[]),
        _ => DebugInfo::open(path),
    }
}

static PROGRAMS: LazyLock<[Intact; 5]> = LazyLock::new(|| {
    let mut number = 0;
    FLAGS.map(|flags| {
        let program = Program::compile(flags);
        let info = open(number, &program.path()).expect("an intact file");
        number += 1;
        let address = |name| info.symbols().lookup(name).expect("a function").address;
        Intact {
            file: std::fs::read(program.path()).expect("a file"),
            functions: FUNCTIONS.map(address),
        }
    })
});
/// The folder of the file that each input writes anew.
static FOLDER: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = folder.path().join("damaged");
    (folder, path)
});

#[derive(Arbitrary, Debug)]
struct Case {
    program: u8,
    changes: Vec<Damage>,
    /// The number of bytes that are kept.
    kept: Option<u16>,
    address: u64,
    line: u8,
}

fuzz_target!(|case: Case| {
    let number = usize::from(case.program) % FLAGS.len();
    let Intact { file, functions } = &PROGRAMS[number];
    let mut file = file.clone();
    for change in &case.changes {
        change.apply(&mut file, 0);
    }
    if let Some(kept) = case.kept {
        file.truncate(kept.into());
    }
    let path = &FOLDER.1;
    std::fs::write(path, &file).expect("a file in memory");
    let is_whole = case.changes.is_empty() && case.kept.is_none();
    ask(open(number, path), functions, &case, is_whole);
});

/// Asks an opened file everything that can be asked.
fn ask(opened: Result<DebugInfo, OpenError>, functions: &[Gva; 4], case: &Case, is_whole: bool) {
    let Ok(mut info) = opened else {
        assert!(!is_whole, "the intact file is refused");
        return;
    };
    for address in functions.iter().chain([&Gva(case.address)]) {
        let frames = info.lines_at(*address);
        let is_function = functions.contains(address);
        let is_known = frames.is_ok_and(|frames| !frames.is_empty());
        assert!(is_known || !(is_whole && is_function), "{address:?}");
    }
    let lines = [
        info.places_of_line("leaf.h", LEAF_LINE),
        info.places_of_line("a.c", CALL_LINES[0]),
    ];
    let _ = info.places_of_line("a.c", case.line.into());
    let copies = info.inlined_copies("leaf");
    if is_whole {
        assert!(lines.iter().all(Result::is_ok), "{lines:?}");
        assert_eq!(copies.map_or(0, |copies| copies.len()), 2);
    }
    for places in lines.iter().flatten() {
        assert!(places.is_sorted_by_key(|place| place.address), "{places:?}");
        let variables = info.variables(places);
        assert!(variables.is_ok() || !is_whole, "{variables:?}");
    }
}
