//! Watched bytes while the guest can access their pages: the hardware's accesses have no exits. Its writes are seen by the values, its reads by
//! the operands of the instruction.

use std::sync::Arc;

use address::{Gpa, Gva};
use introspect::PhysMemory;
use text::Ran;
use vmm::kvm_regs;

use super::memory::{Origin, SeenAccess};
use super::table::{Watch, WatchTable};

/// The instructions that the hardware has executed while the guest could access protected pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    /// The instruction, or the delivery of an event, up to the stop behind it.
    One,
    /// Any number: a write may have replaced the value of another write.
    Many,
}

impl Executed {
    /// The result of a run that ended with `ran`. `has_stop` is whether a stop was behind the instruction.
    pub(crate) fn after(ran: Ran, has_stop: bool) -> Self {
        match ran {
            Ran::At(_) if has_stop => Self::One,
            Ran::At(_) | Ran::Nowhere | Ran::Ended => Self::Many,
        }
    }
}

/// The memory that an instruction reads.
#[derive(Debug)]
pub(crate) enum OperandReads {
    /// These bytes of guest-physical memory.
    Known(Vec<(Gpa, usize)>),
    /// Any memory.
    Unknown,
    /// Any memory; the instruction is repeated, and may be executed in part.
    Repeated,
}

impl OperandReads {
    /// No memory, or none that a watchpoint asks for.
    pub(crate) const NONE: Self = Self::Known(Vec::new());

    /// Whether the instruction is known to read a byte of the word.
    pub(crate) fn include(&self, watch: &Watch) -> bool {
        match self {
            Self::Known(ranges) => ranges.iter().any(|(gpa, len)| watch.overlaps(*gpa, *len)),
            Self::Unknown | Self::Repeated => false,
        }
    }

    /// Whether the instruction may have read any memory.
    pub(crate) const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown | Self::Repeated)
    }
}

/// The watched words, each with its last known value.
#[derive(Debug)]
pub(crate) struct Lifted {
    /// The registers in front of the instruction that the hardware executes.
    pub(crate) regs: kvm_regs,
    /// The origin of the hardware's accesses.
    pub(crate) origin: Origin,
    /// Whether stops may have needed the debug registers of words.
    pub(crate) takes_registers: bool,
    table: Arc<WatchTable>,
    /// The value of each word of the table.
    values: Vec<u64>,
}

impl Lifted {
    /// The values of the bytes now, in front of the instruction at `regs.rip`, or of the delivery of `event` there.
    pub(crate) fn new(
        table: Arc<WatchTable>,
        memory: &dyn PhysMemory,
        regs: kvm_regs,
        event: Option<u8>,
    ) -> Self {
        let at = Gva(regs.rip);
        let values = table.watches().iter();
        Self {
            regs,
            origin: match event {
                Some(vector) => Origin::Delivery { vector, at },
                None => Origin::Instruction(at),
            },
            takes_registers: false,
            values: values.map(|watch| watch.value(memory)).collect(),
            table,
        }
    }

    /// Takes note of an emulated access. Returns the hardware's earlier write to the same bytes, if their value shows such a write.
    pub(crate) fn note(&mut self, access: &SeenAccess) -> Option<SeenAccess> {
        let index = self.table.index_of(access.watch.key())?;
        let (watch, value) = (
            self.table.watches().get(index)?,
            self.values.get_mut(index)?,
        );
        let old = std::mem::replace(value, access.new);
        let is_write = old != access.old && watch.access.has_writes();
        is_write.then(|| SeenAccess::write(watch, old, access.old))
    }

    /// The hardware's accesses: writes since the last known value, where the value has changed, or else reads of the executed instruction,
    /// whose operands are `reads`.
    pub(crate) fn accesses(
        &self,
        memory: &dyn PhysMemory,
        reads: &OperandReads,
    ) -> Vec<SeenAccess> {
        let words = self.table.watches().iter().zip(&self.values);
        let accesses = words.filter_map(|(watch, old)| {
            let new = watch.value(memory);
            if *old != new && watch.access.has_writes() {
                return Some(SeenAccess::write(watch, *old, new));
            }
            let is_read = watch.access.has_reads() && reads.include(watch);
            is_read.then(|| SeenAccess::read(watch, *old))
        });
        accesses.collect()
    }

    /// The words, in the order of the values.
    pub(crate) fn table(&self) -> &WatchTable {
        &self.table
    }
}
