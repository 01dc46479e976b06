use std::fs;
use std::path::Path;

use address::Gva;
use proptest::prelude::*;

use super::{open, symbol};
use crate::DebugInfo;
use crate::synthetic::{CALL_LINES, LEAF_LINE, Program};

/// Everything that is asked of a file; each answer may be an error.
fn ask(path: &Path, addresses: &[Gva]) {
    let Ok(mut info) = DebugInfo::open(path) else {
        return;
    };
    for address in addresses {
        let _ = info.lines_at(*address);
    }
    let places = [
        info.places_of_line("leaf.h", LEAF_LINE).ok(),
        info.places_of_line("a.c", CALL_LINES[0]).ok(),
        info.inlined_copies("leaf").ok(),
    ];
    for places in places.into_iter().flatten() {
        let _ = info.variables(&places);
    }
    let _ = info.symbols().len();
}

/// The offsets of the bytes of `.debug_*`, and of everything else that is read.
fn interesting(bytes: &[u8]) -> Vec<usize> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(bytes).expect("elf");
    let mut offsets: Vec<usize> = (0..64).collect();
    for section in file.sections() {
        let is_read = section.name().is_ok_and(|name| name.starts_with(".debug_"));
        if let (true, Some((offset, size))) = (is_read, section.file_range()) {
            offsets.extend((offset..offset + size).filter_map(|at| usize::try_from(at).ok()));
        }
    }
    // The section headers are at the end.
    offsets.extend(bytes.len().saturating_sub(0x800)..bytes.len());
    offsets
}

#[test]
fn damaged_file_neither_panics_nor_hangs() {
    let programs = [
        Program::compile(&["-gdwarf-4"]),
        Program::compile(&["-gdwarf-5"]),
        Program::compile(&["-gdwarf-5", "-gz=zlib"]),
    ];
    let intact = programs.each_ref().map(|program| {
        let info = open(program);
        let addresses = ["one", "two", "other", "code"].map(|name| symbol(&info, name).address);
        let bytes = fs::read(program.path()).expect("read");
        let offsets = interesting(&bytes);
        (bytes, offsets, addresses)
    });
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("damaged");
    let damages = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8);
    let config = ProptestConfig::with_cases(3000);
    proptest!(config, |(which in 0..3_usize, damages in damages, cut in prop::option::weighted(0.1, any::<prop::sample::Index>()))| {
        let (bytes, offsets, addresses) = &intact[which];
        let mut bytes = bytes.clone();
        for (at, byte) in damages {
            bytes[*at.get(offsets)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).expect("write");
        ask(&path, addresses);
    });
}
