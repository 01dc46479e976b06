//! A real program in a vector: its headers, names and unwind rules, whole and damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use address::{Gva, PAGE_BYTES};
use proptest::prelude::*;

use super::elf::{Bytes, Elf};
use super::mark_counter::{self, CounterReaders};
use super::marks;
use super::registers::{IP, ProgramRegisters, SP};
use super::symbols::{Found, Functions, NamedFunction};
use super::unwind::{Caller, NoCaller, Rules};

/// Where the program's first byte is loaded: all segments lie in memory as in the file.
const LOADED: u64 = 0x40_0000;
const STACK: u64 = 0x7fff_0000;

/// Bytes from an address on.
pub(super) struct At(pub(super) u64, pub(super) Vec<u8>);

impl Bytes for At {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        let start = usize::try_from(at.checked_sub(self.0)?).ok()?;
        let end = start.checked_add(buf.len())?;
        buf.copy_from_slice(self.1.get(start..end)?);
        Some(())
    }
}

/// The program of `guest-images/workload/calls.c`.
fn program() -> &'static [u8] {
    static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = guest_images::workload::build_calls(dir.path()).expect("it compiles");
        std::fs::read(path).expect("the program")
    })
}

/// Everything that is read of a file, once.
struct Read {
    elf: Elf,
    functions: Functions,
}

fn read(bytes: &[u8]) -> Option<Read> {
    let file = At(0, bytes.to_vec());
    let elf = Elf::read(&file)?;
    let functions = Functions::whole(&elf, &file);
    let functions = functions.or_else(|| Functions::exported(&elf, &file));
    let functions = functions.unwrap_or_default();
    Some(Read { elf, functions })
}

fn registers(ip: u64, sp: u64) -> ProgramRegisters {
    let mut values = [0; 17];
    (values[IP], values[SP]) = (ip, sp);
    ProgramRegisters::of_vcpu(values, true)
}

fn caller(bytes: &[u8], ip: u64, stack: Vec<u8>) -> Result<Option<Caller>, NoCaller> {
    let elf = read(bytes).expect("a program").elf;
    let rules = Rules {
        code: &At(LOADED, bytes.to_vec()),
        stack: &At(STACK, stack),
        table: elf.unwind.expect("a table of rules"),
        charge: &|_| Some(()),
    };
    rules.caller(&registers(ip, STACK), ip)
}

/// The address of a function whose name begins with `name`.
fn function(name: &str) -> u64 {
    let functions = read(program()).expect("a program").functions;
    let is_there = |address: &u64| {
        let found = functions.name(*address, *address);
        found.is_some_and(|found| found.starts_with(name) && found.contains("+0x0/"))
    };
    let end = LOADED + program().len() as u64;
    (LOADED..end).find(is_there).expect("a function")
}

#[test]
fn functions_of_a_pattern_have_their_addresses_once() {
    let functions = read(program()).expect("a program").functions;
    let matching = |pattern: &str| functions.matching(pattern);
    let names = |pattern: &str| -> Vec<String> {
        let found = matching(pattern).into_iter();
        found.map(|function| function.name).collect()
    };
    assert_eq!(names("framed*"), ["framed", "framed_below"]);
    assert_eq!(names("framed"), ["framed"]);
    assert_eq!(names("nothing*"), Vec::<String>::new());
    let all = matching("*");
    assert!(all.len() > 5 && all.is_sorted_by(|before, after| before.address < after.address));
    let Found::At { address, .. } = functions.find("framed_below") else {
        panic!("no function");
    };
    let is_it = |function: &NamedFunction| function.name == "framed_below";
    assert_eq!(
        all.iter().find(|it| is_it(it)).map(|it| it.address),
        Some(address)
    );
}

#[test]
fn loaded_file_converts_addresses_and_offsets() {
    let elf = read(program()).expect("a program").elf;
    assert_eq!(elf.address_of(0x1000), Some(LOADED + 0x1000));
    assert_eq!(elf.address_of(program().len() as u64), None);
    assert_eq!(elf.offset_of(LOADED + 0x1000), Some(0x1000));
    assert_eq!(elf.offset_of(0), None);
}

