//! Watched words with a debug register: the processor reports a write behind the instruction.
//!
//! The register has a linear address. The emulator's writes, and those of an instruction that the hardware executes without the register, are
//! seen by the guest-physical address, as those to a protected page are.

use std::sync::Arc;

use address::Gva;
use introspect::insn::{decode, is_repeated, writes_memory};
use introspect::{PagingState, read_virt};
use text::{GuestError, Ran, To, Vcpu};

use super::Watches;
use super::memory::{Origin, SeenAccess};
use super::table::{Watch, WatchTable};
use crate::debug_registers::DataRegister;
use crate::engine::arm::edits::{Edits, NoRegister};
use crate::registry::Missed;
use crate::resolve::WORD_BYTES;

/// The number of debug registers.
const REGISTERS: usize = 4;
/// RFLAGS.DF: a string instruction goes down.
const DIRECTION: u64 = 1 << 10;
/// The most bytes from a watched word to RDI, behind an element of a repeated instruction: two elements and a word.
const MAX_DISTANCE: u64 = 3 * WORD_BYTES as u64;
/// More than the bytes of a repeated instruction with its prefixes.
const MAX_REPEATED_BYTES: usize = 4;

impl Watches {
    /// Gives debug registers to those of the new `words` that need them. The vCPUs are paused.
    pub(crate) fn take_registers(
        &self,
        words: &[Watch],
        edits: &mut Edits<'_>,
    ) -> Result<(), NoRegister> {
        let memory = self.running.memory.as_ref();
        for word in words {
            word.replace_last(word.value(&memory));
        }
        edits.watch(registers_of(words)?)
    }

    /// Runs the vCPU alone by `run`, up to a stop. The stops may need the registers of words: then the values show the writes, and if the vCPU may have
    /// executed more than one instruction, each word has a miss.
    pub(crate) fn run_alone<V: Vcpu>(
        &self,
        vcpu: &mut V,
        to: To<'_>,
        run: impl FnOnce(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<Ran, GuestError> {
        let table = self.table.load_full();
        let ran = self.run_watched(vcpu, &table, to, run)?;
        let present = self.table.load();
        if !Arc::ptr_eq(&table, &present) {
            // The registers of words that have come meanwhile are in force at the vCPU's next entry.
            let words = present.watches().iter();
            let since = words
                .filter(|word| word.access.is_in_register())
                .filter(|word| table.index_of(word.key()).is_none());
            since.for_each(|word| word.probe.counters.miss(Missed::Unprotected));
        }
        Ok(ran)
    }

    fn run_watched<V: Vcpu>(
        &self,
        vcpu: &mut V,
        table: &WatchTable,
        to: To<'_>,
        run: impl FnOnce(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<Ran, GuestError> {
        let in_registers = self.plants.table.load().of_data();
        if in_registers == 0 {
            return run(vcpu, to);
        }
        let takes_registers = program_stops(to) + in_registers > REGISTERS;
        if let Some(lifted) = self.lock().as_mut() {
            lifted.takes_registers |= takes_registers;
        }
        if self.is_lifted() {
            return run(vcpu, to);
        }
        let regs = vcpu.regs()?;
        let memory = self.running.memory.as_ref();
        let words = table.watches().iter();
        let words = words.filter(|word| word.access.is_in_register());
        let words = words.map(|word| (word, word.value(&memory), word.last()));
        let words: Vec<_> = words.collect();
        let ran = run(vcpu, to)?;
        let is_one = matches!(ran, Ran::At(_)) && self.running.abilities.holds_interrupts;
        for (word, value, last) in words {
            let order = self.lock();
            let new = word.value(&memory);
            // A reported write has replaced the last value; KVM and other mappings may have changed the bytes before.
            let old = match word.last() == last {
                true => value,
                false => word.last(),
            };
            if old != new {
                word.replace_last(new);
                let access = SeenAccess::write(word, old, new);
                self.report(vcpu, regs, Origin::Instruction(Gva(regs.rip)), &access)?;
            }
            drop(order);
            if takes_registers && !is_one {
                word.probe.counters.miss(Missed::Unprotected);
            }
        }
        Ok(ran)
    }

    /// Reports the writes of the vCPU after which the debug registers `fired`, bits 0 to 3, have stopped the vCPU. Registers of instructions are left out.
    pub(crate) fn on_register_writes(
        &self,
        vcpu: &mut dyn Vcpu,
        fired: u8,
    ) -> Result<(), GuestError> {
        let plants = self.plants.table.load();
        let mut written = plants.written(fired).peekable();
        if written.peek().is_none() {
            return Ok(());
        }
        let regs = vcpu.regs()?;
        let paging = vcpu.system_state()?.paging;
        let before = self.previous(&paging, Gva(regs.rip));
        let function = self.function_start(Gva(regs.rip));
        let before = before.filter(writes_memory).map(|before| before.at());
        // At the first instruction of a function, the one in front is another function's.
        let before = before.filter(|before| self.function_start(*before) == function);
        let repeated = self.repeated_store(&paging, Gva(regs.rip));
        let table = self.table.load();
        let memory = self.running.memory.as_ref();
        let words = written.flat_map(|register| {
            let keys = register.watchpoints.iter().map(|id| (register.gpa, *id));
            // After a change that has failed, a register may belong to no watchpoint.
            keys.filter_map(|key| table.watches().get(table.index_of(key)?))
        });
        for watch in words {
            let mut order = self.lock();
            let new = watch.value(&memory);
            // A repeated instruction is at RIP until its last element. Behind a call, or the delivery of an event, the code does not tell.
            let end = watch.at.0.saturating_add(watch.len as u64);
            let distance = match regs.rflags & DIRECTION == 0 {
                true => regs.rdi.checked_sub(watch.at.0),
                false => end.checked_sub(regs.rdi),
            };
            let is_element =
                distance.is_some_and(|distance| (1..=MAX_DISTANCE).contains(&distance));
            let writer = repeated.filter(|_| is_element).or(before);
            let origin = Origin::Instruction(writer.unwrap_or(Gva(regs.rip)));
            let access = SeenAccess::write(watch, watch.replace_last(new), new);
            if let Some(lifted) = order.as_mut() {
                lifted.note(&access);
            }
            self.report(vcpu, regs, origin, &access)?;
        }
        Ok(())
    }

    /// The address `rip`, if the instruction there is a repeated store.
    fn repeated_store(&self, paging: &PagingState, rip: Gva) -> Option<Gva> {
        let mut code = [0; MAX_REPEATED_BYTES];
        read_virt(&self.running.planter.own(), paging, rip, &mut code).ok()?;
        let decoded = decode(&code, rip).ok()?;
        (is_repeated(&decoded) && writes_memory(&decoded)).then_some(rip)
    }
}

/// The registers that `words` need.
pub(crate) fn registers_of(words: &[Watch]) -> Result<Vec<DataRegister>, NoRegister> {
    let needy = words.iter().filter(|word| word.access.is_in_register());
    let registers = needy.map(|word| word.register().ok_or(NoRegister::Unaligned));
    registers.collect()
}

/// The number of stops that need a debug register: no plant exits in the programs' half of the address space.
fn program_stops(to: To<'_>) -> usize {
    match to {
        To::Next(stops) => stops.iter().filter(|stop| stop.0 >> 63 == 0).count(),
        To::Return(_) => 0,
    }
}
