//! Segment registers and their bases.
//!
//! The emulator loads a descriptor at privilege level 0 only if the descriptor is present, has the
//! accessed bit, and has the rights asked for by the instruction. With any other descriptor the
//! hardware raises an exception or sets a bit, so the hardware runs the instruction.

use address::Gva;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::effects::{Effects, Stop, is_canonical};
use super::flags::ALIGNMENT;
use super::operand::{is_memory, operand_width};
use super::width::Width;
use crate::insn::cpu::{Access, Cpu};
use crate::insn::reason::Reason;
use crate::insn::system::{CastShadow, Msr, SegmentRegister, Segments, System, SystemChanges};

/// Attributes of descriptors.
const ACCESSED: u16 = 1;
/// Data segment: writable. Code segment: readable.
const READ_WRITE: u16 = 1 << 1;
/// Code segment: runs at the privilege level of the caller.
const CONFORMING: u16 = 1 << 2;
/// Data segment: the limit is the lower bound.
const EXPANDS_DOWN: u16 = 1 << 2;
const CODE: u16 = 1 << 3;
/// Code or data, and no gate or task.
const MEMORY: u16 = 1 << 4;
const PRESENT: u16 = 1 << 7;
const LONG: u16 = 1 << 13;
/// Code and stack have 32 bits.
const WIDE: u16 = 1 << 14;
const GRANULAR: u16 = 1 << 15;

/// A selector's table bit, and (`REQUESTED`) the bits of the requested privilege level.
const LOCAL: u16 = 1 << 2;
const REQUESTED: u16 = 3;

/// Whether `insn` is an emulated `mov` between a segment register and another operand. Loads of FS
/// and GS are left out: processors differ in the effect on the base.
pub(super) fn is_move(insn: &Instruction) -> bool {
    let register =
        |operand| (insn.op_kind(operand) == OpKind::Register).then(|| insn.op_register(operand));
    insn.mnemonic() == Mnemonic::Mov
        && (register(1).is_some_and(Register::is_segment_register)
            || matches!(
                register(0),
                Some(Register::DS | Register::ES | Register::SS)
            ))
}

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    match cpu.insn.mnemonic() {
        Mnemonic::Mov
            if cpu.insn.op0_kind() == OpKind::Register
                && cpu.insn.op0_register().is_segment_register() =>
        {
            load(cpu)
        }
        Mnemonic::Mov => store(cpu),
        Mnemonic::Swapgs => swap(cpu),
        Mnemonic::Rdfsbase | Mnemonic::Rdgsbase => {
            let segments = with_base_instructions(cpu)?.segments;
            let segment = match cpu.insn.mnemonic() {
                Mnemonic::Rdfsbase => segments.fs,
                _ => segments.gs,
            };
            let width = operand_width(cpu.insn, 0)?;
            cpu.set_operand(0, width, segment.base)
        }
        Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => {
            with_base_instructions(cpu)?;
            let width = operand_width(cpu.insn, 0)?;
            let base = cpu.operand(0, width)?;
            if !is_canonical(cpu.cpu, base)? {
                return Err(Reason::Segment.into());
            }
            let mut changes = SystemChanges::default();
            match cpu.insn.mnemonic() {
                Mnemonic::Wrfsbase => changes.fs_base = Some(base),
                _ => changes.gs_base = Some(base),
            }
            cpu.change_system(changes);
            Ok(())
        }
        _ => Err(Reason::Unmodelled.into()),
    }
}

fn with_base_instructions<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<System, Stop> {
    let system = cpu.cpu.system()?;
    if system.base_instructions {
        Ok(system)
    } else {
        Err(Reason::MissingFeature.into())
    }
}

fn swap<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    if cpu.cpu.privilege_level()? != 0 {
        return Err(Reason::PrivilegeLevel.into());
    }
    let inactive = cpu.cpu.msr(Msr::KernelGsBase)?;
    let active = cpu.cpu.system()?.segments.gs.base;
    cpu.change_system(SystemChanges {
        gs_base: Some(inactive),
        kernel_gs_base: Some(active),
        ..SystemChanges::default()
    });
    Ok(())
}