#[test]
fn address_between_two_functions_has_no_name() {
    let functions = read(program()).expect("a program").functions;
    let main = function("init_main");
    let name = |selector, address| functions.name(selector, address);
    assert!(name(main + 4, main + 5).is_some_and(|name| name.starts_with("init_main+0x5/0x")));
    // The byte before belongs to no function; the code after a signal's handler is called so.
    let restorer = function("restorer");
    assert_eq!(name(restorer - 1, restorer - 1), None);
    assert!(name(restorer - 1, restorer).is_some_and(|name| name.starts_with("restorer+0x0/")));
    assert_eq!(name(0, 0), None);
}

#[test]
fn caller_of_a_function_s_first_instruction_is_on_top_of_the_stack() {
    let found = caller(
        program(),
        function("asleep"),
        0x1234_u64.to_le_bytes().to_vec(),
    );
    let found = found.expect("a rule").expect("a caller");
    assert_eq!(found.registers.values[IP], Some(0x1234));
    assert_eq!(found.registers.values[SP], Some(STACK + 8));
    // A call preserves rbx, and not rax.
    assert_eq!(
        (found.registers.values[3], found.registers.values[0]),
        (Some(0), None)
    );
    assert!(!found.interrupted);
}

#[test]
fn signal_s_frame_has_all_registers() {
    let mut stack = vec![0; 0x200];
    for (offset, value) in [(160, 0x7777_u64), (168, 0x8888), (120, 0x9999)] {
        stack[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    let found = caller(program(), function("restorer") - 1, stack);
    let found = found.expect("a rule").expect("a caller");
    let values = found.registers.values;
    assert_eq!(
        (values[SP], values[IP], values[6]),
        (Some(0x7777), Some(0x8888), Some(0x9999))
    );
    assert!(found.interrupted);
}

#[test]
fn first_function_has_no_caller() {
    let found = caller(program(), function("_start"), Vec::new());
    assert!(found.expect("a rule").is_none());
}

#[test]
fn execution_of_rules_is_charged() {
    let elf = read(program()).expect("a program").elf;
    let rules = Rules {
        code: &At(LOADED, program().to_vec()),
        stack: &At(STACK, vec![0; 64]),
        table: elf.unwind.expect("a table of rules"),
        charge: &|cost| (cost < 256).then_some(()),
    };
    let ip = function("asleep");
    let why = rules.caller(&registers(ip, STACK), ip).err();
    assert_eq!(why, Some(NoCaller::NotInMemory));
}

#[test]
fn missing_stack_is_named() {
    let why = caller(program(), function("asleep"), Vec::new()).err();
    assert_eq!(why, Some(NoCaller::Unreadable(Gva(STACK))));
    let why = caller(program(), 0x10, Vec::new()).err();
    assert_eq!(why, Some(NoCaller::NoRule));
}

/// The low 4 bytes.
fn low(value: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = value.to_le_bytes();
    [a, b, c, d]
}

#[test]
fn rule_without_a_return_address_is_damaged() {
    const TABLE: u64 = 0x1000;
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(b"zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08");
    let cie_at = TABLE + 20;
    let fde_at = cie_at + 4 + cie.len() as u64;
    let mut fde = vec![];
    fde.extend(low(fde_at + 4 - cie_at));
    fde.extend(low(0x10_0000_u64.wrapping_sub(fde_at + 8)));
    fde.extend(0x1000_u32.to_le_bytes());
    fde.push(0);
    let mut code = vec![1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0];
    code.extend(low(0x10_0000_u64.wrapping_sub(TABLE)));
    code.extend(low(fde_at - TABLE));
    for part in [cie, fde] {
        code.extend(low(part.len() as u64));
        code.extend(part);
    }
    let rules = Rules {
        code: &At(TABLE, code),
        stack: &At(STACK, vec![1; 64]),
        table: TABLE,
        charge: &|_| Some(()),
    };
    let mut values = [0; 17];
    (values[IP], values[SP]) = (0x10_0010, STACK);
    let registers = ProgramRegisters::of_vcpu(values, true);
    let why = rules.caller(&registers, 0x10_0010).err();
    assert_eq!(why, Some(NoCaller::Damaged));
}

proptest! {
    /// Programs of the guest are hostile.
    #[test]
    fn damaged_program_is_read_to_its_end(
        places in prop::collection::vec((0_usize..0x4000, any::<u8>()), 1..24),
        len in 0_usize..0x4000,
        ip in LOADED..LOADED + 0x2000,
    ) {
        let mut bytes = program().to_vec();
        for (at, byte) in places {
            // Most of the file's bytes are padding; headers and rules are at the beginning of pages.
            let at = (at & !0xfff) + (at & 0x3ff);
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(bytes.len() - len.min(bytes.len()) / 8);
        if let Some(Read { elf, functions }) = read(&bytes) {
            let _ = (elf.address_of(ip), functions.name(ip, ip));
            let rules = elf.unwind.map(|table| Rules {
                code: &At(LOADED, bytes.clone()),
                stack: &At(STACK, vec![0; 64]),
                table,
                charge: &|_| Some(()),
            }.caller(&registers(ip, STACK), ip).is_ok());
            let _ = rules;
        }
    }
}

#[test]
fn function_is_found_by_its_name() {
    let functions = read(program()).expect("a program").functions;
    let address = function("init_main");
    match functions.find("init_main") {
        Found::At { address: at, size } => assert!(at == address && size > 0),
        other => panic!("{other:?}"),
    }
    for name in ["init_mai", "init_main2", "", "\0"] {
        assert_eq!(functions.find(name), Found::None, "{name:?}");
    }
}

#[test]
fn marks_of_a_compiled_program_are_at_their_instructions() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = guest_images::workload::build_uprobes(dir.path()).expect("it compiles");
    let bytes = std::fs::read(path).expect("the program");
    let Read { elf, functions } = read(&bytes).expect("a program");
    let file = At(0, bytes);
    let found = |provider, name| {
        let found = marks::read(&elf, &file, provider, name).expect("notes");
        assert_eq!(found.unusable, 0);
        found.marks
    };
    let Found::At { address, .. } = functions.find("marked") else {
        panic!("no function with marks");
    };
    let start = elf.offset_of(address).expect("loaded");
    let all = found("count*", "*");
    let names: Vec<&str> = all.iter().map(|mark| &*mark.name).collect();
    assert_eq!(names, ["enter", "held", "leave", "guarded"]);
    assert!(all.iter().all(|mark| mark.provider == "counted"));
    assert_eq!(all[0].offset, start);
    // Each mark is a `nop`.
    for mark in &all {
        let mut code = [0];
        file.read(mark.offset, &mut code).expect("in the file");
        assert_eq!(code, [0x90], "{mark:?}");
    }
    let counters: Vec<_> = all.iter().map(|mark| &mark.counters[..]).collect();
    let [[], [held], [], [guarded]] = counters[..] else {
        panic!("two marks have counters: {counters:?}");
    };
    assert_eq!(held.offset, guarded.offset + 2);
    let both = [guarded, held].into_iter();
    let readers = mark_counter::readers(&file, both, &CounterReaders::default());
    // The functions that write to the counters, and pass one of the marks, are elsewhere.
    let read = BTreeSet::from([guarded.offset, held.offset]);
    assert_eq!(readers.pages, BTreeMap::from([(start / PAGE_BYTES, read)]));
    assert!(![1, 3].iter().any(|it| readers.is_guarded(counters[*it])));
    assert_eq!((readers.absent, readers.left_out), (0, 0));
    let operands = all.iter().map(|mark| mark.operands.len());
    assert_eq!(operands.collect::<Vec<_>>(), [3, 1, 2, 0]);
    assert_eq!(found("counted", "leave"), all[2..3]);
    assert_eq!(found("other", "*"), []);
}

#[test]
fn program_without_marks_has_none() {
    let elf = read(program()).expect("a program").elf;
    let file = At(0, program().to_vec());
    let found = marks::read(&elf, &file, "*", "*").expect("the names of sections");
    assert_eq!((found.marks, found.unusable), (vec![], 0));
    let headers = At(0, program()[..0x1000].to_vec());
    assert_eq!(marks::read(&elf, &headers, "*", "*"), None);
}
