//! The memory of the kernel, through its own page tables: a vCPU in a program may have others.

use address::Gva;
use inspect::{KernelMemory, KernelView, NotReadable};
use introspect::{PagingState, PhysMemory, read_virt};

use super::Running;

/// The kernel's address space.
struct ByTables<'m> {
    memory: &'m dyn PhysMemory,
    paging: PagingState,
}

impl KernelMemory for ByTables<'_> {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        read_virt(self.memory, &self.paging, at, buf).map_err(|_| NotReadable { at, len })
    }
}

impl Running {
    /// Reads the kernel's memory by `read`; `None` if the kernel has not booted far enough.
    pub(crate) fn with_view<T>(&self, read: impl FnOnce(&KernelView<'_>) -> T) -> Option<T> {
        let memory = ByTables {
            memory: self.memory.as_ref(),
            paging: self.modules.paging()?,
        };
        let (symbols, types) = (self.kernel.symbols(), self.kernel.types().ok());
        let view = KernelView::new(&memory, symbols, types, self.slide()?);
        Some(read(&view))
    }
}
