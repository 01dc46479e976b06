//! The section of per-CPU variables, and the distances to the processors' copies.

use std::ops::Range;

use address::Gva;

use crate::view::{KernelView, NotReadable};

/// The labels around the section.
pub(super) const LABELS: [&str; 2] = ["__per_cpu_start", "__per_cpu_end"];
/// Labels within the section, from 6.15 on.
pub(super) const INNER_LABELS: [&str; 2] = ["__per_cpu_hot_start", "__per_cpu_hot_end"];
/// The table of distances.
pub(crate) const TABLE: &str = "__per_cpu_offset";
const ENTRY_BYTES: u64 = 8;
/// The largest `CONFIG_NR_CPUS` of x86. With a broken symbol table, processors beyond have no copies.
const MAX_CPUS: u64 = 8192;

/// The link-time addresses of the section of per-CPU variables; `None` if the symbol table does not have the labels.
pub(crate) fn section(view: &KernelView<'_>) -> Option<Range<Gva>> {
    let [start, end] = LABELS.map(|label| view.symbols().address_of(label));
    Some(start?..end?)
}

/// The table of distances from the section to each processor's copy.
#[derive(Clone, Copy, Debug)]
pub struct PerCpuOffsets {
    start: Gva,
    /// The number of processors that the kernel has prepared for.
    pub count: u64,
}

impl PerCpuOffsets {
    /// The table of the kernel of `view`; `None` if the kernel has no symbol for it.
    #[must_use]
    pub fn find(view: &KernelView<'_>) -> Option<Self> {
        let symbol = view.symbols().lookup(TABLE)?;
        // The table has an entry for each processor that the kernel could ever have.
        let possible = (symbol.size / ENTRY_BYTES).min(MAX_CPUS);
        let count = view
            .address_of("nr_cpu_ids")
            .and_then(|at| view.u32(at).ok());
        Some(Self {
            start: view.running(symbol.address),
            count: count.map_or(possible, |count| possible.min(count.into())),
        })
    }

    /// The address of the copy that processor `cpu`, which is one of `count`, has of the variable at the link-time address `linked`.
    ///
    /// # Errors
    ///
    /// If the table is not in memory.
    pub fn copy_of(self, view: &KernelView<'_>, linked: Gva, cpu: u64) -> Result<Gva, NotReadable> {
        let distance = self.of(view, cpu)?;
        Ok(view.running(linked).wrapping_add(distance))
    }

    /// The distance to the copy of processor `cpu`, which is one of `count`.
    pub(crate) fn of(self, view: &KernelView<'_>, cpu: u64) -> Result<u64, NotReadable> {
        view.u64(self.start.wrapping_add(cpu * ENTRY_BYTES))
    }
}
