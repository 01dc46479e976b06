//! The kernel of a controlled machine, for questions about the kernel's state.

use std::fmt;

use address::Gva;
use inspect::{KernelMemory, KernelView, NotReadable};
use probes::At;

use crate::target::Target;

/// The kernel's address space of a machine. A running guest may write between two reads.
#[derive(Clone, Copy)]
pub struct TargetMemory<'t>(pub &'t dyn Target);

impl fmt::Debug for TargetMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TargetMemory").field(self.0.facts()).finish()
    }
}

impl TargetMemory<'_> {
    /// The machine's kernel. Before the kernel has reported the running address, the link-time address is assumed.
    #[must_use]
    pub fn kernel(&self) -> KernelView<'_> {
        let slide = self.0.slide().unwrap_or(0);
        KernelView::new(self, self.0.symbols(), self.0.types(), slide)
    }
}

impl KernelMemory for TargetMemory<'_> {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let read = self.0.read(At::Virtual(at), buf);
        read.map_err(|_| NotReadable { at, len })
    }
}
