//! Letting interrupts in, waiting for them, and segment registers.

use hyprobe_introspect::insn::{
    CastShadow, DescriptorTable, Gpr, Outcome, Reason, SegmentRegister, Segments, System,
    SystemChanges,
};
use reference::{Machine, Region};

use super::{CODE, kernel};

const INTERRUPT: u64 = 1 << 9;
const IO_LEVEL: u64 = 3 << 12;

pub(crate) const GDT: u64 = 0xffff_fe00_0000_1000;
pub(crate) const LDT: u64 = 0xffff_fe00_0000_2000;
pub(crate) const KERNEL_CODE: u16 = 0x10;
pub(crate) const KERNEL_DATA: u16 = 0x18;
pub(crate) const USER_CODE_32: u16 = 0x23;
pub(crate) const USER_DATA: u16 = 0x2b;
pub(crate) const USER_CODE: u16 = 0x33;
/// In the local table.
pub(crate) const LOCAL_CODE: u16 = 0x7;

/// Linux's descriptors, as far as needed here.
const DESCRIPTORS: [u64; 7] = [
    0,
    0x00cf_9b00_0000_ffff,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_fb00_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
];

/// A flat segment, as in the descriptor.
pub(crate) fn flat(selector: u16, attributes: u16) -> SegmentRegister {
    SegmentRegister {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        usable: true,
    }
}

/// Linux's processor in the kernel: code and stack flat, the other segments null.
pub(crate) fn linux() -> Machine {
    let mut machine = kernel();
    machine.memory.push(Region {
        start: GDT,
        bytes: DESCRIPTORS.iter().flat_map(|d| d.to_le_bytes()).collect(),
        writable: false,
    });
    machine.memory.push(Region {
        start: LDT,
        bytes: DESCRIPTORS[6].to_le_bytes().to_vec(),
        writable: false,
    });
    machine.system = Some(System {
        segments: Segments {
            cs: flat(KERNEL_CODE, 0xa09b),
            ss: flat(KERNEL_DATA, 0xc093),
            ..Segments::default()
        },
        gdt: DescriptorTable {
            base: GDT,
            limit: 8 * 7 - 1,
        },
        ldt: Some(DescriptorTable {
            base: LDT,
            limit: 7,
        }),
        fast_calls: true,
        base_instructions: true,
    });
    machine
}

/// Changes descriptor `index` of the global table.
pub(crate) fn with_descriptor(mut machine: Machine, index: usize, descriptor: u64) -> Machine {
    machine.memory[1].bytes[8 * index..8 * index + 8].copy_from_slice(&descriptor.to_le_bytes());
    machine
}

#[test]
fn sti_casts_a_shadow_only_if_interrupts_were_off() {
    let mut off = kernel();
    off.rflags = 2;
    let after = off.after("sti", "fb");
    assert_eq!((after.rflags, after.rip), (2 | INTERRUPT, CODE + 1));
    assert_eq!(after.changes.shadow, Some(CastShadow::Sti));

    let after = kernel().after("sti", "fb");
    assert_eq!(after.rflags, 2 | INTERRUPT);
    assert_eq!(after.changes, SystemChanges::default());
}

#[test]
fn interrupts_are_turned_on_only_with_the_privilege() {
    let program = kernel().at_level(3);
    let refused = Outcome::Unsupported(Reason::PrivilegeLevel);
    assert_eq!(program.clone().refused("sti", "fb"), refused);
    let driver = program.with_flags(IO_LEVEL);
    assert_eq!(driver.after("sti", "fb").rflags, 2 | INTERRUPT | IO_LEVEL);
}

#[test]
fn hlt_waits_behind_itself() {
    let after = kernel().after("hlt", "f4");
    assert_eq!(after.rip, CODE + 1);
    let waits = SystemChanges {
        halts: true,
        ..SystemChanges::default()
    };
    assert_eq!(after.changes, waits);
    let refused = kernel().at_level(3).refused("hlt", "f4");
    assert_eq!(refused, Outcome::Unsupported(Reason::PrivilegeLevel));
}

#[test]
fn swapgs_exchanges_the_bases() {
    let mut machine = linux().with_system(|system| system.segments.gs.base = 0x1234);
    machine.kernel_gs = 0xffff_8880_0000_0000;
    let after = machine.clone().after("swapgs", "0f 01 f8");
    let swapped = SystemChanges {
        gs_base: Some(0xffff_8880_0000_0000),
        kernel_gs_base: Some(0x1234),
        ..SystemChanges::default()
    };
    assert_eq!(after.changes, swapped);
    let refused = machine.at_level(3).refused("swapgs", "0f 01 f8");
    assert_eq!(refused, Outcome::Unsupported(Reason::PrivilegeLevel));
}

