//! Segment registers and their bases.
//!
//! A descriptor is loaded as it is by code of privilege level 0: present, accessed before, and
//! with the rights that the instruction asks for. With anything else the hardware has an
//! exception to raise or a bit to set, and is left to do so.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::effects::{Effects, Stop, is_canonical};
use super::flags::ALIGNMENT;
use super::width::Width;
use crate::Gva;
use crate::insn::class::Reason;
use crate::insn::cpu::{Access, Cpu};
use crate::insn::system::{CastShadow, Msr, SegmentRegister, Segments, System, SystemChanges};

/// Attributes of descriptors.
const ACCESSED: u16 = 1;
/// Of data: it can be written. Of code: it can be read.
const READ_WRITE: u16 = 1 << 1;
/// Of code: it runs at the privilege level of its caller.
const CONFORMING: u16 = 1 << 2;
/// Of data: the limit is the lower one.
const EXPANDS_DOWN: u16 = 1 << 2;
const CODE: u16 = 1 << 3;
/// Code or data, and no gate or task.
const MEMORY: u16 = 1 << 4;
const PRESENT: u16 = 1 << 7;
const LONG: u16 = 1 << 13;
/// Code and stack have 32 bits.
const WIDE: u16 = 1 << 14;
const GRANULAR: u16 = 1 << 15;

/// The bit of a selector that says which table, and those that ask for a privilege level.
const LOCAL: u16 = 1 << 2;
const REQUESTED: u16 = 3;

/// Whether it is a `mov` between a segment register and another operand, and of a kind that is
/// emulated: loads of FS and GS differ in what becomes of the base.
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
            let width = cpu.width(0)?;
            cpu.set_operand(0, width, segment.base)
        }
        Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => {
            with_base_instructions(cpu)?;
            let width = cpu.width(0)?;
            let base = cpu.operand(0, width)?;
            if !is_canonical(base) {
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
    // In memory 16 bits, whatever the operand size.
    let width = if cpu.is_memory(0) {
        Width::B2
    } else {
        cpu.width(0)?
    };
    cpu.set_operand(0, width, u64::from(segment.selector))
}

/// `mov` to DS, ES or SS.
fn load<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let selector = if cpu.is_memory(1) {
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

/// Whether a selector is one of the four that select nothing.
pub(super) const fn is_null(selector: u16) -> bool {
    selector & !REQUESTED == 0
}

/// What a null selector loads into a register.
pub(super) fn unusable(selector: u16, level: u16) -> SegmentRegister {
    SegmentRegister {
        selector,
        attributes: level << 5,
        ..SegmentRegister::default()
    }
}

/// The 64-bit or 32-bit code segment that code goes on in at privilege level `level`.
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

/// What a selector, not a null one, loads into a register at privilege level 0.
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
    // SMAP holds for the access to the table even where AC lifts it for others.
    let readable = table.filter(|table| u32::from(offset) + 7 <= table.limit);
    let Some(table) = readable.filter(|_| !cpu.flag(ALIGNMENT)) else {
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

/// The segments that `sysret` makes up, at privilege level 3: flat ones.
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
    /// Whether it holds 64-bit code.
    pub(super) const fn is_long(&self) -> bool {
        self.attributes & LONG != 0
    }

    /// Whether it is the same as `other` but for the privilege level.
    pub(super) const fn is_like(&self, other: &Self) -> bool {
        let level = 3 << 5;
        self.usable == other.usable
            && self.base == other.base
            && self.limit == other.limit
            && self.attributes | level == other.attributes | level
    }
}

/// The data segments after a return to privilege level 3: those that are out of reach there
/// become null. FS and GS are left to the hardware then, since makers differ in what becomes of
/// the bases.
pub(super) fn out_of_reach(segments: &Segments, reason: Reason) -> Result<Segments, Stop> {
    let is_kept = |segment: &SegmentRegister| {
        let conforms = segment.attributes & (CODE | CONFORMING) == CODE | CONFORMING;
        segment.selector == 0 || (segment.usable && (segment.privilege_level() == 3 || conforms))
    };
    // One of the other null selectors becomes 0, on some processors.
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
