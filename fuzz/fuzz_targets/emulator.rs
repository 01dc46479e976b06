//! The instruction emulator: against the host's processor, and as the kernel's processor.
//!
//! The input's bytes are the instruction. From a seed in the input, the target makes registers, flags and memory in a way that the
//! instruction accesses only the data: see `introspect/reference/`, shared with a test.

#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;

use address::Gva;
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::fuzz_target;
use introspect::insn::{
    DescriptorTable, Next, Outcome, SegmentRegister, Segments, System, decode, emulate, next_places,
};
use reference::compare::{self, Disagreement};
use reference::generate::{self, Layout};
use reference::{Machine, Native, Random, Region};

const DATA_BYTES: usize = 1024;
const KERNEL_DATA: u64 = 0xffff_8880_0000_1000;
const KERNEL_CODE: u64 = 0xffff_ffff_8100_0000;

/// An instruction, and the seed of the state.
#[derive(Arbitrary, Debug)]
struct Case {
    bytes: [u8; 16],
    seed: u64,
}

thread_local! {
    /// The host's processor, for the target's thread.
    static NATIVE: RefCell<Native> = RefCell::new(Native::new(DATA_BYTES));
}

fuzz_target!(|case: Case| {
    NATIVE.with_borrow_mut(|native| compare_with(native, &case));
    emulate_kernel(&case);
});

/// A generator with a state other than 0: the generator could not leave the state 0.
fn random(case: &Case) -> Random {
    Random(case.seed | 1 << 63)
}

fn compare_with(native: &mut Native, case: &Case) {
    let layout = Layout {
        instruction: native.instruction(),
        target: native.target(),
        data: native.data(),
        data_bytes: DATA_BYTES,
    };
    let made = generate::state(case.bytes.to_vec(), &mut random(case), &layout);
    let Some(made) = made else { return };
    if let Some(Err(Disagreement(text))) = compare::both(&made, &layout, native) {
        panic!("the processor disagrees: {text}");
    }
}

/// Emulates the instruction at privilege level 0, with the guest's made-up segments and descriptor tables.
fn emulate_kernel(case: &Case) {
    let mut random = random(case);
    let mut data = vec![0; DATA_BYTES];
    data.fill_with(|| random.byte());
    let mut machine = Machine::new(
        KERNEL_CODE,
        vec![Region {
            start: KERNEL_DATA,
            bytes: data,
            writable: true,
        }],
    );
    machine.privilege_level = 0;
    machine.rflags = random.value() | 2;
    let mut near = || KERNEL_DATA + random.below(DATA_BYTES as u64 - 64);
    machine.gprs = [0; 16].map(|_: u64| near());
    machine.gs = near();
    let gdt = DescriptorTable {
        base: near() & !7,
        limit: 0x7f,
    };
    machine.star = random.value();
    machine.kernel_gs = random.value();
    let mut segment = || SegmentRegister {
        selector: low(random.next()),
        base: 0,
        limit: u32::MAX,
        attributes: low(random.next()),
        usable: !random.one_in(8),
    };
    machine.system = Some(System {
        segments: Segments {
            cs: SegmentRegister {
                attributes: 0xa09b,
                ..segment()
            },
            ss: segment(),
            ds: segment(),
            es: segment(),
            fs: segment(),
            gs: segment(),
        },
        gdt,
        ldt: random.one_in(2).then_some(gdt),
        fast_calls: true,
        base_instructions: true,
    });
    let mut before = machine.clone();
    if emulate(&mut machine, &case.bytes) != Outcome::Done {
        assert_eq!(
            machine, before,
            "a refused instruction has changed something"
        );
        return;
    }
    let decoded = decode(&case.bytes, Gva(KERNEL_CODE)).expect("it is emulated");
    // `iret` and similar instructions may return to a program.
    if machine.changes.segments.is_none() {
        let next = next_places(&mut before, &decoded);
        let at = Next::At(Gva(machine.rip));
        assert!(next.contains(&at), "{decoded:?}: {at:?} is not in {next:?}");
    }
}

fn low(value: u64) -> u16 {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}
