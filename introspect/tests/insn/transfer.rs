//! Returns from interrupts and from system calls.

use hyprobe_introspect::insn::{
    DescriptorTable, Features, Gpr, Outcome, Reason, SegmentRegister, Segments, Vendor,
};
use reference::Machine;

use super::system::{
    KERNEL_CODE, KERNEL_DATA, LOCAL_CODE, USER_CODE, USER_CODE_32, USER_DATA, flat, linux,
    with_descriptor,
};
use super::{CODE, STACK};

const TRAP: u64 = 1 << 8;
const NESTED_TASK: u64 = 1 << 14;
const RESUME: u64 = 1 << 16;
const VIRTUAL_8086: u64 = 1 << 17;
const ALIGNMENT: u64 = 1 << 18;
/// All but TF, VM and the reserved bits.
const LOADED: u64 = 0x3d_7ed7;

const USER_RIP: u64 = 0x0040_1000;
const USER_RSP: u64 = 0x7ffd_1000;

/// The stack frame of `iretq`.
#[derive(Clone, Copy)]
struct Frame {
    rip: u64,
    cs: u16,
    rflags: u64,
    rsp: u64,
    ss: u16,
}

const TO_KERNEL: Frame = Frame {
    rip: CODE + 0x100,
    cs: KERNEL_CODE,
    rflags: 0x246,
    rsp: STACK + 0x80,
    ss: KERNEL_DATA,
};
const TO_USER: Frame = Frame {
    rip: USER_RIP,
    cs: USER_CODE,
    rflags: 0x246,
    rsp: USER_RSP,
    ss: USER_DATA,
};

fn interrupted(frame: Frame) -> Machine {
    let Frame {
        rip,
        cs,
        rflags,
        rsp,
        ss,
    } = frame;
    linux()
        .holding(STACK, rip)
        // The bits above a pushed selector may have any value.
        .holding(STACK + 8, 0xdead_0000 | u64::from(cs))
        .holding(STACK + 16, rflags)
        .holding(STACK + 24, rsp)
        .holding(STACK + 32, u64::from(ss))
}

fn returned(frame: Frame) -> Machine {
    interrupted(frame).after("iretq", "48 cf")
}

