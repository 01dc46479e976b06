//! The entries of the kernel's page directory that lead to the detour region are looked at: a guest that changes one takes
//! the ground away from under its own jumps.

use super::Engine;
use crate::detour::ChangedEntry;
use crate::guest::Paused;

impl Engine {
    /// Whether an entry is not what was written there. Any thread may ask at any time.
    pub(super) fn has_changed_entry(&self) -> bool {
        self.detour.changed_entry(self.memory.as_ref()).is_some()
    }

    /// If an entry is not what was written there, every jump goes, and the region is used no more. The other vCPUs are
    /// paused.
    pub(super) fn lose_changed_region(&self, paused: &dyn Paused) {
        let Some(changed) = self.detour.changed_entry(self.memory.as_ref()) else {
            return;
        };
        self.detour.lose(paused);
        self.keep_detour();
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
        if let Err(error) = self.close_int3(paused) {
            self.note(
                None,
                format!("the kernel's handler of int3 stays led to the region: {error}"),
            );
        }
    }
}
