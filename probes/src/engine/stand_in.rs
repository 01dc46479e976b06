//! Guests that rewrite a probed instruction.
//!
//! Whoever patches code looks at it again: Linux compares what it finds after it has written (`text_poke` panics if
//! it finds something else). So a guest write onto a plant makes the plant withdraw: memory shows what the guest
//! wrote, and a debug register watches the place until it is next executed. Then the plant returns, and the register
//! is free again. No hit is lost in between, since all of it happens with the other vCPUs paused.
//!
//! Without a free debug register the plant stays, and the guest reads it.

use std::sync::Arc;

use introspect::{Gpa, Gva};

use super::Engine;
use crate::guest::{GuestError, Paused};
use crate::hit::DebugUse;

impl Engine {
    /// Whether the guest's write of `data` at `gpa` calls for [`stand_in`](Self::stand_in).
    pub(super) fn wants_stand_in(&self, gpa: Gpa, data: &[u8]) -> bool {
        self.abilities.debug_execute && self.planter.overwrites_plant(gpa, data)
    }

    /// Withdraws the plants in `len` bytes from `gpa` on, as far as debug registers are free.
    pub(super) fn stand_in(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        len: usize,
    ) -> Result<(), GuestError> {
        let mut table = self.table.load().as_ref().clone();
        let mut debug = table.debug.clone();
        let covered =
            (gpa.0..gpa.0.saturating_add(len as u64)).filter_map(|at| table.at_gpa(Gpa(at)));
        for plant in covered {
            if debug
                .iter()
                .flatten()
                .any(|used| used.plant().at == plant.at)
            {
                continue;
            }
            let Some(free) = debug.iter_mut().find(|slot| slot.is_none()) else {
                break;
            };
            self.planter.withdraw(paused, plant.spot.gpa)?;
            *free = Some(DebugUse::StandIn(Arc::clone(plant)));
        }
        table.debug = debug;
        self.replace_table(paused, table);
        Ok(())
    }

    /// The place at `rip` is about to be executed: if a debug register stands in for the plant there, it returns.
    /// Says whether one did.
    pub(super) fn end_stand_in(&self, paused: &dyn Paused, rip: Gva) -> Result<bool, GuestError> {
        let mut table = self.table.load().as_ref().clone();
        let mut debug = table.debug.clone();
        let ended = debug.iter_mut().find_map(|slot| {
            slot.take_if(|used| matches!(used, DebugUse::StandIn(plant) if plant.at == rip))
        });
        let Some(used) = ended else { return Ok(false) };
        self.planter.replant(paused, used.plant().spot.gpa)?;
        table.debug = debug;
        self.replace_table(paused, table);
        Ok(true)
    }
}
