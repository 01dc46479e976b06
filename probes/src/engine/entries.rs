//! The entries of the kernel's page directory that lead to the detour region are looked at: a guest that changes one takes
//! the ground away from under its own jumps.

use super::{ArmError, Engine};
use crate::detour::{ChangedEntry, DetourError};
use crate::guest::Paused;

impl Engine {
    /// Whether something is to be done about the region with the vCPUs paused: [`tend_region`](Self::tend_region). To be
    /// asked every now and then; any thread may ask at any time.
    pub(crate) fn region_needs_pause(&self) -> bool {
        self.detour.changed_entry(self.memory.as_ref()).is_some()
    }

    /// If an entry is not what was written there, every jump goes, and the region is used no more. The other vCPUs are
    /// paused.
    pub(crate) fn tend_region(&self, paused: &dyn Paused) {
        let memory = self.memory.as_ref();
        let Some(changed) = self.detour.changed_entry(memory) else {
            return;
        };
        let is_switch_reached = self.detour.lose(memory);
        let ChangedEntry { gpa, was, is } = changed;
        self.note(
            None,
            format!(
                "the guest has changed an entry of its page tables that leads to the detour region, at {gpa}: it was \
                 {was:#x} and is {is:#x}; no jump stands for a probe any more, every hit exits, and the region stays"
            ),
        );
        for plant in self.table.load_full().plants() {
            if let Err(error) = self.unoptimise(paused, plant) {
                self.note(None, format!("a jump stays at {}: {error}", plant.at));
            }
        }
        if !is_switch_reached && let Err(error) = self.close_int3(paused) {
            self.note(
                None,
                format!("the kernel's handler of int3 stays led to the region: {error}"),
            );
        }
    }

    /// The kernel is about to hand over to another one (kexec), and every plant has been taken away. The entries that lead
    /// to the region become zero again, and the kernel's handler of `int3` is its own. No region is laid any more: each hit
    /// of a probe that is planted again exits.
    ///
    /// The vCPUs are paused, and the guest has stopped all but one of them for good: no thread that is in the region runs
    /// on.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(super) fn hand_over_region(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.take_out_records();
        for plant in self.table.load_full().plants() {
            self.unoptimise(paused, plant)
                .map_err(|error| ArmError(error.into()))?;
        }
        self.close_int3(paused)
            .map_err(|error| ArmError(error.into()))?;
        match self.detour.hand_over(self.memory.as_ref()) {
            Ok(()) => Ok(()),
            Err(DetourError::Guest(error)) => Err(ArmError(error.into())),
            Err(error) => {
                self.note(None, format!("the detour region stays: {error}"));
                Ok(())
            }
        }
    }

    /// Whether there is memory of ours that the guest's kernel can execute: from the first jump or copy on, as long as the
    /// guest runs.
    pub fn has_detour_region(&self) -> bool {
        self.detour.is_laid()
    }
}
