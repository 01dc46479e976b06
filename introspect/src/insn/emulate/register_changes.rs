//! The general registers that an instruction will change.

use crate::insn::cpu::Gpr;

/// The most registers changed by an instruction.
const MOST_REGISTERS: usize = 3;

/// The changed registers with their new values, in the order of the first change.
pub(super) struct RegisterChanges {
    entries: [(Gpr, u64); MOST_REGISTERS],
    count: usize,
}

impl RegisterChanges {
    pub(super) const fn new() -> Self {
        Self {
            entries: [(Gpr::Rax, 0); MOST_REGISTERS],
            count: 0,
        }
    }

    /// The new value of a register; `None` if the register keeps its value.
    pub(super) fn get(&self, register: Gpr) -> Option<u64> {
        self.all()
            .find_map(|(changed, value)| (changed == register).then_some(value))
    }

    /// Changes all of a register.
    pub(super) fn set(&mut self, register: Gpr, value: u64) {
        let changed = &mut self.entries[..self.count];
        if let Some(entry) = changed.iter_mut().find(|(changed, _)| *changed == register) {
            entry.1 = value;
        } else {
            self.entries[self.count] = (register, value);
            self.count += 1;
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Gpr, u64)> {
        self.entries[..self.count].iter().copied()
    }
}