#[test]
fn bases_are_read_and_written_where_the_kernel_allows_it() {
    let machine = linux()
        .with_system(|system| {
            system.segments.fs.base = 0x7f00_1234_5678;
            system.segments.gs.base = 0xffff_8880_0000_0008;
        })
        .with(Gpr::Rax, 0xffff_ffff_8765_4321);
    let after = machine.clone().after("rdfsbase rax", "f3 48 0f ae c0");
    assert_eq!(after.gpr(Gpr::Rax), 0x7f00_1234_5678);
    let after = machine.clone().after("rdgsbase eax", "f3 0f ae c8");
    assert_eq!(after.gpr(Gpr::Rax), 8);
    let after = machine.clone().after("wrfsbase rax", "f3 48 0f ae d0");
    assert_eq!(after.changes.fs_base, Some(0xffff_ffff_8765_4321));
    let after = machine.clone().after("wrgsbase eax", "f3 0f ae d8");
    assert_eq!(after.changes.gs_base, Some(0x8765_4321));

    let odd = machine.clone().with(Gpr::Rax, 1 << 47);
    let refused = odd.refused("wrgsbase rax", "f3 48 0f ae d8");
    assert_eq!(refused, Outcome::Unsupported(Reason::Segment));
    let without = machine.with_system(|system| system.base_instructions = false);
    let refused = without.refused("rdfsbase rax", "f3 48 0f ae c0");
    assert_eq!(refused, Outcome::Unsupported(Reason::MissingFeature));
}

#[test]
fn selectors_are_read_at_the_width_of_the_operand() {
    let machine = linux()
        .with_system(|system| system.segments.ds.selector = 0xbeef)
        .with(Gpr::Rax, u64::MAX)
        .with(Gpr::Rbx, super::DATA);
    assert_eq!(
        machine.clone().after("mov eax, ds", "8c d8").gpr(Gpr::Rax),
        0xbeef
    );
    let after = machine.clone().after("mov ax, cs", "66 8c c8");
    assert_eq!(after.gpr(Gpr::Rax), 0xffff_ffff_ffff_0010);
    let before = machine.holding(super::DATA, u64::MAX);
    let after = before.after("mov [rbx], ds", "8c 1b");
    assert_eq!(after.quadword(super::DATA), 0xffff_ffff_ffff_beef);
}

#[test]
fn data_segments_are_loaded_from_the_tables() {
    let load = |selector: u16| {
        let machine = linux().with(Gpr::Rax, selector.into());
        let after = machine.after("mov es, eax", "8e c0");
        assert_eq!(after.changes.shadow, None);
        after.changes.segments.expect("one changes").es
    };
    assert_eq!(load(USER_DATA), flat(USER_DATA, 0xc0f3));
    assert_eq!(load(KERNEL_DATA), flat(KERNEL_DATA, 0xc093));
    assert!(!load(0).usable);
    assert_eq!(load(3).selector, 3);
}

#[test]
fn the_stack_segment_casts_a_shadow() {
    let machine = linux().with(Gpr::Rax, KERNEL_DATA.into());
    let after = machine.after("mov ss, eax", "8e d0");
    assert_eq!(after.changes.shadow, Some(CastShadow::MovSs));
    let segments = after.changes.segments.expect("one changes");
    assert_eq!(segments.ss, flat(KERNEL_DATA, 0xc093));
}

#[test]
fn segments_that_would_fault_or_change_the_table_are_left_to_the_hardware() {
    let machine = |selector: u16| linux().with(Gpr::Rax, selector.into());
    let refused = Outcome::Unsupported(Reason::Segment);
    // Behind the table, code instead of data, a request with too little privilege.
    for selector in [0x38, KERNEL_CODE, KERNEL_DATA | 3, 0xf] {
        let outcome = machine(selector).refused("mov es, eax", "8e c0");
        assert_eq!(outcome, refused, "{selector:#x}");
    }
    // Not present, not accessed yet, a gate.
    for access in [0x13_u64, 0x92, 0x83] {
        let descriptor = 0x00cf_0000_0000_ffff | access << 40;
        let outcome =
            with_descriptor(machine(KERNEL_DATA), 3, descriptor).refused("mov es, eax", "8e c0");
        assert_eq!(outcome, refused, "{access:#x}");
    }
    let outcome = machine(KERNEL_DATA)
        .with_system(|system| system.gdt.base = 0x5000)
        .refused("mov es, eax", "8e c0");
    assert_eq!(outcome, refused);
    let outcome = machine(0).at_level(3).refused("mov es, eax", "8e c0");
    assert_eq!(outcome, refused);
    for selector in [3, USER_DATA, KERNEL_CODE] {
        let outcome = machine(selector).refused("mov ss, eax", "8e d0");
        assert_eq!(outcome, Outcome::Unsupported(Reason::StackSegment));
    }
}