/// `mov` from a segment register.
fn store<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let segments = cpu.cpu.system()?.segments;
    let segment = match cpu.insn.op1_register() {
        Register::CS => segments.cs,
        Register::SS => segments.ss,
        Register::DS => segments.ds,
        Register::ES => segments.es,
        Register::FS => segments.fs,
        Register::GS => segments.gs,
        _ => return Err(Reason::Segment.into()),
    };
    // In memory 16 bits, for any operand size.
    let width = if is_memory(cpu.insn, 0) {
        Width::B2
    } else {
        operand_width(cpu.insn, 0)?
    };
    cpu.set_operand(0, width, u64::from(segment.selector))
}

/// `mov` to DS, ES or SS.
fn load<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let selector = if is_memory(cpu.insn, 1) {
        cpu.operand(1, Width::B2)?
    } else {
        cpu.full_register(1)?
    };
    let selector = low_selector(selector);
    let is_stack = cpu.insn.op0_register() == Register::SS;
    let reason = if is_stack {
        Reason::StackSegment
    } else {
        Reason::Segment
    };
    if cpu.cpu.privilege_level()? != 0 {
        return Err(reason.into());
    }
    let system = cpu.cpu.system()?;
    let segment = match (is_null(selector), is_stack) {
        (true, true) if selector != 0 => return Err(reason.into()),
        (true, _) => unusable(selector, 0),
        (false, true) => stack(cpu, &system, selector, 0, reason)?,
        (false, false) => data(cpu, &system, selector, reason)?,
    };
    let mut segments = system.segments;
    match cpu.insn.op0_register() {
        Register::DS => segments.ds = segment,
        Register::ES => segments.es = segment,
        _ => segments.ss = segment,
    }
    cpu.change_system(SystemChanges {
        segments: Some(segments),
        shadow: is_stack.then_some(CastShadow::MovSs),
        ..SystemChanges::default()
    });
    Ok(())
}

/// The selector in the low 16 bits of a value.
pub(super) fn low_selector(value: u64) -> u16 {
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Whether a selector is one of the four null selectors.
pub(super) const fn is_null(selector: u16) -> bool {
    selector & !REQUESTED == 0
}

/// The register contents after loading a null selector.
pub(super) fn unusable(selector: u16, level: u16) -> SegmentRegister {
    SegmentRegister {
        selector,
        attributes: level << 5,
        ..SegmentRegister::default()
    }
}

/// The 64-bit or 32-bit code segment of `selector` for code at privilege level `level`.
pub(super) fn code<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    system: &System,
    selector: u16,
    level: u16,
    reason: Reason,
) -> Result<SegmentRegister, Stop> {
    let segment = descriptor(cpu, system, selector, reason)?;
    let has = |attribute| segment.attributes & attribute != 0;
    let fits = has(CODE)
        && !has(CONFORMING)
        && has(LONG) != has(WIDE)
        && segment.privilege_level() == level;
    if fits {
        Ok(segment)
    } else {
        Err(reason.into())
    }
}

/// The stack segment at privilege level `level`.
pub(super) fn stack<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    system: &System,
    selector: u16,
    level: u16,
    reason: Reason,
) -> Result<SegmentRegister, Stop> {
    let segment = descriptor(cpu, system, selector, reason)?;
    let has = |attribute| segment.attributes & attribute != 0;
    let fits = !has(CODE)
        && has(READ_WRITE)
        && !has(EXPANDS_DOWN)
        && has(WIDE)
        && segment.privilege_level() == level
        && selector & REQUESTED == level;
    if fits {
        Ok(segment)
    } else {
        Err(reason.into())
    }
}

/// A data segment, for privilege level 0.
fn data<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    system: &System,
    selector: u16,
    reason: Reason,
) -> Result<SegmentRegister, Stop> {
    let segment = descriptor(cpu, system, selector, reason)?;
    let fits = segment.attributes & CODE == 0 && segment.privilege_level() >= selector & REQUESTED;
    if fits {
        Ok(segment)
    } else {
        Err(reason.into())
    }
}

