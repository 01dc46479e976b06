//! Hits of the debug registers that hyprobe uses.

use introspect::Gva;
use text::{GuestError, Paused, RFLAGS_RF, Ran, To, Vcpu};

use super::Engine;
use super::hits::{HitOutcome, Told};
use super::jumps::INT3;
use crate::hit::{DebugUse, own_instruction};

impl Engine {
    /// Handles a hit of a debug register of hyprobe at `rip`.
    pub(super) fn on_debug_hit(
        &self,
        vcpu: &mut dyn Vcpu,
        fired: u8,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        let table = self.table.load();
        let used = (0..4).filter(|i| fired & (1 << i) != 0).find_map(|i| {
            table.debug[i]
                .as_ref()
                .filter(|used| used.plant().at == rip)
        });
        match used {
            None => Ok(HitOutcome::NotOurs),
            // The plant returns, and is hit.
            Some(DebugUse::StandIn(_)) => Ok(HitOutcome::NeedsPause),
            Some(DebugUse::Only(plant)) => {
                let outcome = match self.tell(vcpu, plant, rip)? {
                    Told::Resume => HitOutcome::Resume,
                    Told::NeedsPause => HitOutcome::NeedsPause,
                    Told::GoOn => match own_instruction(&self.planter, plant.spot, rip) {
                        // Behind a debug register, KVM does not know the length of the int3 for certain.
                        Some(decoded) if decoded.bytes() != [INT3] => {
                            self.emulate(vcpu, plant, &decoded)?
                        }
                        _ => HitOutcome::NeedsPause,
                    },
                };
                Ok(self.pause_if_rewritten(vcpu, outcome))
            }
        }
    }

    /// Handles a hit of a debug register of hyprobe at `rip`, with the other vCPUs paused.
    pub(super) fn on_paused_debug_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        self.remove_rewritten_jumps(paused)?;
        clear_resume_flag(vcpu)?;
        if self.end_stand_in(paused, rip)? {
            return Ok(());
        }
        let resumes = self.resuming().remove(&vcpu.index());
        let table = self.table.load_full();
        let only = table
            .debug
            .iter()
            .flatten()
            .map(DebugUse::plant)
            .find(|plant| plant.at == rip);
        if let Some(plant) = only {
            self.reach_milestones(vcpu, paused, plant, resumes)?;
            self.plant_return_sites(paused, plant);
        }
        match only {
            // Debug registers are off while a vCPU executes one instruction alone.
            Some(plant) if !resumes => {
                let decoded = own_instruction(&self.planter, plant.spot, rip);
                self.execute_in_place(vcpu, paused, plant, decoded.as_ref(), rip, &mut run)?;
                self.remove_rewritten_jumps(paused)
            }
            _ => Ok(()),
        }
    }
}

/// Clears RF after a debug register has fired or an `int3` has been executed: RF was clear before. A set RF would keep the next
/// debug register from firing, possibly only after the guest's handler has returned with the saved flags.
pub(super) fn clear_resume_flag(vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
    let mut regs = vcpu.regs()?;
    if regs.rflags & RFLAGS_RF != 0 {
        regs.rflags &= !RFLAGS_RF;
        vcpu.set_regs(&regs)?;
    }
    Ok(())
}
