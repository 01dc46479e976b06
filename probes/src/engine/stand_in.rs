//! Guests that rewrite a probed instruction.
//!
//! Whoever patches code looks at it again: Linux compares what it finds after it has written (`text_poke` panics if
//! it finds something else). So a guest write onto a plant makes the plant withdraw: memory shows what the guest
//! wrote, and a debug register watches the place until it is next executed. Then the plant returns and is hit, and the
//! register is free again. No hit is lost in between, since all of it happens with the other vCPUs paused.
//!
//! There are four registers. The kernel patches one place after another, each write followed by its look, so when a
//! fifth place is written to the plant of the first returns, executed or not.
//!
//! A guest also looks at instructions that it made to fault: Linux's handler of #UD reads the bytes at the faulting RIP
//! to tell a warning from a bug, and would take a plant for neither. So a plant on such an instruction withdraws when
//! it is first executed, and the debug register stays. Without a free one the plant withdraws all the same, since the
//! guest must not be harmed: the probe misses what comes, and says so, until a register is free.
//!
//! The same goes for an `int3` that the kernel was built with. Linux's handler of #BP asks its kprobes first, by the
//! address; then it reads the byte, and if that is no `int3` it takes the breakpoint for one that has just gone, and
//! returns to the instruction, for ever. An `int3` that the guest has written is known to it by its address. It is read
//! at once, so that the plant returns when the register is needed elsewhere.

use std::sync::{Arc, MutexGuard, PoisonError};

use introspect::insn::{Class, Decoded, Reason, classify};
use introspect::{Gpa, Gva};

use super::Engine;
use super::jumps::INT3;
use crate::guest::{GuestError, Paused};
use crate::hit::{DebugUse, Plant, Table};
use crate::plant::PlantByte;
use crate::registry::Missed;

impl Engine {
    /// Whether the guest's write of `data` at `gpa` calls for [`stand_in`](Self::stand_in).
    pub(super) fn wants_stand_in(&self, gpa: Gpa, data: &[u8]) -> bool {
        self.abilities.debug_execute && self.planter.overwrites_plant(gpa, data)
    }

    /// Withdraws the plants in `len` bytes from `gpa` on.
    pub(super) fn stand_in(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        len: usize,
    ) -> Result<(), GuestError> {
        let mut table = self.table.load().as_ref().clone();
        // Of those that stand in, the oldest comes first.
        let mut uses: Vec<DebugUse> = table.debug.iter().flatten().cloned().collect();
        let covered: Vec<_> = (gpa.0..gpa.0.saturating_add(len as u64))
            .filter_map(|at| table.at_gpa(Gpa(at)).cloned())
            .collect();
        for plant in &covered {
            if uses.iter().any(|used| used.plant().at == plant.at) {
                continue;
            }
            if uses.len() == table.debug.len() {
                let is_over = |used: &DebugUse| self.is_over(used, &covered);
                let Some(oldest) = uses.iter().position(is_over) else {
                    self.withdraw_unwatched(paused, plant)?;
                    continue;
                };
                let ended = uses.remove(oldest);
                self.planter.replant(paused, ended.plant().spot.gpa)?;
            }
            self.planter.withdraw(paused, plant.spot.gpa)?;
            uses.push(DebugUse::StandIn(Arc::clone(plant)));
        }
        let mut uses = uses.into_iter();
        table.debug = std::array::from_fn(|_| uses.next());
        self.replace_table(paused, table);
        Ok(())
    }

    /// Whether the plant of a stand-in can return before it is next executed, since nobody looks at what was written
    /// there any more: the guest is about to write to `covered`.
    fn is_over(&self, used: &DebugUse, covered: &[Arc<Plant>]) -> bool {
        let DebugUse::StandIn(plant) = used else {
            return false;
        };
        let is_read = plant
            .displaced(&self.planter, plant.at)
            .is_none_or(|decoded| is_undefined(&decoded));
        !is_read && !covered.iter().any(|other| other.at == plant.at)
    }

    /// Whether the guest's exception handler looks at the instruction that has raised the exception.
    pub(super) fn is_read_when_executed(&self, plant: &Plant, decoded: &Decoded) -> bool {
        is_undefined(decoded) || (decoded.bytes() == [INT3] && self.is_built_in(plant))
    }

    /// Whether the kernel was built with an `int3` at `plant`, which does not look like one.
    fn is_built_in(&self, plant: &Plant) -> bool {
        let filed = self.located.get().and_then(|located| {
            let linked = located.linked(plant.at);
            self.kernel.bytes_at(linked, 1)
        });
        filed == Some(&[INT3]) && self.planter.byte() != PlantByte::Int3
    }

    /// The guest is about to execute the instruction at `plant` and then to read it: withdraws the plant.
    pub(super) fn let_be_read(&self, paused: &dyn Paused, plant: &Plant) -> Result<(), GuestError> {
        if self.abilities.debug_execute {
            self.stand_in(paused, plant.spot.gpa, 1)?;
        }
        if self.planter.is_withdrawn(plant.spot.gpa) {
            return Ok(());
        }
        self.withdraw_unwatched(paused, plant)
    }

    /// Withdraws a plant for which no debug register can stand in.
    fn withdraw_unwatched(&self, paused: &dyn Paused, plant: &Plant) -> Result<(), GuestError> {
        self.planter.withdraw(paused, plant.spot.gpa)?;
        self.unwatched().push(plant.at);
        for (probe, _) in &plant.probes {
            probe.miss(Missed::Unwatched);
            self.note(
                Some(probe),
                "the guest reads this instruction, and no debug register is free: executions are missed until one is"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn unwatched(&self) -> MutexGuard<'_, Vec<Gva>> {
        self.unwatched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives debug registers that `table` leaves free to plants that withdrew without one.
    pub(super) fn watch_again(&self, table: &mut Table) {
        if !self.abilities.debug_execute {
            return;
        }
        self.unwatched().retain(|&at| {
            let plant = table
                .at(at)
                .filter(|plant| self.planter.is_withdrawn(plant.spot.gpa))
                .cloned();
            let Some(plant) = plant else { return false };
            let free = table.debug.iter_mut().find(|slot| slot.is_none());
            let waits = free.is_none();
            if let Some(free) = free {
                *free = Some(DebugUse::StandIn(plant));
            }
            waits
        });
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

fn is_undefined(decoded: &Decoded) -> bool {
    classify(decoded) == Class::MustStep(Reason::Undefined)
}
