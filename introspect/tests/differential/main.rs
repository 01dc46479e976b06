//! The emulator against the processor that the tests run on.
//!
//! Random instructions that the emulator claims are run by both, from the same state, and
//! must agree in every register, every defined flag, every byte of memory and where they go.
//! Nothing that the emulator refuses for the state at hand is run, so the test also stays alive.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod generate;
#[path = "../insn/machine.rs"]
mod machine;
mod native;
mod random;

use std::collections::BTreeMap;

use hyprobe_introspect::insn::{Outcome, emulate};
use iced_x86::RflagsBits;

use generate::{Case, Layout};
use machine::{Machine, Region};
use native::{After, Native};
use random::Random;

const DATA_BYTES: usize = 1024;
const CASES: usize = 400_000;

#[test]
fn emulated_instructions_do_what_the_processor_does() {
    let mut native = Native::new(DATA_BYTES);
    let layout = Layout {
        instruction: native.instruction(),
        target: native.target(),
        data: native.data(),
        data_bytes: DATA_BYTES,
    };
    let mut random = Random(0x5eed_0f1e_55ed);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let mut odd: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = BTreeMap::new();
    for _ in 0..CASES {
        let Some(case) = generate::case(&mut random, &layout) else { continue };
        let name = format!("{:?}", case.decoded.instruction().mnemonic());
        let mut machine = machine_of(&case, &layout);
        let outcome = emulate(&mut machine, case.decoded.bytes());
        if outcome != Outcome::Done {
            *refused.entry(format!("{name} {outcome:?}").chars().take(40).collect()).or_default() += 1;
            continue;
        }
        let branched = machine.rip == layout.target;
        assert!(branched || machine.rip == case.decoded.next().0, "{:?}", case.decoded);
        let mut data = case.data.clone();
        eprintln!("{:?} {:x?}", case.decoded, case.gprs);
        let after = native.run(case.decoded.bytes(), case.gprs, case.rflags, &mut data);
        let emulated = After { gprs: machine.gprs, rflags: machine.rflags, branched };
        *seen.entry(name.clone()).or_default() += 1;
        let u = undefined_flags(&case);
        let diff = (after.rflags ^ emulated.rflags) & u;
        if diff != 0 { *odd.entry(format!("{name} {diff:#x} of {u:#x}")).or_default() += 1; }
        if !agrees(&case, &emulated, &after) || data != machine.memory[0].bytes {
            failures.entry(name).or_insert_with(|| describe(&case, &emulated, &after));
        }
    }
    eprintln!("{seen:?}\n{refused:#?}\n{odd:#?}");
    assert!(failures.is_empty(), "{}", failures.values().cloned().collect::<String>());
}

fn machine_of(case: &Case, layout: &Layout) -> Machine {
    let data = Region { start: layout.data, bytes: case.data.clone(), writable: true };
    Machine {
        gprs: case.gprs,
        rflags: case.rflags,
        gs: layout.data,
        ..Machine::new(layout.instruction, vec![data])
    }
}

fn agrees(case: &Case, emulated: &After, native: &After) -> bool {
    let defined = !undefined_flags(case);
    emulated.gprs == native.gprs
        && emulated.branched == native.branched
        && emulated.rflags & defined == native.rflags & defined
}

/// The flags that the manuals leave open after this instruction.
fn undefined_flags(case: &Case) -> u64 {
    let undefined = case.decoded.instruction().rflags_undefined();
    [
        (RflagsBits::OF, 1 << 11),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::AF, 1 << 4),
        (RflagsBits::PF, 1 << 2),
        (RflagsBits::CF, 1),
    ]
    .iter()
    .filter(|(bit, _)| undefined & bit != 0)
    .map(|(_, flag)| flag)
    .sum()
}

fn describe(case: &Case, emulated: &After, native: &After) -> String {
    use std::fmt::Write;
    let mut text = format!("\n{:?}, flags {:#x}\n", case.decoded, case.rflags);
    for (number, before) in case.gprs.iter().enumerate() {
        let (ours, theirs) = (emulated.gprs[number], native.gprs[number]);
        if ours != theirs {
            let _ = writeln!(text, "  r{number}: {before:#x} became {ours:#x}, not {theirs:#x}");
        }
    }
    let _ = writeln!(text, "  flags {:#x}, not {:#x}", emulated.rflags, native.rflags);
    let _ = writeln!(text, "  branched {}, not {}", emulated.branched, native.branched);
    text
}
