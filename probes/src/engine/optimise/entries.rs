//! Checks of the page-directory entries that map the detour region: if the guest changes an entry, the jumps in the guest's
//! text lose their target.

use detour::{ChangedEntry, DetourError};
use text::Paused;

use crate::engine::arm::error::ArmError;
use crate::engine::optimise::Optimiser;

impl Optimiser {
    /// Whether [`tend_region`](Self::tend_region) has work, and needs the vCPUs paused. Called from time to time; any thread
    /// may call at any time.
    pub(crate) fn region_needs_pause(&self) -> bool {
        self.detour
            .changed_entry(self.running.memory.as_ref())
            .is_some()
    }

    /// If the guest has changed an entry, removes every jump, and gives the region up. The other vCPUs are paused.
    pub(crate) fn tend_region(&self, paused: &dyn Paused) {
        let memory = self.running.memory.as_ref();
        let Some(changed) = self.detour.changed_entry(memory) else {
            return;
        };
        let is_switch_reached = self.detour.lose(memory);
        let ChangedEntry { gpa, was, is } = changed;
        self.reporter.note(
            None,
            format!(
                "the guest has changed an entry of its page tables that leads to the detour region, at {gpa}: it was \
                 {was:#x} and is {is:#x}; no jump stands for a probe any more, every hit exits, and the region stays"
            ),
        );
        for plant in self.plants.table.load_full().plants() {
            if let Err(error) = self.unoptimise(paused, plant) {
                self.reporter
                    .note(None, format!("a jump stays at {}: {error}", plant.at));
            }
        }
        if !is_switch_reached && let Err(error) = self.int3.close_int3(paused) {
            self.reporter.note(
                None,
                format!("the kernel's handler of int3 stays led to the region: {error}"),
            );
        }
    }

    /// Takes the region away from the kernel, which is about to hand over to another kernel (kexec). Every plant is gone
    /// already. The entries of the region become zero again, and the kernel's handler of `int3` gets its original code. No
    /// further region is made: each hit of a later plant exits.
    ///
    /// The vCPUs are paused, and the guest has stopped all vCPUs but one for good: no thread inside the region continues.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(crate) fn hand_over_region(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.records.take_out_records();
        for plant in self.plants.table.load_full().plants() {
            self.unoptimise(paused, plant)
                .map_err(|error| ArmError(error.into()))?;
        }
        self.int3
            .close_int3(paused)
            .map_err(|error| ArmError(error.into()))?;
        match self.detour.hand_over(self.running.memory.as_ref()) {
            Ok(()) => Ok(()),
            Err(DetourError::Guest(error)) => Err(ArmError(error.into())),
            Err(error) => {
                self.reporter
                    .note(None, format!("the detour region stays: {error}"));
                Ok(())
            }
        }
    }
}
