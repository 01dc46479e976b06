//! The hardware-breakpoint fallback: a debug register replaces a plant while the guest may read the instruction.
//!
//! A guest that patches code reads the code again: Linux compares the bytes after a write, and `text_poke` panics if they
//! differ. After a guest write onto a plant, the plant therefore withdraws: memory shows the guest's bytes, and a debug
//! register watches the site until the next execution. Then the plant returns and is hit, and the register is free again. No
//! hit is lost in between, since each step happens with the other vCPUs paused.
//!
//! The processor has four registers. The kernel patches site after site, and compares after each write. At a write to a
//! fifth site, the plant of the first site therefore returns, executed or not.
//!
//! A guest also reads instructions made to fault: Linux's handler of #UD reads the bytes at the faulting RIP to distinguish
//! a warning from a bug, and would recognise neither in a plant. A plant on an undefined instruction therefore withdraws at
//! the first execution, and the debug register stays. If no register is free, the plant withdraws all the same, since the
//! guest must not be harmed: the probe misses the executions until a register is free, and reports the loss.
//!
//! An `int3` that the kernel was built with is treated alike. Linux's handler of #BP first asks the kprobes for the address,
//! then reads the byte. If the byte is not `int3`, the handler assumes a breakpoint that has just been removed, and returns
//! to the instruction, for ever. The handler reads the byte at once, so the plant may return when the register is needed
//! elsewhere. An `int3` that the guest has written needs no fallback at its execution: the guest knows the address.

use std::sync::Arc;

use address::{Gpa, Gva};
use text::{GuestError, Paused};

use crate::debug_registers::{DebugUse, assign_registers};
use crate::engine::optimise::Optimiser;
use crate::engine::plants::Plants;
use crate::engine::reporter::Reporter;
use crate::engine::running::{Running, is_undefined};
use crate::plant::Plant;
use crate::registry::{KernelEvent, Missed};

/// Withdraws plants while the guest may read them. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct StandIns {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) optimiser: Arc<Optimiser>,
}

impl StandIns {
    /// Withdraws the plants in `len` bytes from `gpa` on, and assigns debug registers.
    pub(crate) fn stand_in(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        len: usize,
    ) -> Result<(), GuestError> {
        let mut table = self.plants.table.load().as_ref().clone();
        // The fallbacks are in order of age, the oldest first.
        let mut uses: Vec<DebugUse> = table.debug.iter().flatten().cloned().collect();
        let covered: Vec<_> = (gpa.0..gpa.0.saturating_add(len as u64))
            .filter_map(|at| table.at_gpa(Gpa(at)).cloned())
            .collect();
        for plant in &covered {
            let stands_in =
                |used: &DebugUse| used.plant().is_some_and(|other| other.at == plant.at);
            if uses.iter().any(stands_in) {
                continue;
            }
            if uses.len() == table.debug.len() {
                let is_over = |used: &DebugUse| self.is_over(used, &covered);
                let Some(oldest) = uses.iter().position(is_over) else {
                    self.withdraw_unwatched(paused, plant)?;
                    continue;
                };
                if let Some(ended) = uses.remove(oldest).plant() {
                    self.running.planter.replant(paused, ended.spot.gpa)?;
                }
            }
            self.running.planter.withdraw(paused, plant.spot.gpa)?;
            uses.push(DebugUse::StandIn(Arc::clone(plant)));
        }
        table.debug = assign_registers(uses, &table.debug);
        self.plants.replace_table(paused, table);
        Ok(())
    }

    /// Whether the plant of a fallback can return before the next execution, because the guest has finished reading. The
    /// guest is about to write to `covered`.
    fn is_over(&self, used: &DebugUse, covered: &[Arc<Plant>]) -> bool {
        let DebugUse::StandIn(plant) = used else {
            return false;
        };
        let is_read = plant
            .displaced(&self.running.planter, plant.at)
            .is_none_or(|decoded| is_undefined(&decoded));
        !is_read && !covered.iter().any(|other| other.at == plant.at)
    }

    /// Withdraws a plant: the guest is about to execute the instruction, and then to read the bytes.
    pub(crate) fn withdraw_for_read(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
    ) -> Result<(), GuestError> {
        if self.running.abilities.debug_execute {
            self.stand_in(paused, plant.spot.gpa, 1)?;
        }
        if self.running.planter.is_withdrawn(plant.spot.gpa) {
            return Ok(());
        }
        self.withdraw_unwatched(paused, plant)
    }

    /// Withdraws a plant without a debug register.
    fn withdraw_unwatched(&self, paused: &dyn Paused, plant: &Plant) -> Result<(), GuestError> {
        if plant.has_kernel_event(KernelEvent::BootPatched) {
            // Nothing else would end early detours, whose `int3`s must go before a second CPU starts.
            self.optimiser.end_early_detours(paused)?;
        }
        self.running.planter.withdraw(paused, plant.spot.gpa)?;
        leave_unwatched(&self.plants, &self.reporter, plant);
        Ok(())
    }

    /// Ends the fallback at `rip`, if any: the instruction is about to be executed, and the plant returns. Returns whether a
    /// fallback has ended.
    pub(crate) fn end_stand_in(&self, paused: &dyn Paused, rip: Gva) -> Result<bool, GuestError> {
        let mut table = self.plants.table.load().as_ref().clone();
        let mut debug = table.debug.clone();
        let ended = debug.iter_mut().find_map(|slot| {
            slot.take_if(|used| matches!(used, DebugUse::StandIn(plant) if plant.at == rip))
        });
        let Some(DebugUse::StandIn(plant)) = ended else {
            return Ok(false);
        };
        self.running.planter.replant(paused, plant.spot.gpa)?;
        table.debug = debug;
        self.plants.replace_table(paused, table);
        Ok(true)
    }
}

/// Notes that the withdrawn plant has no debug register: executions are missed until one is free.
pub(crate) fn leave_unwatched(plants: &Plants, reporter: &Reporter, plant: &Plant) {
    let mut unwatched = plants.unwatched();
    if unwatched.contains(&plant.at) {
        return;
    }
    unwatched.push(plant.at);
    drop(unwatched);
    for (probe, _) in &plant.probes {
        probe.counters.miss(Missed::Unwatched);
        reporter.note(
            Some(probe),
            "the guest reads this instruction, and no debug register is free: executions are missed until one is"
                .to_owned(),
        );
    }
}
