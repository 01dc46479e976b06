//! Letting interrupts in and waiting for them: `sti` and `hlt`.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{INTERRUPT, io_level};
use crate::insn::cpu::Cpu;
use crate::insn::reason::Reason;
use crate::insn::system::{CastShadow, SystemChanges};

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    match cpu.insn.mnemonic() {
        Mnemonic::Sti => {
            if u64::from(cpu.cpu.privilege_level()?) > io_level(cpu.flags.before()) {
                // The instruction may set VIF instead.
                return Err(Reason::PrivilegeLevel.into());
            }
            if !cpu.flags.was_set(INTERRUPT) {
                cpu.flags.set(INTERRUPT, INTERRUPT);
                cpu.change_system(SystemChanges {
                    shadow: Some(CastShadow::Sti),
                    ..SystemChanges::default()
                });
            }
            Ok(())
        }
        Mnemonic::Hlt => {
            if cpu.cpu.privilege_level()? != 0 {
                return Err(Reason::PrivilegeLevel.into());
            }
            cpu.change_system(SystemChanges {
                halts: true,
                ..SystemChanges::default()
            });
            Ok(())
        }
        _ => Err(Reason::Unmodelled.into()),
    }
}
