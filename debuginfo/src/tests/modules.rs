use std::path::{Path, PathBuf};
use std::process::Command;

use address::Gva;

use super::{frames, symbol};
use crate::synthetic::Program;
use crate::{DebugInfo, OpenError};

/// The functions are shorter. The last has no other behind it, which would tell its size.
const MAX_FUNCTION_BYTES: u64 = 0x40;
/// A function in each of three sections, of which the first two begin at 0 in the file.
const SECTIONS_C: &str = "\
volatile int sink;
static inline __attribute__((always_inline)) void leaf(int n)
{
	sink = n;
}
__attribute__((section(\".init.text\"))) int first(int n)
{
	leaf(n);
	return n;
}
__attribute__((noinline)) int begin(int n)
{
	sink = 7;
	leaf(n + 1);
	return n * 3;
}
__attribute__((section(\".exit.text\"))) int last(int n)
{
	sink = 9;
	return begin(n);
}
";

/// A relocatable file, as a module is one.
fn module(flags: &[&str]) -> Program {
    let flags = [&["-r", "-mcmodel=kernel"], flags].concat();
    Program::of_sources(&[("sub/m.c", SECTIONS_C)], &flags)
}

fn open(path: &Path) -> DebugInfo {
    DebugInfo::open_module(path, &[]).expect("a module with debug information")
}

/// Runs a program of binutils or the like on `from`, with the output in a new file.
fn converted(from: &Path, name: &str, command: &[&str]) -> PathBuf {
    let to = from.with_extension(name);
    let mut program = Command::new(command[0]);
    let status = program.args(&command[1..]).args([from, &to]).status();
    assert!(status.expect(command[0]).success(), "{command:?}");
    to
}

/// The lines of the first byte of each line's code in the function.
fn lines(info: &mut DebugInfo, function: &str) -> Vec<(String, String)> {
    let symbol = symbol(info, function);
    let mut found = Vec::new();
    for offset in 0..MAX_FUNCTION_BYTES {
        let frames = frames(info, symbol.address.wrapping_add(offset));
        if frames.last().is_some_and(|(name, _)| name == function) {
            found.extend(frames);
        }
    }
    found.dedup();
    found
}

#[test]
fn each_section_of_a_module_has_its_own_lines() {
    for flags in [
        &["-gdwarf-4"][..],
        &["-gdwarf-5"],
        &["-gdwarf-5", "-gz=zlib"],
    ] {
        let program = module(flags);
        let mut info = open(&program.path());
        assert_eq!(info.build_id().map(|id| id.to_string().len()), Some(40));
        for (function, inlined, own) in [
            ("first", true, "m.c:8"),
            ("begin", true, "m.c:13"),
            ("last", false, "m.c:19"),
        ] {
            let found = lines(&mut info, function);
            let has = |name: &str, line: &str| {
                found
                    .iter()
                    .any(|frame| (&*frame.0, &*frame.1) == (name, line))
            };
            assert!(has(function, own), "{flags:?} {found:?}");
            assert_eq!(has("leaf", "m.c:4"), inlined, "{flags:?} {found:?}");
        }
        let copies = info.inlined_copies("leaf").expect("copies");
        assert_eq!(copies.len(), 2);
        let line = info.places_of_line("m.c", 19).expect("code");
        assert_eq!(line.len(), 1);
        let last = symbol(&info, "last");
        assert!(
            (last.address..last.address.wrapping_add(MAX_FUNCTION_BYTES))
                .contains(&line[0].address)
        );
        // No code is at the addresses of the file.
        assert_eq!(info.lines_at(Gva(0)).expect("none"), []);
    }
}

#[test]
fn file_that_is_split_off_a_module_has_the_same_lines() {
    let program = module(&["-gdwarf-5"]);
    let expected = lines(&mut open(&program.path()), "begin");
    assert!(!expected.is_empty());
    let split = converted(&program.path(), "debug", &["objcopy", "--only-keep-debug"]);
    assert_eq!(lines(&mut open(&split), "begin"), expected);
}

#[test]
fn paths_are_relative_to_the_directories_of_the_kernel_if_the_module_is_within() {
    let program = module(&["-gdwarf-5"]);
    let file = |kernel: &[&str]| {
        let kernel: Vec<String> = kernel.iter().map(|root| (*root).to_owned()).collect();
        let mut info = DebugInfo::open_module(&program.path(), &kernel).expect("a module");
        let address = symbol(&info, "begin").address;
        let frames = info.lines_at(address).expect("lines");
        frames[0].file.clone().expect("a path")
    };
    let directory = open(&program.path()).source_directories()[0].clone();
    assert_eq!(file(&[]), "m.c");
    let kernel = directory.strip_suffix("sub/").expect("the folder");
    assert_eq!(file(&[kernel]), "sub/m.c");
    assert_eq!(file(&["", "/elsewhere/"]), "m.c");
}

#[test]
fn function_of_an_address_is_in_the_section_of_the_address() {
    const COPIED: &str = "\
	.section .altinstr_replacement,\"ax\"
	nop
	nop
";
    let flags = ["-r", "-mcmodel=kernel", "-gdwarf-5"];
    let sources = [("sub/m.c", SECTIONS_C), ("copied.S", COPIED)];
    let info = open(&Program::of_sources(&sources, &flags).path());
    for function in ["first", "begin", "last"] {
        let symbol = symbol(&info, function);
        let found = info.module_function_at(symbol.address.wrapping_add(1));
        let found = found.map(|found| (found.symbol.name, found.offset));
        assert_eq!(found, Some((function.to_owned(), 1)));
    }
    let copied = info.places_of_line("copied.S", 2).expect("an address")[0].address;
    // The last symbol is below, in another section.
    assert!(symbol(&info, "last").address < copied);
    for at in [Gva(0), copied] {
        assert_eq!(info.module_function_at(at), None, "{at}");
    }
    let kernel = Program::compile(&[]);
    let kernel = DebugInfo::open(&kernel.path()).expect("a kernel");
    let code = symbol(&kernel, "begin").address;
    assert_eq!(kernel.module_function_at(code), None);
}

#[test]
fn linked_file_is_no_module() {
    let program = Program::compile(&[]);
    let error = DebugInfo::open_module(&program.path(), &[]).expect_err("linked");
    assert!(matches!(error, OpenError::NotAModule), "{error}");
}

#[test]
fn damaged_relocation_is_refused_with_its_section() {
    let program = module(&["-gdwarf-5"]);
    let bytes = std::fs::read(program.path()).expect("read");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let relocations = object::Object::section_by_name(&file, ".rela.debug_info");
    let range = object::ObjectSection::file_range(&relocations.expect("relocations"));
    let start = usize::try_from(range.expect("in the file").0).expect("an offset");
    let damaged = program.path().with_extension("damaged");
    // The offset is outside; the type is that of a jump table; the symbol does not exist.
    for (at, value) in [(7, 0xff), (8, 0x29), (15, 0x7f)] {
        let mut bytes = bytes.clone();
        bytes[start + at] = value;
        std::fs::write(&damaged, bytes).expect("written");
        let error = DebugInfo::open_module(&damaged, &[]).expect_err("damaged");
        assert!(
            matches!(
                error,
                OpenError::Relocation {
                    section: ".debug_info",
                    ..
                }
            ),
            "{at}: {error}"
        );
    }
}
