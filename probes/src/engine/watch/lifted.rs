//! Watched bytes while the guest can write to their pages: the hardware's writes have no exits, and are seen by their values.

use std::collections::BTreeMap;

use address::Gva;
use introspect::PhysMemory;
use vmm::kvm_regs;

use super::memory::{Origin, SeenWrite};
use super::table::{Watch, WatchKey, WatchTable};

/// The watched bytes, each with its last known value.
#[derive(Debug)]
pub(crate) struct Lifted {
    /// The registers in front of the instruction that the hardware executes.
    pub(crate) regs: kvm_regs,
    /// The origin of the hardware's writes.
    pub(crate) origin: Origin,
    values: BTreeMap<WatchKey, (Watch, u64)>,
}

impl Lifted {
    /// The values of the bytes now, in front of the instruction at `regs.rip`, or of the delivery of `event` there.
    pub(crate) fn new(
        table: &WatchTable,
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
            values: values
                .map(|watch| (watch.key(), (watch.clone(), watch.value(memory))))
                .collect(),
        }
    }

    /// Takes note of an emulated write. Returns the hardware's earlier write to the same bytes, if their value shows such a write.
    pub(crate) fn note(&mut self, write: &SeenWrite) -> Option<SeenWrite> {
        let (watch, value) = self.values.get_mut(&write.watch.key())?;
        let old = std::mem::replace(value, write.new);
        (old != write.old).then(|| SeenWrite {
            watch: watch.clone(),
            old,
            new: write.old,
        })
    }

    /// Each watchpoint, and the hardware's write to its bytes since the last known value, if the value has changed.
    pub(crate) fn end(
        self,
        memory: &dyn PhysMemory,
    ) -> impl Iterator<Item = (Watch, Option<SeenWrite>)> {
        self.values.into_values().map(move |(watch, old)| {
            let new = watch.value(memory);
            let write = (old != new).then(|| SeenWrite {
                watch: watch.clone(),
                old,
                new,
            });
            (watch, write)
        })
    }
}
