//! The questions to the host, one function each.

use std::time::{Duration, Instant};

use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_USE_HW_BP, KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};

use super::SelfTestError;
use super::guest::{
    ALIAS, CODE, DATA, END_PORT, Exit, READ_ONLY, REPORTED_INTERRUPT, Ring, TinyGuest,
};
use crate::kvm::{
    BreakpointInjection, Host, Int1Delivery, Int3Delivery, InterruptedInt3, PortDelivery, Speed,
};

/// `out END_PORT, al; hlt`
const END: [u8; 3] = [0xe6, END_PORT, 0xf4];
const NOP: u8 = 0x90;
/// Vector of #BP.
const BREAKPOINT: u8 = 3;
const INT1: u8 = 0xf1;
const INT3: u8 = 0xcc;

fn with_end(code: &[u8]) -> Vec<u8> {
    [code, &END].concat()
}

fn debug(control: u32) -> kvm_guest_debug {
    kvm_guest_debug {
        control,
        ..Default::default()
    }
}

/// What is the result of an `int3`?
pub(super) fn int3(guest: &mut TinyGuest, ring: Ring) -> Result<Int3Delivery, SelfTestError> {
    guest.load(&with_end(&[INT3]), ring)?;
    guest.debug(&debug(KVM_GUESTDBG_USE_SW_BP))?;
    let exit = guest.run();
    let at_instruction = guest.rip()? == CODE;
    Ok(match exit {
        Exit::Debug { exception: 3, .. } if at_instruction => Int3Delivery::DebugExit,
        Exit::EmulationFailure if at_instruction => Int3Delivery::EmulationFailure,
        Exit::Vector(3) => Int3Delivery::ToGuest,
        _ => Int3Delivery::Broken,
    })
}

/// Where must RIP be for an injected #BP to look like the #BP of the `int3` at CODE?
pub(super) fn breakpoint_injection(
    guest: &mut TinyGuest,
) -> Result<BreakpointInjection, SelfTestError> {
    for (rip, answer) in [
        (CODE, BreakpointInjection::AtInstruction),
        (CODE + 1, BreakpointInjection::AfterInstruction),
    ] {
        guest.load(&with_end(&[INT3]), Ring::Kernel)?;
        guest.debug(&debug(KVM_GUESTDBG_USE_SW_BP))?;
        // A real #BP comes first: KVM remembers the instruction's length from the real #BP.
        if guest.run() == Exit::Vector(3) {
            // The host does not intercept int3: the VMM never has to inject #BP.
            return Ok(BreakpointInjection::AtInstruction);
        }
        guest.set_rip(rip)?;
        let mut events = guest.events()?;
        events.exception.injected = 1;
        events.exception.nr = BREAKPOINT;
        guest.set_events(&events)?;
        if guest.run() == Exit::Vector(3) && guest.read(guest.regs()?.rsp)? == CODE + 1 {
            return Ok(answer);
        }
    }
    Ok(BreakpointInjection::Broken)
}

/// Does KVM keep the #BP of an `int3` whose delivery was interrupted, if the VMM sets the reported events and removes the `int3`?
///
/// The delivery finds pages without a mapping in KVM, and a signal arrives while KVM maps a page. Each attempt sends the signal
/// at another delay, because the right delay is unknown.
pub(super) fn interrupted_int3(
    guest: &mut TinyGuest,
    exit_ns: u64,
) -> Result<InterruptedInt3, SelfTestError> {
    const ATTEMPTS: u64 = 96;
    const DELAYS: u64 = 24;
    for attempt in 0..ATTEMPTS {
        guest.load(&with_end(&[INT3]), Ring::Kernel)?;
        guest.forget_mappings();
        let delay = Duration::from_nanos(exit_ns * (attempt % DELAYS + 1) / 2);
        if !guest.is_interrupted_after(delay) || guest.rip()? != CODE {
            continue;
        }
        let events = guest.events()?;
        if events.exception.nr != BREAKPOINT && events.interrupt.nr != BREAKPOINT {
            // The vCPU did not even execute the int3.
            continue;
        }
        if events.exception.injected | events.exception.pending | events.interrupt.injected != 0 {
            return Ok(InterruptedInt3::Kept);
        }
        guest.set_events(&events)?;
        guest.replace_code(&with_end(&[NOP]))?;
        return Ok(match guest.run() {
            Exit::End => InterruptedInt3::Cancelled,
            _ => InterruptedInt3::Kept,
        });
    }
    Ok(InterruptedInt3::NotSeen)
}

