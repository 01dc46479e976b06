//! The emulator and the host's processor on the same case.

use iced_x86::{Instruction, Mnemonic, OpKind, RflagsBits};
use introspect::insn::{Features, Outcome, Vendor, emulate};

use crate::generate::{Case, Layout};
use crate::{After, End, Machine, Native, Region};

/// The differences between the emulator and the processor, in words.
#[derive(Debug)]
pub struct Disagreement(
    /// The words.
    pub String,
);

/// Runs a case on the emulator and on the processor. `None` if the emulator refuses the instruction
/// in the case's state: then the processor does not run the instruction.
///
/// # Panics
///
/// If the emulator goes to neither the next instruction nor the branch target.
pub fn both(case: &Case, layout: &Layout, native: &mut Native) -> Option<Result<(), Disagreement>> {
    let mut machine = machine_of(case, layout);
    if emulate(&mut machine, case.decoded.bytes()) != Outcome::Done {
        return None;
    }
    let branched = machine.rip == layout.target;
    assert!(
        branched || machine.rip == case.decoded.next().0,
        "{:?} goes to neither of the places it may go to",
        case.decoded
    );
    let emulated = After {
        gprs: machine.gprs,
        rflags: machine.rflags,
        end: match branched {
            true => End::Target,
            false => End::Behind,
        },
    };
    let mut data = case.data.clone();
    let real = native.run(case.decoded.bytes(), case.gprs, case.rflags, &mut data);
    let agree = agree(case, &emulated, &real) && data == machine.memory[0].bytes;
    Some(match agree {
        true => Ok(()),
        false => {
            let again = match real.end {
                End::Fault(_) => after_fault(case, native),
                End::Behind | End::Target => String::new(),
            };
            Err(Disagreement(describe(case, &emulated, &real) + &again))
        }
    })
}

/// The number of runs after a fault.
const RUNS_AFTER_FAULT: usize = 100;

/// Whether a fault occurs again: if it does not, the host has changed the processor's state during the first run.
fn after_fault(case: &Case, native: &mut Native) -> String {
    let faults = (0..RUNS_AFTER_FAULT)
        .filter(|_| {
            let mut data = case.data.clone();
            let real = native.run(case.decoded.bytes(), case.gprs, case.rflags, &mut data);
            matches!(real.end, End::Fault(_))
        })
        .count();
    let (data, gs) = (native.data(), native.gs_base());
    format!(
        "  data at {data:#x}, base of GS {gs:#x}; {faults} of {RUNS_AFTER_FAULT} more runs faulted\n"
    )
}

/// The emulator's machine for the case.
fn machine_of(case: &Case, layout: &Layout) -> Machine {
    let data = Region {
        start: layout.data,
        bytes: case.data.clone(),
        writable: true,
    };
    Machine {
        gprs: case.gprs,
        rflags: case.rflags,
        // The host's own FS is in use: an access through FS faults here, and the instruction is not
        // run.
        fs: 1 << 62,
        gs: layout.data,
        features: Features {
            popcnt: is_x86_feature_detected!("popcnt"),
            lzcnt: is_x86_feature_detected!("lzcnt"),
            bmi1: is_x86_feature_detected!("bmi1"),
            movbe: is_x86_feature_detected!("movbe"),
            smap: false,
            vendor: Vendor::Other,
        },
        ..Machine::new(layout.instruction, vec![data])
    }
}

fn agree(case: &Case, emulated: &After, real: &After) -> bool {
    let defined = !undefined_flags(case);
    emulated.gprs == real.gprs
        && emulated.end == real.end
        && emulated.rflags & defined == real.rflags & defined
}

/// The flags left undefined in the manuals after the instruction.
fn undefined_flags(case: &Case) -> u64 {
    let insn = case.decoded.instruction();
    let undefined = insn.rflags_undefined() | undefined_after_full_turn(insn);
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

/// A rotation through the carry by all 9 or 17 bits, from an immediate count, is a rotation by more
/// than one bit: OF is undefined, and Intel's processors set OF. `iced` counts a full turn as no
/// rotation.
fn undefined_after_full_turn(insn: &Instruction) -> u32 {
    let rotates = matches!(insn.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr);
    let by_immediate = insn.op1_kind() == OpKind::Immediate8;
    if rotates && by_immediate && insn.immediate8() & 31 > 1 {
        RflagsBits::OF
    } else {
        0
    }
}

fn describe(case: &Case, emulated: &After, real: &After) -> String {
    let mut text = format!("\n{:?}, flags {:#x}:\n", case.decoded, case.rflags);
    for (number, before) in case.gprs.iter().enumerate() {
        let (ours, theirs) = (emulated.gprs[number], real.gprs[number]);
        if ours != theirs {
            text += &format!("  r{number}: {before:#x} became {ours:#x}, not {theirs:#x}\n");
        }
    }
    let (ours, theirs) = (emulated.rflags, real.rflags);
    let (end, really) = (emulated.end, real.end);
    text + &format!("  flags {ours:#x}, not {theirs:#x}; comes out at {end:?}, really {really:?}\n")
}
