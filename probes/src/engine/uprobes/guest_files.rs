//! The files of the guest, through the kernel's own page tables: a vCPU in a program may have others.

use std::sync::OnceLock;

use address::Gva;
use inspect::{FileLayout, FileReader, KernelMemory, KernelView, NotReadable};
use introspect::{PagingState, PhysMemory, read_virt};

use crate::engine::running::Running;
use crate::kernel::Kernel;

/// The most bytes that are read for an answer, each read counted with 256 bytes more: a table of functions, or the mappings of a program.
const MAX_READ_BYTES: usize = 64 << 20;
/// The most bytes that are read while the vCPUs are paused: the mappings of some thousand programs, in about two seconds.
const MAX_ALL_BYTES: usize = 1 << 30;

/// What is known of files. Found at the first look.
#[derive(Debug, Default)]
pub(crate) struct GuestFiles {
    layout: OnceLock<Option<FileLayout>>,
}

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

impl GuestFiles {
    /// Looks up what the kernel's types say about files: the first look takes longer than a vCPU should wait.
    pub(crate) fn prepare(&self, kernel: &Kernel) -> Option<&FileLayout> {
        let layout = || FileLayout::new(kernel.types().ok()?).ok();
        self.layout.get_or_init(layout).as_ref()
    }

    /// Reads files by `read`; `None` if the kernel has not booted far enough, or does not describe files.
    pub(crate) fn read<T>(
        &self,
        running: &Running,
        read: impl FnOnce(&FileReader<'_>, &KernelView<'_>) -> T,
    ) -> Option<T> {
        let layout = self.prepare(&running.kernel)?;
        let memory = ByTables {
            memory: running.memory.as_ref(),
            paging: running.modules.paging()?,
        };
        let (symbols, types) = (running.kernel.symbols(), running.kernel.types().ok());
        let view = KernelView::new(&memory, symbols, types, running.slide()?);
        let reader = FileReader::new(layout, &view, MAX_READ_BYTES, MAX_ALL_BYTES)?;
        Some(read(&reader, &view))
    }
}