/// Does `out dx, al` exit for every DX, and with which RIP?
pub(super) fn port(guest: &mut TinyGuest) -> Result<PortDelivery, SelfTestError> {
    // Ports of devices that KVM could have in the kernel, and of KVM's quirks.
    const PORTS: [u16; 12] = [
        0x20, 0x21, 0xa0, 0x40, 0x43, 0x61, 0x7e, 0x80, 0x4d0, 0xcf8, 0x5658, 0xffff,
    ];
    let mut code = Vec::new();
    for port in PORTS {
        // mov dx, port; out dx, al
        code.extend([0x66, 0xba]);
        code.extend(port.to_le_bytes());
        code.push(0xee);
    }
    guest.load(&with_end(&code), Ring::Kernel)?;
    let mut found = None;
    for (i, port) in PORTS.into_iter().enumerate() {
        let at = CODE + 5 * i as u64 + 4;
        if guest.run() != (Exit::Port { port }) {
            return Ok(PortDelivery::Broken);
        }
        let delivery = match guest.rip()?.wrapping_sub(at) {
            0 => PortDelivery::AtInstruction,
            1 => PortDelivery::AfterInstruction,
            _ => PortDelivery::Broken,
        };
        if *found.get_or_insert(delivery) != delivery {
            return Ok(PortDelivery::Broken);
        }
    }
    Ok(found.unwrap_or(PortDelivery::Broken))
}

/// What is the result of an `int1` in ring 3 while a debug register is in force?
pub(super) fn int1(guest: &mut TinyGuest) -> Result<Int1Delivery, SelfTestError> {
    // The SVM of Bochs delivers the exception before instead, if the delivery's pages are not in KVM's tables yet.
    guest.load(&with_end(&[INT1, NOP]), Ring::User)?;
    guest.run();
    guest.load(&with_end(&[INT1, NOP]), Ring::User)?;
    let mut control = debug(KVM_GUESTDBG_USE_HW_BP);
    control.arch.debugreg[0] = DATA.into();
    control.arch.debugreg[7] = 0x402;
    guest.debug(&control)?;
    let exit = guest.run();
    Ok(match (exit, guest.rip()?.wrapping_sub(CODE)) {
        (Exit::Debug { exception: 1, .. }, 0) => Int1Delivery::AtInstruction,
        (Exit::Debug { exception: 1, .. }, 1) => Int1Delivery::AfterInstruction,
        (Exit::Vector(1), _) => Int1Delivery::ToGuest,
        _ => Int1Delivery::Broken,
    })
}

/// Can an interrupt be held back, and is the interrupt delivered afterwards?
pub(super) fn holds_interrupts(guest: &mut TinyGuest, host: &Host) -> Result<bool, SelfTestError> {
    if !host.capabilities().block_interrupts {
        return Ok(false);
    }
    guest.load(&with_end(&[NOP]), Ring::Kernel)?;
    guest.raise_interrupt()?;
    guest.debug(&debug(KVM_GUESTDBG_BLOCKIRQ))?;
    if guest.run() != Exit::End {
        return Ok(false);
    }
    guest.set_rip(CODE)?;
    guest.debug(&kvm_guest_debug::default())?;
    Ok(guest.run() == Exit::Vector(REPORTED_INTERRUPT))
}

/// Does an execution breakpoint in DR0 fire?
pub(super) fn debug_execute(guest: &mut TinyGuest) -> Result<bool, SelfTestError> {
    guest.load(&with_end(&[NOP, NOP]), Ring::Kernel)?;
    let mut control = debug(KVM_GUESTDBG_USE_HW_BP);
    control.arch.debugreg[0] = CODE + 1;
    control.arch.debugreg[7] = 0x402;
    guest.debug(&control)?;
    // DR6 is not checked: an emulated SVM may leave the cause out, and nothing else stops there.
    let exit = guest.run();
    Ok(matches!(exit, Exit::Debug { exception: 1, .. }) && guest.rip()? == CODE + 1)
}

/// Does an execution breakpoint fire in front of an instruction whose page KVM cannot access?
pub(super) fn breakpoint_before_fetch(guest: &mut TinyGuest) -> Result<bool, SelfTestError> {
    const HIDDEN: u64 = CODE + 0x1000;
    // jmp HIDDEN
    let mut code = vec![0xe9];
    code.extend((0x1000_u32 - 5).to_le_bytes());
    guest.load(&code, Ring::Kernel)?;
    let mut control = debug(KVM_GUESTDBG_USE_HW_BP);
    control.arch.debugreg[0] = HIDDEN;
    control.arch.debugreg[7] = 0x402;
    guest.debug(&control)?;
    guest.set_accessible(HIDDEN, false);
    let exit = guest.run();
    guest.set_accessible(HIDDEN, true);
    Ok(matches!(exit, Exit::Debug { exception: 1, .. }))
}

