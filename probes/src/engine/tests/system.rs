//! Getting past instructions that let interrupts in, wait for them and return from them.

use address::Gva;
use introspect::insn::{DescriptorTable, SegmentRegister, Segments};
use text::GuestError;
use text::testing::FakeVcpu;
use vmm::{Blocking, Shadow};

use super::{DATA, Rig, STACK, one, vcpu};
use crate::engine::hits::outcome::HitOutcome;

const STI: [u8; 2] = [0xfb, 0xc3];
const CLI: [u8; 2] = [0xfa, 0xc3];
const HLT: [u8; 2] = [0xf4, 0xc3];
const IN: [u8; 2] = [0xec, 0xc3];
const SWAPGS: [u8; 4] = [0x0f, 0x01, 0xf8, 0xc3];
const IRETQ: [u8; 2] = [0x48, 0xcf];

const RFLAGS_IF: u64 = 1 << 9;
const MSR_GS_BASE: u32 = 0xc000_0101;
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

const KERNEL_CODE: SegmentRegister = segment(8, 0xa09b);
const KERNEL_STACK: SegmentRegister = segment(16, 0xc093);
const USER_STACK: SegmentRegister = segment(24 | 3, 0xc0f3);
const USER_CODE: SegmentRegister = segment(32 | 3, 0xa0fb);
const DESCRIPTORS: [u64; 5] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
];

const fn segment(selector: u16, attributes: u16) -> SegmentRegister {
    SegmentRegister {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        usable: true,
    }
}

fn hit(
    code: &[u8],
    change: impl Fn(&Rig, &mut FakeVcpu),
) -> (FakeVcpu, Result<HitOutcome, GuestError>, Gva) {
    let (kernel, at) = one("probed", code);
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    for (i, descriptor) in DESCRIPTORS.iter().enumerate() {
        let at = DATA + 8 * i as u64;
        rig.memory.put(at, &descriptor.to_le_bytes());
    }
    let mut vcpu = vcpu(at);
    vcpu.state.system.gdt = DescriptorTable {
        base: DATA,
        limit: 39,
    };
    vcpu.state.system.segments = Segments {
        cs: KERNEL_CODE,
        ss: KERNEL_STACK,
        ..Segments::default()
    };
    change(&rig, &mut vcpu);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at);
    (vcpu, outcome, at)
}

/// Executes an instruction that must be emulated.
fn passed(code: &[u8], change: impl Fn(&Rig, &mut FakeVcpu)) -> FakeVcpu {
    let (vcpu, outcome, _) = hit(code, change);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    vcpu
}

#[test]
fn sti_protects_the_next_instruction() {
    let vcpu = passed(&STI, |_, _| ());
    assert_eq!(vcpu.regs.rflags & RFLAGS_IF, RFLAGS_IF);
    assert_eq!(vcpu.blocking.shadow, Shadow::Sti);
}

/// VT-x enters no guest with interrupts off in a shadow of `sti`.
#[test]
fn the_shadow_over_an_emulated_instruction_ends_with_it() {
    for code in [CLI, IN] {
        for shadow in [Shadow::Sti, Shadow::MovSs] {
            let vcpu = passed(&code, |_, vcpu| {
                vcpu.blocking = Blocking { shadow, nmis: true };
            });
            let after = Blocking {
                shadow: Shadow::None,
                nmis: true,
            };
            assert_eq!(vcpu.blocking, after, "{code:x?}");
        }
    }
}

#[test]
fn hlt_waits_out_of_the_shadow() {
    let (vcpu, _, at) = hit(&HLT, |_, vcpu| {
        vcpu.regs.rflags |= RFLAGS_IF;
        vcpu.blocking.shadow = Shadow::Sti;
    });
    assert!(vcpu.halted);
    assert_eq!(vcpu.blocking.shadow, Shadow::None);
    assert_eq!(vcpu.regs.rip, at.0 + 1);
}

#[test]
fn swapgs_swaps() {
    let vcpu = passed(&SWAPGS, |_, vcpu| {
        vcpu.state.system.segments.gs.base = 0x1000;
        vcpu.msrs.insert(MSR_KERNEL_GS_BASE, 0x2000);
    });
    assert_eq!(vcpu.msrs[&MSR_GS_BASE], 0x2000);
    assert_eq!(vcpu.msrs[&MSR_KERNEL_GS_BASE], 0x1000);
}

fn interrupted(rig: &Rig, vcpu: &mut FakeVcpu, cs: SegmentRegister, ss: SegmentRegister) {
    let frame = [
        0x40_1000,
        cs.selector.into(),
        0x202,
        0x7000,
        ss.selector.into(),
    ];
    for (i, word) in frame.into_iter().enumerate() {
        let at = STACK + 8 * i as u64;
        rig.memory.put(at, &u64::to_le_bytes(word));
    }
    vcpu.blocking.nmis = true;
}

#[test]
fn iret_unmasks_nmis_and_changes_the_segments_if_they_change() {
    let vcpu = passed(&IRETQ, |rig, vcpu| {
        interrupted(rig, vcpu, USER_CODE, USER_STACK)
    });
    assert_eq!((vcpu.regs.rip, vcpu.regs.rsp), (0x40_1000, 0x7000));
    assert_eq!(vcpu.blocking, Blocking::default());
    let segments = vcpu.state.system.segments;
    assert_eq!((segments.cs, segments.ss), (USER_CODE, USER_STACK));
    assert_eq!(vcpu.state.privilege, 3);

    // Registers, state, blocking and back: no request more than needed.
    let count = |cs, ss| {
        let before = passed(&IRETQ, |rig, vcpu| interrupted(rig, vcpu, cs, ss));
        before.requests.made()
    };
    assert_eq!(
        count(USER_CODE, USER_STACK),
        count(KERNEL_CODE, KERNEL_STACK) + 1
    );
}

#[test]
fn a_request_that_fails_ends_the_run() {
    let requests = passed(&SWAPGS, |_, _| ()).requests.made();
    for failing in 1..=requests {
        let (vcpu, outcome, at) = hit(&SWAPGS, |_, vcpu| vcpu.requests.fail(failing));
        assert!(outcome.is_err(), "request {failing} of {requests}");
        assert_eq!(vcpu.regs.rip, at.0, "it has been moved on");
    }
}
