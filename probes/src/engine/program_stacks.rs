//! The stacks of the programs that call the kernel, or that a vCPU runs.
//!
//! A program's stack is read at the same moment as the kernel's: at a hit on the vCPU's thread, otherwise in a pause. Details:
//! `docs/stacks.md`.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use address::Gva;
use events::{Hex, ProgramFrame};
use inspect::{
    KernelMemory, KernelView, NotReadable, ProgramFiles, ProgramRegisters, ProgramStack,
    ProgramStackReader, ProgramStacks,
};
use introspect::orc::KernelStack;
use introspect::{PagingState, read_virt};
use vmm::{VcpuState, kvm_regs};

use crate::engine::running::Running;

/// What the stack of a program may read, bytes, while the vCPU or the machine waits: the function names of some ten large libraries, and some
/// thousand words. The names are kept.
pub(crate) const STACK_BYTES: usize = 16 << 20;

/// The stack of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramPart {
    /// The functions, the innermost first; `None` if no program has called the kernel here.
    pub frames: Option<Vec<ProgramFrame>>,
    /// The reason why the stack ends early.
    pub incomplete: Option<String>,
}

/// Reads stacks of programs.
#[derive(Debug)]
pub(crate) struct ProgramUnwinder {
    pub(crate) running: Arc<Running>,
    /// What the kernel's types say about programs; the reason if they do not. Found at the first look.
    pub(crate) layout: OnceLock<Result<ProgramStacks, String>>,
    pub(crate) files: ProgramFiles,
}

/// The kernel's memory, by the page tables of a vCPU. Programs and the kernel's lists have no plants.
struct ByTables<'r> {
    running: &'r Running,
    paging: &'r PagingState,
}

impl KernelMemory for ByTables<'_> {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let read = read_virt(&*self.running.memory, self.paging, at, buf);
        read.map_err(|_| NotReadable { at, len })
    }
}

impl ProgramUnwinder {
    /// Looks up what the kernel's types say about programs.
    pub(crate) fn prepare(&self) {
        let _ = self.layout();
    }

    fn layout(&self) -> Result<&ProgramStacks, &String> {
        let find = || {
            let types = self.running.kernel.types().map_err(ToString::to_string)?;
            ProgramStacks::new(types).map_err(|error| error.to_string())
        };
        self.layout.get_or_init(find).as_ref()
    }

    /// The program that has called the kernel, or was interrupted, at the end of `stack`, which is that of `task`. At most `left` bytes are
    /// read, and subtracted.
    pub(crate) fn behind(
        &self,
        paging: &PagingState,
        stack: &KernelStack,
        task: Option<Gva>,
        left: &Cell<usize>,
    ) -> ProgramPart {
        let Some(saved) = stack.program else {
            return ProgramPart::default();
        };
        self.part(paging, task, left, |reader, task| {
            reader.stack_behind(task, saved)
        })
    }

    /// The program that a stopped vCPU runs.
    pub(crate) fn of_vcpu(
        &self,
        paging: &PagingState,
        vcpu: &VcpuState,
        task: Option<Gva>,
        left: &Cell<usize>,
    ) -> ProgramPart {
        let is_long = vcpu.sregs.cs.l != 0;
        let registers = ProgramRegisters::of_vcpu(dwarf_order(&vcpu.regs), is_long);
        self.part(paging, task, left, |reader, task| {
            reader.stack(task, &registers)
        })
    }

    fn part(
        &self,
        paging: &PagingState,
        task: Option<Gva>,
        left: &Cell<usize>,
        unwind: impl FnOnce(&ProgramStackReader<'_>, Gva) -> ProgramStack,
    ) -> ProgramPart {
        let read = || {
            let task = task.ok_or("the task on the vCPU is not known")?;
            let layout = self.layout().map_err(Clone::clone)?;
            let running = &*self.running;
            let memory = ByTables { running, paging };
            let kernel = &running.kernel;
            let slide = running.slide().unwrap_or(0);
            let view = KernelView::new(&memory, kernel.symbols(), kernel.types().ok(), slide);
            // One program must not take what the others may read.
            let share = left.get().min(STACK_BYTES);
            let reader = layout.reader(&view, &self.files, share);
            let reader = reader.map_err(|error| error.to_string())?;
            let stack = unwind(&reader, task);
            left.set(left.get() - (share - reader.left().min(share)));
            Ok(stack)
        };
        let stack: Result<ProgramStack, String> = read();
        match stack {
            Ok(stack) => stack.into(),
            Err(why) => ProgramPart {
                frames: Some(Vec::new()),
                incomplete: Some(why),
            },
        }
    }
}

impl From<ProgramStack> for ProgramPart {
    fn from(stack: ProgramStack) -> Self {
        let frames = stack.frames.into_iter().map(|frame| ProgramFrame {
            address: frame.ip.into(),
            symbol: frame.symbol,
            file: frame.file,
            offset: frame.offset.map(Hex),
        });
        Self {
            frames: Some(frames.collect()),
            incomplete: stack.incomplete.map(|end| end.to_string()),
        }
    }
}

/// The registers in the order of their numbers in DWARF.
const fn dwarf_order(regs: &kvm_regs) -> [u64; 17] {
    [
        regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8,
        regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15, regs.rip,
    ]
}