fn refused(machine: Machine) -> Reason {
    match machine.refused("iretq", "48 cf") {
        Outcome::Unsupported(reason) => reason,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn into_the_kernel_no_segment_changes() {
    let after = returned(TO_KERNEL);
    assert_eq!((after.rip, after.rflags), (CODE + 0x100, 0x246));
    assert_eq!(after.gpr(Gpr::Rsp), STACK + 0x80);
    assert!(after.changes.unmasks_nmis);
    assert_eq!(after.changes.segments, None);
}

#[test]
fn a_null_stack_segment_stays_or_comes_back() {
    let frame = Frame { ss: 0, ..TO_KERNEL };
    let without = interrupted(frame).with_system(|system| {
        system.segments.ss = SegmentRegister::default();
    });
    assert_eq!(without.after("iretq", "48 cf").changes.segments, None);
    let segments = returned(frame).changes.segments.expect("SS changes");
    assert!(!segments.ss.usable);
    let user = Frame { ss: 0, ..TO_USER };
    assert_eq!(refused(interrupted(user)), Reason::InterruptReturn);
}

#[test]
fn into_a_program_of_64_or_32_bits() {
    let after = returned(TO_USER);
    assert_eq!((after.rip, after.gpr(Gpr::Rsp)), (USER_RIP, USER_RSP));
    let segments = after.changes.segments.expect("they change");
    assert_eq!(segments.cs, flat(USER_CODE, 0xa0fb));
    assert_eq!(segments.ss, flat(USER_DATA, 0xc0f3));

    let after = returned(Frame {
        cs: USER_CODE_32,
        ..TO_USER
    });
    let segments = after.changes.segments.expect("they change");
    assert_eq!(segments.cs, flat(USER_CODE_32, 0xc0fb));

    // Linux gives programs no local descriptor, but a descriptor of the local table works equally.
    let local = Frame {
        cs: LOCAL_CODE,
        ..TO_USER
    };
    let segments = returned(local).changes.segments.expect("they change");
    assert_eq!(segments.cs, flat(LOCAL_CODE, 0xa0fb));
    let gone = interrupted(local).with_system(|system| system.ldt = None);
    assert_eq!(refused(gone), Reason::InterruptReturn);
}

#[test]
fn where_32_bits_do_not_hold_the_frame_the_hardware_decides() {
    for frame in [
        Frame {
            rip: 1 << 32,
            ..TO_USER
        },
        Frame {
            rsp: 1 << 32,
            ..TO_USER
        },
    ] {
        let frame = Frame {
            cs: USER_CODE_32,
            ..frame
        };
        assert_eq!(refused(interrupted(frame)), Reason::InterruptReturn);
    }
}

#[test]
fn a_frame_of_32_bits() {
    let mut machine = linux();
    let words = [
        0x1000_u32,
        USER_CODE.into(),
        0x202,
        0x2000,
        USER_DATA.into(),
    ];
    for (i, word) in words.into_iter().enumerate() {
        machine.put(STACK + 4 * i as u64, &word.to_le_bytes());
    }
    let after = machine.after("iretd", "cf");
    assert_eq!((after.rip, after.gpr(Gpr::Rsp)), (0x1000, 0x2000));
}

#[test]
fn flags_are_loaded_as_the_kernel_may() {
    for frame in [TO_KERNEL, TO_USER] {
        let after = returned(Frame {
            rflags: LOADED,
            ..frame
        });
        assert_eq!(after.rflags, LOADED | 2);
        let after = returned(Frame { rflags: 0, ..frame });
        assert_eq!(after.rflags, 2);
        // Reserved bits do not stick.
        let reserved = !(LOADED | TRAP | VIRTUAL_8086);
        let after = returned(Frame {
            rflags: reserved,
            ..frame
        });
        assert_eq!(after.rflags, 2);
    }
    // The next instruction is not stopped at by the guest's own breakpoint.
    let resumed = returned(Frame {
        rflags: RESUME | 2,
        ..TO_USER
    });
    assert_eq!(resumed.rflags, RESUME | 2);
}

#[test]
fn iret_that_faults_traps_or_switches_tasks_is_left_to_the_hardware() {
    let of = |frame| refused(interrupted(frame));
    let rflags = |rflags| Frame { rflags, ..TO_USER };
    assert_eq!(of(rflags(0x202 | TRAP)), Reason::GuestTrapFlag);
    assert_eq!(of(rflags(0x202 | VIRTUAL_8086)), Reason::InterruptReturn);
    for flag in [NESTED_TASK, ALIGNMENT] {
        let machine = interrupted(TO_USER).with_flags(flag);
        assert_eq!(refused(machine), Reason::InterruptReturn, "{flag:#x}");
    }
    assert_eq!(
        refused(interrupted(TO_USER).at_level(3)),
        Reason::InterruptReturn
    );
    let rip = 1 << 47;
    assert_eq!(of(Frame { rip, ..TO_USER }), Reason::BranchNotCanonical);
    // Null, behind the table, data, 32 bits in the kernel, a mismatched level.
    for cs in [0, 3, 0x3b, USER_DATA, 8, KERNEL_CODE | 3, USER_CODE & !3] {
        let reason = of(Frame { cs, ..TO_USER });
        assert_eq!(reason, Reason::InterruptReturn, "{cs:#x}");
    }
    for ss in [3, KERNEL_DATA, USER_DATA & !3, USER_CODE, 0x3b] {
        let reason = of(Frame { ss, ..TO_USER });
        assert_eq!(reason, Reason::InterruptReturn, "{ss:#x}");
    }
    // Unmapped stack: the fault unmasks NMIs, which only the hardware does.
    let lost = interrupted(TO_USER).with(Gpr::Rsp, 0x1000);
    assert_eq!(refused(lost), Reason::InterruptReturn);
    let no_table = interrupted(TO_USER).with_system(|system| {
        system.gdt = DescriptorTable::default();
    });
    assert_eq!(refused(no_table), Reason::InterruptReturn);
}

#[test]
fn descriptors_that_are_not_as_they_were_left_are_left_to_the_hardware() {
    // Not present, not accessed, conforming, 16 bits, both 32 and 64 bits.
    for descriptor in [
        0x00af_7b00_0000_ffff,
        0x00af_fa00_0000_ffff,
        0x00af_ff00_0000_ffff,
        0x008f_fb00_0000_ffff,
        0x00ef_fb00_0000_ffff,
    ] {
        let machine = with_descriptor(interrupted(TO_USER), 6, descriptor);
        assert_eq!(refused(machine), Reason::InterruptReturn, "{descriptor:#x}");
    }
    // A stack segment that is read-only, grows down or has 16 bits.
    for descriptor in [
        0x00cf_f100_0000_ffff,
        0x00cf_f700_0000_ffff,
        0x008f_f300_0000_ffff,
    ] {
        let machine = with_descriptor(interrupted(TO_USER), 5, descriptor);
        assert_eq!(refused(machine), Reason::InterruptReturn, "{descriptor:#x}");
    }
}

#[test]
fn the_kernels_data_is_out_of_reach_for_programs() {
    let with = |change: fn(&mut Segments)| {
        interrupted(TO_USER).with_system(|system| change(&mut system.segments))
    };
    let held = with(|segments| {
        segments.ds = flat(KERNEL_DATA, 0xc093);
        segments.es = flat(USER_DATA, 0xc0f3);
        segments.fs.base = 0x1234;
    });
    let segments = held.after("iretq", "48 cf").changes.segments;
    let segments = segments.expect("they change");
    assert_eq!((segments.ds.selector, segments.ds.usable), (0, false));
    assert_eq!(segments.es, flat(USER_DATA, 0xc0f3));
    assert_eq!(segments.fs.base, 0x1234);
    // The effect on the base of FS or GS, and on null selectors other than 0, differs between
    // processors.
    let odd = [
        with(|segments| segments.fs = flat(KERNEL_DATA, 0xc093)),
        with(|segments| segments.gs = flat(KERNEL_DATA, 0xc093)),
        with(|segments| segments.ds.selector = 1),
    ];
    for machine in odd {
        assert_eq!(refused(machine), Reason::InterruptReturn);
    }
}

/// About to return to a program by `sysret`.
fn called() -> Machine {
    let mut machine = linux()
        .with(Gpr::Rcx, USER_RIP)
        .with(Gpr::R11, 0x246)
        .with(Gpr::Rsp, USER_RSP);
    machine.star = u64::from(USER_CODE_32) << 48;
    machine
}

fn of_vendor(vendor: Vendor) -> Machine {
    Machine {
        features: Features {
            vendor,
            ..Features::ALL
        },
        ..called()
    }
}

#[test]
fn sysret_makes_its_segments_up() {
    for vendor in [Vendor::Intel, Vendor::Amd, Vendor::Other] {
        let after = of_vendor(vendor).after("sysretq", "48 0f 07");
        assert_eq!((after.rip, after.rflags), (USER_RIP, 0x246));
        assert_eq!(after.gpr(Gpr::Rsp), USER_RSP);
        let segments = after.changes.segments.expect("they change");
        assert_eq!(segments.cs, flat(USER_CODE, 0xa0fb));
        assert_eq!(segments.ss, flat(USER_DATA, 0xc0f3));
        assert!(!after.changes.unmasks_nmis);
    }
    let high = called().with(Gpr::Rcx, 0x5_0040_1000);
    let after = high.after("sysret", "0f 07");
    assert_eq!(after.rip, USER_RIP);
    let segments = after.changes.segments.expect("they change");
    assert_eq!(segments.cs, flat(USER_CODE_32, 0xc0fb));
}

#[test]
fn sysret_loads_the_flags_but_for_rf() {
    let all = LOADED | RESUME | VIRTUAL_8086;
    let after = called().with(Gpr::R11, all).after("sysretq", "48 0f 07");
    assert_eq!(after.rflags, LOADED & !RESUME | 2);
}

#[test]
fn vendor_specific_behaviour_is_emulated_for_intel_only() {
    let after_an_interrupt = |vendor| {
        of_vendor(vendor).with_system(|system| system.segments.ss = SegmentRegister::default())
    };
    let after = after_an_interrupt(Vendor::Intel).after("sysretq", "48 0f 07");
    let segments = after.changes.segments.expect("they change");
    assert_eq!(segments.ss, flat(USER_DATA, 0xc0f3));
    for vendor in [Vendor::Amd, Vendor::Other] {
        let outcome = after_an_interrupt(vendor).refused("sysretq", "48 0f 07");
        assert_eq!(outcome, Outcome::Unsupported(Reason::VendorSpecific));
    }
}

#[test]
fn a_sysret_that_faults_or_traps_is_left_to_the_hardware() {
    let refused = |machine: Machine| machine.refused("sysretq", "48 0f 07");
    let unsupported = Outcome::Unsupported;
    assert_eq!(
        refused(called().at_level(3)),
        unsupported(Reason::SystemReturn)
    );
    let off = called().with_system(|system| system.fast_calls = false);
    assert_eq!(refused(off), unsupported(Reason::SystemReturn));
    let lost = called().with(Gpr::Rcx, 1 << 47);
    assert_eq!(refused(lost), unsupported(Reason::BranchNotCanonical));
    let stepping = called().with(Gpr::R11, 0x202 | TRAP);
    assert_eq!(refused(stepping), unsupported(Reason::GuestTrapFlag));
}