/// The register contents after loading a selector other than null at privilege level 0.
fn descriptor<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    system: &System,
    selector: u16,
    reason: Reason,
) -> Result<SegmentRegister, Stop> {
    let table = match selector & LOCAL {
        0 => Some(system.gdt),
        _ => system.ldt,
    };
    let offset = selector & !(LOCAL | REQUESTED);
    // SMAP applies to the table access even where AC lifts SMAP for other accesses.
    let readable = table.filter(|table| u32::from(offset) + 7 <= table.limit);
    let Some(table) = readable.filter(|_| !cpu.flags.was_set(ALIGNMENT)) else {
        return Err(reason.into());
    };
    let mut bytes = [0; 8];
    let at = Gva(table.base.wrapping_add(u64::from(offset)));
    cpu.cpu
        .read(at, &mut bytes, Access::Read)
        .map_err(|_| reason)?;
    let [
        limit_0,
        limit_8,
        base_0,
        base_8,
        base_16,
        access,
        flags,
        base_24,
    ] = bytes;
    let attributes = u16::from_le_bytes([access, flags & 0xf0]);
    let needed = PRESENT | MEMORY | ACCESSED;
    if is_null(selector) || attributes & needed != needed {
        return Err(reason.into());
    }
    let limit = u32::from_le_bytes([limit_0, limit_8, flags & 0xf, 0]);
    Ok(SegmentRegister {
        selector,
        base: u64::from(u32::from_le_bytes([base_0, base_8, base_16, base_24])),
        limit: if attributes & GRANULAR != 0 {
            limit << 12 | 0xfff
        } else {
            limit
        },
        attributes,
        usable: true,
    })
}

/// The flat segments loaded by `sysret`, at privilege level 3.
pub(super) fn flat_code(selector: u16, long: bool) -> SegmentRegister {
    let width = if long { LONG } else { WIDE };
    flat(selector, CODE | READ_WRITE | width)
}

pub(super) fn flat_stack(selector: u16) -> SegmentRegister {
    flat(selector, READ_WRITE | WIDE)
}

fn flat(selector: u16, kind: u16) -> SegmentRegister {
    SegmentRegister {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes: kind | ACCESSED | MEMORY | 3 << 5 | PRESENT | GRANULAR,
        usable: true,
    }
}

impl SegmentRegister {
    /// Whether the segment holds 64-bit code.
    pub(super) const fn is_long(&self) -> bool {
        self.attributes & LONG != 0
    }

    /// Whether all but the selector and the privilege level is the same as in `other`.
    pub(super) const fn is_like(&self, other: &Self) -> bool {
        let level = 3 << 5;
        self.usable == other.usable
            && self.base == other.base
            && self.limit == other.limit
            && self.attributes | level == other.attributes | level
    }
}

/// The data segments after a return to privilege level 3: segments out of reach at level 3 become
/// null. If FS or GS is out of reach, the hardware runs the instruction, since makers differ in the
/// effect on the bases.
pub(super) fn out_of_reach(segments: &Segments, reason: Reason) -> Result<Segments, Stop> {
    let is_kept = |segment: &SegmentRegister| {
        let conforms = segment.attributes & (CODE | CONFORMING) == CODE | CONFORMING;
        segment.selector == 0 || (segment.usable && (segment.privilege_level() == 3 || conforms))
    };
    // On some processors, a null selector other than 0 becomes 0.
    let is_odd = |segment: &SegmentRegister| segment.selector != 0 && is_null(segment.selector);
    let Segments { ds, es, fs, gs, .. } = segments;
    if [ds, es, fs, gs].into_iter().any(is_odd) || !is_kept(fs) || !is_kept(gs) {
        return Err(reason.into());
    }
    let null_unless_kept = |segment: &SegmentRegister| {
        if is_kept(segment) {
            *segment
        } else {
            unusable(0, 0)
        }
    };
    Ok(Segments {
        ds: null_unless_kept(ds),
        es: null_unless_kept(es),
        ..*segments
    })
}
