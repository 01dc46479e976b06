//! Returns from interrupts and from system calls: `iret` and `sysret`.
//!
//! Both leave privilege level 0, or stay there, for a target described by descriptors or by two
//! registers. If the instruction would raise an exception, the hardware runs the instruction. The
//! hardware also runs a return with TF in the frame, because the guest must get the trap
//! afterwards.

use iced_x86::Code;

use super::effects::{Effects, Stop};
use super::flags::{
    ALIGNMENT, DIRECTION, IDENTIFICATION, INTERRUPT, INTERRUPT_PENDING, IO_LEVEL, NESTED_TASK,
    RESUME, STATUS, TRAP, VIRTUAL_8086, VIRTUAL_INTERRUPT,
};
use super::segment::{self, is_null, low_selector};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr, Vendor};
use crate::insn::reason::Reason;
use crate::insn::system::{Msr, Segments, System, SystemChanges};

/// The flags loaded by `iret` at privilege level 0.
const LOADED: u64 = STATUS
    | INTERRUPT
    | DIRECTION
    | IO_LEVEL
    | NESTED_TASK
    | RESUME
    | ALIGNMENT
    | VIRTUAL_INTERRUPT
    | INTERRUPT_PENDING
    | IDENTIFICATION;
/// The flags loaded by `sysret`.
const LOADED_FROM_R11: u64 = LOADED & !RESUME;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    match cpu.insn.code() {
        Code::Iretq => interrupt_return(cpu, Width::B8),
        Code::Iretd => interrupt_return(cpu, Width::B4),
        Code::Sysretq => system_return(cpu, Width::B8),
        Code::Sysretd => system_return(cpu, Width::B4),
        _ => Err(Reason::InterruptReturn.into()),
    }
}

fn check_trap_flag(image: u64) -> Result<(), Stop> {
    if image & TRAP == 0 {
        Ok(())
    } else {
        Err(Reason::GuestTrapFlag.into())
    }
}

fn interrupt_return<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    const REASON: Reason = Reason::InterruptReturn;
    if cpu.cpu.privilege_level()? != 0 || cpu.flags.was_set(NESTED_TASK) {
        return Err(REASON.into());
    }
    // A faulting `iret` unmasks NMIs too, so the hardware must raise the fault.
    let frame = cpu
        .read_string(cpu.gpr(Gpr::Rsp), width, 5)
        .map_err(|_| REASON)?;
    let mut popped = frame.chunks(width.bytes()).map(|bytes| {
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(value)
    });
    let mut pop = || popped.next().ok_or(REASON);
    let (rip, code, image, rsp, stack) = (pop()?, pop()?, pop()?, pop()?, pop()?);
    check_trap_flag(image)?;
    if image & VIRTUAL_8086 != 0 {
        return Err(REASON.into());
    }
    let system = cpu.cpu.system()?;
    let segments = segments_of_frame(cpu, &system, low_selector(code), low_selector(stack))?;
    if !segments.cs.is_long() && (rip > u64::from(segments.cs.limit) || rsp > u64::from(u32::MAX)) {
        return Err(REASON.into());
    }
    cpu.jump(rip);
    cpu.registers.set(Gpr::Rsp, rsp);
    cpu.flags.set(LOADED & !RESUME, image);
    cpu.flags.set_resume(image & RESUME != 0);
    cpu.change_system(SystemChanges {
        segments: (segments != system.segments).then_some(segments),
        unmasks_nmis: true,
        ..SystemChanges::default()
    });
    Ok(())
}

/// The segment registers after a return to the code and stack of these selectors.
fn segments_of_frame<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    system: &System,
    code: u16,
    stack: u16,
) -> Result<Segments, Stop> {
    const REASON: Reason = Reason::InterruptReturn;
    let level = code & 3;
    let cs = segment::code(cpu, system, code, level, REASON)?;
    let before = &system.segments;
    let ss = if !is_null(stack) {
        segment::stack(cpu, system, stack, level, REASON)?
    } else if level == 0 && stack == 0 {
        if before.ss.selector == 0 && !before.ss.usable {
            before.ss
        } else {
            segment::unusable(stack, level)
        }
    } else {
        return Err(REASON.into());
    };
    match level {
        0 if cs.is_long() => Ok(Segments { cs, ss, ..*before }),
        3 => Ok(Segments {
            cs,
            ss,
            ..segment::out_of_reach(before, REASON)?
        }),
        _ => Err(REASON.into()),
    }
}

fn system_return<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    const REASON: Reason = Reason::SystemReturn;
    let system = cpu.cpu.system()?;
    if cpu.cpu.privilege_level()? != 0 || !system.fast_calls {
        return Err(REASON.into());
    }
    let image = cpu.gpr(Gpr::R11);
    check_trap_flag(image)?;
    let base = low_selector(cpu.cpu.msr(Msr::Star)? >> 48);
    let code = match width {
        Width::B8 => base.wrapping_add(16),
        _ => base,
    };
    let stack = base.wrapping_add(8);
    let ss = segment::flat_stack(stack | 3);
    // Intel makes the stack segment flat. AMD changes only the selector of the stack segment, and
    // sets the selector to the value in IA32_STAR.
    let same_everywhere = system.segments.ss.is_like(&ss) && stack & 3 == 3;
    if !same_everywhere && cpu.cpu.features().vendor != Vendor::Intel {
        return Err(Reason::VendorSpecific.into());
    }
    cpu.jump(width.truncate(cpu.gpr(Gpr::Rcx)));
    cpu.flags.set(LOADED_FROM_R11, image);
    cpu.change_system(SystemChanges {
        segments: Some(Segments {
            cs: segment::flat_code(code | 3, width == Width::B8),
            ss,
            ..system.segments
        }),
        ..SystemChanges::default()
    });
    Ok(())
}