/// Do write watchpoints fire, one after the other, and does DR6 name the one that has fired last, and no other?
pub(super) fn debug_data(guest: &mut TinyGuest) -> Result<bool, SelfTestError> {
    // mov byte [DATA], al; mov byte [DATA + 15], al
    let mut code = vec![0x88, 0x04, 0x25];
    code.extend(DATA.to_le_bytes());
    code.extend([0x88, 0x04, 0x25]);
    code.extend((DATA + 15).to_le_bytes());
    guest.load(&with_end(&code), Ring::Kernel)?;
    let mut control = debug(KVM_GUESTDBG_USE_HW_BP);
    control.arch.debugreg[0] = DATA.into();
    control.arch.debugreg[3] = u64::from(DATA) + 8;
    // G0 and G3; DR0: on writes, one byte; DR3: on writes, eight bytes.
    control.arch.debugreg[7] = 0x482 | (0b01 << 16) | (0b1001 << 28);
    guest.debug(&control)?;
    let names = |exit, register: u64| matches!(exit, Exit::Debug { exception: 1, dr6 } if dr6 & DR6_CAUSES == register);
    Ok(names(guest.run(), 1) && names(guest.run(), 8) && guest.run() == Exit::End)
}

/// The debug registers that have fired, an access to one, a step, and a task switch.
const DR6_CAUSES: u64 = 0xe00f;

/// Does a write to a read-only slot exit, and a read not?
pub(super) fn read_only_slots(guest: &mut TinyGuest) -> Result<bool, SelfTestError> {
    // mov al, [READ_ONLY]; mov [READ_ONLY], al
    let address = READ_ONLY.to_le_bytes();
    let mut code = vec![0x8a, 0x04, 0x25];
    code.extend(address);
    code.extend([0x88, 0x04, 0x25]);
    code.extend(address);
    guest.load(&with_end(&code), Ring::Kernel)?;
    Ok(guest.run()
        == (Exit::Write {
            gpa: READ_ONLY.into(),
        })
        && guest.run() == Exit::End)
}

/// Does a guest that reloads CR3 see the VMM's writes to its page tables?
///
/// A KVM without EPT or NPT keeps shadow tables. Such a KVM follows the guest's writes to its own tables, not the VMM's.
pub(super) fn table_writes_seen(guest: &mut TinyGuest) -> Result<bool, SelfTestError> {
    // mov al, [ALIAS + DATA]
    let mut read = vec![0x8a, 0x04, 0x25];
    read.extend((ALIAS + DATA).to_le_bytes());
    // mov rax, cr3; mov cr3, rax
    const LOAD_CR3: [u8; 6] = [0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8];
    let code = [&read, &END[..2], &LOAD_CR3, &read, &END].concat();
    guest.map_alias(true)?;
    guest.load(&code, Ring::Kernel)?;
    let is_mapped = guest.run() == Exit::End;
    guest.map_alias(false)?;
    // Only a guest that still reads by the removed mapping is a proof.
    Ok(!(is_mapped && guest.run() == Exit::End))
}

/// The register with the address of the kernel's system-call entry.
const MSR_LSTAR: u32 = 0xc000_0082;

/// Does the write of a filtered MSR exit?
pub(super) fn msr_exits(guest: &mut TinyGuest, host: &Host) -> Result<bool, SelfTestError> {
    if !host.capabilities().msr_filter
        || crate::kvm::report_msr_writes(&guest.vm, MSR_LSTAR).is_err()
    {
        return Ok(false);
    }
    // mov ecx, MSR_LSTAR; wrmsr
    let mut code = vec![0xb9];
    code.extend(MSR_LSTAR.to_le_bytes());
    code.extend([0x0f, 0x30]);
    guest.load(&with_end(&code), Ring::Kernel)?;
    Ok(guest.run() == (Exit::MsrWrite { index: MSR_LSTAR }) && guest.run() == Exit::End)
}

/// How fast does ring 0 run?
pub(super) fn speed(guest: &mut TinyGuest) -> Result<Speed, SelfTestError> {
    const ROUNDS: u32 = 20_000;
    // mov ecx, ROUNDS; again: dec ecx; jnz again
    let mut code = vec![0xb9];
    code.extend(ROUNDS.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc]);
    guest.load(&with_end(&code), Ring::Kernel)?;
    let started = Instant::now();
    guest.run();
    Ok(Speed {
        instructions: 2 * u64::from(ROUNDS),
        took: started.elapsed(),
    })
}

/// What does an exit cost?
pub(super) fn exit_ns(guest: &mut TinyGuest) -> Result<u64, SelfTestError> {
    const EXITS: u16 = 100;
    // again: out END_PORT, al; jmp again
    guest.load(&[0xe6, END_PORT, 0xeb, 0xfc], Ring::Kernel)?;
    guest.run();
    let started = Instant::now();
    for _ in 0..EXITS {
        // The loop of `TinyGuest::run` without the watchdog, whose system calls would be counted too.
        let _ = guest.fd.run();
    }
    let nanos = started.elapsed().as_nanos() / u128::from(EXITS);
    Ok(u64::try_from(nanos).unwrap_or(u64::MAX))
}
