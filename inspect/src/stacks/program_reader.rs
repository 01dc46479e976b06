//! The stacks of the programs that have called the kernel, or that a vCPU runs.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

use address::Gva;
use introspect::orc::KernelStack;
use introspect::{PagingState, PhysMemory, read_virt};

use super::kernel::StackKernel;
use super::named::NamedProgram;
use super::vcpu::GeneralRegisters;
use crate::programs::{
    ProgramFiles, ProgramRegisters, ProgramStack, ProgramStackReader, ProgramStacks,
};
use crate::view::{KernelMemory, KernelView, NotReadable};

/// What the stack of a program may read, bytes, while the vCPU or the machine waits: the function names of some ten large libraries, and some
/// thousand words. The names are kept.
const STACK_BYTES: usize = 16 << 20;

/// What is known of the programs of a kernel, retained from one stack to the next. Any thread may add and look up.
#[derive(Debug, Default)]
pub struct KnownPrograms {
    /// What the kernel's types say about programs; the reason if they do not. Found at the first look.
    layout: OnceLock<Result<ProgramStacks, String>>,
    files: ProgramFiles,
}

impl KnownPrograms {
    /// Looks up what the types of `kernel` say about programs: the first look takes longer than a pause should.
    pub fn prepare(&self, kernel: &dyn StackKernel) {
        let _ = self.layout(kernel);
    }

    fn layout(&self, kernel: &dyn StackKernel) -> Result<&ProgramStacks, &String> {
        let find = || ProgramStacks::new(kernel.types()?).map_err(|error| error.to_string());
        self.layout.get_or_init(find).as_ref()
    }
}

/// The kernel's address space by page tables.
struct ByTables<'m> {
    memory: &'m dyn PhysMemory,
    paging: &'m PagingState,
}

impl KernelMemory for ByTables<'_> {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let read = read_virt(self.memory, self.paging, at, buf);
        read.map_err(|_| NotReadable { at, len })
    }
}

/// Unwinds the stacks of programs of one moment.
pub struct ProgramReader<'k> {
    kernel: &'k dyn StackKernel,
    known: &'k KnownPrograms,
    paging: PagingState,
    /// What may still be read, bytes.
    left: Cell<usize>,
}

impl fmt::Debug for ProgramReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramReader")
            .field("paging", &self.paging)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl<'k> ProgramReader<'k> {
    /// A reader for the stack of one program of `kernel`, which has the page tables `paging`.
    #[must_use]
    pub fn for_one(
        kernel: &'k dyn StackKernel,
        known: &'k KnownPrograms,
        paging: PagingState,
    ) -> Self {
        Self::with_limit(kernel, known, paging, STACK_BYTES)
    }

    /// A reader of stacks, which together read `limit` bytes at the most.
    pub(super) fn with_limit(
        kernel: &'k dyn StackKernel,
        known: &'k KnownPrograms,
        paging: PagingState,
        limit: usize,
    ) -> Self {
        Self {
            kernel,
            known,
            paging,
            left: Cell::new(limit),
        }
    }

    /// The program that has called the kernel, or was interrupted, at the end of `stack`, which is that of the task with the `task_struct` at
    /// `task`; `None` if the stack does not end at a program. The processor or the task must not run.
    #[must_use]
    pub fn behind(&self, stack: &KernelStack, task: Option<Gva>) -> Option<NamedProgram> {
        let saved = stack.program?;
        Some(self.program(task, |reader, task| reader.stack_behind(task, saved)))
    }

    /// The 64-bit program that a stopped vCPU runs with `registers`, of the task with the `task_struct` at `task`.
    #[must_use]
    pub fn at(&self, registers: GeneralRegisters, task: Option<Gva>) -> NamedProgram {
        self.running(&ProgramRegisters::of_vcpu(registers.0, true), task)
    }

    /// The program that a stopped vCPU runs with `registers`.
    pub(super) fn running(&self, registers: &ProgramRegisters, task: Option<Gva>) -> NamedProgram {
        self.program(task, |reader, task| reader.stack(task, registers))
    }

    fn program(
        &self,
        task: Option<Gva>,
        unwind: impl FnOnce(&ProgramStackReader<'_>, Gva) -> ProgramStack,
    ) -> NamedProgram {
        let read = || {
            let task = task.ok_or("the task on the vCPU is not known")?;
            let layout = self.known.layout(self.kernel).map_err(Clone::clone)?;
            let memory = ByTables {
                memory: self.kernel.data(),
                paging: &self.paging,
            };
            let (symbols, types) = (self.kernel.symbols(), self.kernel.types().ok());
            let view = KernelView::new(&memory, symbols, types, self.kernel.slide().unwrap_or(0));
            // One program must not take what the others may read.
            let share = self.left.get().min(STACK_BYTES);
            let reader = layout.reader(&view, &self.known.files, share);
            let reader = reader.map_err(|error| error.to_string())?;
            let stack = unwind(&reader, task);
            let used = share - reader.left().min(share);
            self.left.set(self.left.get() - used);
            Ok(stack)
        };
        let stack: Result<ProgramStack, String> = read();
        stack.map_or_else(NamedProgram::without_frames, NamedProgram::from)
    }
}
