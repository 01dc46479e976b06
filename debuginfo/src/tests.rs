use std::fs;
use std::path::Path;

use address::Gva;
use introspect::BuildId;
use proptest::prelude::*;

use super::*;
use crate::synthetic::{CALL_LINES, LEAF_LINE, Program};

fn open(program: &Program) -> DebugInfo {
    DebugInfo::open(&program.path()).expect("a file with debug information")
}

fn symbol(info: &DebugInfo, name: &str) -> introspect::Symbol {
    info.symbols().lookup(name).expect(name)
}

/// The function and `file:line` of each frame.
fn frames(info: &mut DebugInfo, address: Gva) -> Vec<(String, String)> {
    let frames = info.lines_at(address).expect("lines");
    let shown = frames.into_iter().map(|frame| {
        let file = frame.file.unwrap_or_default();
        let function = frame.function.unwrap_or_else(|| "??".to_owned());
        (function, format!("{file}:{}", frame.line))
    });
    shown.collect()
}

#[test]
fn lines_of_each_address_are_those_of_addr2line() {
    for flags in [
        &["-gdwarf-4"][..],
        &["-gdwarf-5"],
        &["-gdwarf-5", "-gz=zlib"],
    ] {
        let program = Program::compile(flags);
        let mut info = open(&program);
        let mut inlined = 0;
        for name in ["one", "two", "begin", "other"] {
            let symbol = symbol(&info, name);
            let first = symbol.address.0;
            for address in first..first + symbol.size.clamp(1, 0x40) {
                let found = frames(&mut info, Gva(address));
                if found.is_empty() || found[0].0 == "??" {
                    // The padding behind the function.
                    assert!(address > first + 4, "{flags:?} {name}");
                    break;
                }
                let expected = program.addr2line(address);
                assert_eq!(found, expected, "{flags:?} {name} {address:#x}");
                inlined += usize::from(found.len() > 1);
            }
        }
        assert!(inlined > 0);
    }
}

#[test]
fn code_of_an_assembler_has_lines_without_a_function() {
    let mut info = open(&Program::compile(&[]));
    let code = symbol(&info, "code").address;
    let frames = info.lines_at(code).expect("lines");
    let expected = SourceFrame {
        function: None,
        file: Some("code.S".to_owned()),
        line: 4,
    };
    assert_eq!(frames, [expected]);
    assert_eq!(info.addresses_of_line("code.S", 4).expect("code"), [code]);
}

#[test]
fn inlined_line_has_one_address_in_each_function_around() {
    let mut info = open(&Program::compile(&[]));
    let lines = info.addresses_of_line("leaf.h", LEAF_LINE).expect("lines");
    let copies = info.inlined_copies("leaf").expect("copies");
    for addresses in [lines, copies] {
        assert_eq!(addresses.len(), 2);
        for (address, (around, call)) in addresses
            .into_iter()
            .zip(["one", "two"].into_iter().zip(CALL_LINES))
        {
            let symbol = symbol(&info, around);
            assert!((symbol.address..symbol.end().expect("an end")).contains(&address));
            let frames = frames(&mut info, address);
            assert_eq!(frames[0].0, "leaf");
            assert_eq!(frames[1], (around.to_owned(), format!("a.c:{call}")));
        }
    }
}

#[test]
fn line_of_a_call_has_one_address_although_the_copy_begins_there() {
    let info = open(&Program::compile(&[]));
    for (line, around) in CALL_LINES.into_iter().zip(["one", "two"]) {
        let symbol = symbol(&info, around);
        // `sub/a.c` has no such line.
        let addresses = info.addresses_of_line("a.c", line).expect(around);
        assert_eq!(addresses.len(), 1, "{around}");
        assert!((symbol.address..symbol.end().expect("an end")).contains(&addresses[0]));
    }
}

#[test]
fn line_that_only_calls_an_inlined_function_has_the_beginnings_of_the_copies() {
    const CONSOLE: &str = include_str!("../../guest-images/testguest/console.c");
    let dir = tempfile::tempdir().expect("tempdir");
    let guest = guest_images::build_testguest(dir.path()).expect("the test guest compiles");
    let info = DebugInfo::open(&guest).expect("debug information");
    let line = CONSOLE.lines().position(|line| line.contains("out8(COM1"));
    let line = line.expect("a line") as u64 + 1;
    let found = info.addresses_of_line("console.c", line).expect("a place");
    let copies = info.inlined_copies("out8").expect("copies");
    assert!(
        found.iter().all(|address| copies.contains(address)),
        "{found:?} {copies:?}"
    );
    // `out8` is called in other files, too.
    assert!(!found.is_empty() && found.len() < copies.len());
}

#[test]
fn unknown_lines_files_and_functions_are_named() {
    let info = open(&Program::compile(&[]));
    let said = |file: &str, line| {
        info.addresses_of_line(file, line)
            .expect_err(file)
            .to_string()
    };
    assert_eq!(said("b.c", 1), "no source file of the kernel ends in `b.c`");
    assert_eq!(
        said("ub/a.c", 7),
        "no source file of the kernel ends in `ub/a.c`"
    );
    assert_eq!(
        said("leaf.h", 3),
        "leaf.h has no code in line 3: the next line with code is 4"
    );
    assert_eq!(said("leaf.h", 99), "leaf.h has no code in line 99");
    let ambiguous = said("a.c", 6);
    assert!(
        ambiguous.ends_with("have code in line 6: a.c, sub/a.c"),
        "{ambiguous}"
    );
    assert!(info.addresses_of_line("sub/a.c", 7).is_ok());
    let error = info.inlined_copies("one").expect_err("never inlined");
    assert_eq!(
        error.to_string(),
        "the kernel has no inlined copy of a function `one`"
    );
}

#[test]
fn build_id_is_that_of_the_file() {
    let program = Program::compile(&[]);
    let bytes = fs::read(program.path()).expect("read");
    let id = BuildId::of_elf(&bytes).expect("a build-id");
    assert_eq!(open(&program).build_id(), Some(&id));
    assert_eq!(id.to_string().len(), 40);
    let without = Program::compile(&["-Wl,--build-id=none"]);
    assert_eq!(open(&without).build_id(), None);
}

#[test]
fn wrong_files_are_refused_with_what_they_are() {
    let refused = |path: &Path| DebugInfo::open(path).expect_err("refused");
    assert!(matches!(
        refused(Path::new("/dev/zero")),
        OpenError::File(_)
    ));
    assert!(matches!(
        refused(Path::new("/nonexistent")),
        OpenError::File(_)
    ));
    assert!(matches!(
        refused(Path::new("/etc/passwd")),
        OpenError::Elf(_)
    ));
    let bare = Program::compile(&["-g0", "-s"]);
    let error = refused(&bare.path());
    assert!(matches!(error, OpenError::NoDebugInfo { .. }), "{error}");
    let object = Program::compile(&["-r", "-Wl,--build-id=none"]);
    assert!(matches!(refused(&object.path()), OpenError::Relocatable));
}

/// Everything that is asked of a file; each answer may be an error.
fn ask(path: &Path, addresses: &[Gva]) {
    let Ok(mut info) = DebugInfo::open(path) else {
        return;
    };
    for address in addresses {
        let _ = info.lines_at(*address);
    }
    let _ = info.addresses_of_line("leaf.h", LEAF_LINE);
    let _ = info.addresses_of_line("a.c", CALL_LINES[0]);
    let _ = info.inlined_copies("leaf");
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
