//! The stacks of a dumped kernel's vCPUs and tasks.

use address::Gva;
use inspect::stacks::{
    KnownPrograms, ListedStack, NamedModules, StackKernel, StackList, StackListError, StackReader,
    StacksOf, StoppedVcpu, VcpuMode, per_cpu_area,
};
use inspect::{CgroupPaths, RunningTask, TaskReader};
use introspect::orc::{Displaced, NoOrc, OrcTable, TrampolineLayout};
use introspect::{
    Btf, KernelLayout, Modules, PagingState, PhysMemory, SymbolTable, TaskLayout, Walks,
};
use thiserror::Error;

use crate::dumped_kernel::DumpedKernel;
use crate::registers::DumpedRegisters;

/// The selectors of Linux for the kernel's code, and for that of 64-bit programs.
const KERNEL_CS: u64 = 0x10;
const USER_CS: u64 = 0x33;
/// The privilege bits of a selector.
const USER_MODE: u64 = 3;

/// Why there are no stacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DumpedStacksError {
    /// The kernel describes no stacks.
    #[error(transparent)]
    NoOrc(#[from] NoOrc),
    /// The vCPUs or tasks.
    #[error(transparent)]
    List(#[from] StackListError),
}

/// A dumped kernel, with the places of its parts that stacks need.
struct DumpedCode<'k> {
    kernel: &'k DumpedKernel,
    layout: Option<KernelLayout>,
    modules: Option<Modules>,
    trampolines: Option<TrampolineLayout>,
    tasks: Option<TaskLayout>,
    cgroups: CgroupPaths,
}

impl DumpedKernel {
    /// Unwinds the stacks of vCPUs and tasks.
    ///
    /// # Errors
    ///
    /// If the kernel has no ORC tables, or the vCPU or task does not exist.
    pub fn stacks(&self, of: StacksOf) -> Result<Vec<ListedStack>, DumpedStacksError> {
        let view = self.view();
        let list = StackList::new(&view, of).map_err(StackListError::from)?;
        let rules = OrcTable::read(&self.image(), &self.symbols)?;
        let code = DumpedCode::new(self);
        let (named, programs) = (NamedModules::default(), KnownPrograms::default());
        let reader = StackReader::new(&code, &rules, &named, &programs, self.paging);
        let vcpus = (0..).zip(&self.vcpus);
        let vcpus: Vec<_> = vcpus
            .map(|(number, registers)| stopped(&code, number, registers))
            .collect();
        let found = list.unwind(&view, &reader, &vcpus)?;
        Ok(found
            .into_iter()
            .map(|found| found.named(&reader))
            .collect())
    }
}

/// The vCPU `number`. The note has neither EFER nor the base that `swapgs` changes to: Linux's selectors and the kernel's list of per-CPU areas
/// replace them.
fn stopped(code: &DumpedCode<'_>, number: u64, registers: &DumpedRegisters) -> StoppedVcpu {
    let mode = match registers.cs {
        KERNEL_CS => VcpuMode::Kernel,
        selector if selector & USER_MODE == USER_MODE => VcpuMode::User {
            is_long: selector == USER_CS,
        },
        _ => VcpuMode::NotStarted,
    };
    let own = (mode == VcpuMode::Kernel).then_some(registers.gs_base);
    let area = match mode {
        VcpuMode::NotStarted => None,
        VcpuMode::User { .. } | VcpuMode::Kernel => per_cpu_area(code, &code.kernel.paging, number),
    };
    StoppedVcpu {
        mode,
        registers: registers.general,
        gs_bases: own.into_iter().chain(area).collect(),
    }
}

impl<'k> DumpedCode<'k> {
    fn new(kernel: &'k DumpedKernel) -> Self {
        let types = kernel.types().ok();
        Self {
            kernel,
            layout: KernelLayout::from_symbols(&kernel.symbols),
            modules: types.and_then(|types| Modules::new(types).ok()),
            trampolines: types.and_then(TrampolineLayout::from_btf),
            tasks: types.and_then(|types| TaskLayout::new(types, &kernel.symbols)),
            cgroups: CgroupPaths::default(),
        }
    }
}

impl StackKernel for DumpedCode<'_> {
    fn memory(&self) -> &dyn PhysMemory {
        &self.kernel.memory
    }

    fn symbols(&self) -> &SymbolTable {
        &self.kernel.symbols
    }

    fn types(&self) -> Result<&Btf, String> {
        self.kernel.types().map_err(ToString::to_string)
    }

    fn slide(&self) -> Option<i64> {
        Some(self.kernel.slide)
    }

    fn holds_code(&self, linked: Gva) -> bool {
        let layout = self.layout.as_ref();
        layout.is_some_and(|layout| layout.holds_code(linked))
    }

    fn modules(&self) -> Option<&Modules> {
        self.modules.as_ref()
    }

    fn trampolines(&self) -> Option<TrampolineLayout> {
        self.trampolines
    }

    fn tasks(&self) -> Option<TaskLayout> {
        self.tasks
    }

    fn task(&self, paging: &PagingState, at: Gva) -> Option<RunningTask> {
        let layout = self.tasks.as_ref()?;
        let walks = Walks::new(*paging);
        TaskReader::new(layout, &self.kernel.memory, &walks).detailed(at, &self.cgroups)
    }

    fn displaced(&self, _: Gva) -> Option<Displaced> {
        // The memory of detours lies behind RAM, and is not in the dump.
        None
    }
}
