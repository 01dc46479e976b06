//! The files of the guest, through the kernel's own page tables: a vCPU in a program may have others.

use std::sync::OnceLock;

use inspect::{FileLayout, FileReader, KernelView};

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
        let with_files = |view: &KernelView<'_>| {
            let reader = FileReader::new(layout, view, MAX_READ_BYTES, MAX_ALL_BYTES)?;
            Some(read(&reader, view))
        };
        running.with_view(with_files)?
    }
}
