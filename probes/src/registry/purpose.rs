//! What is done at the hits of a probe.

use std::sync::Arc;

use introspect::ModuleEvent;

use crate::applied::Aggregated;
use crate::handler::{Handler, ReturnHandler, Shared};
use crate::inject::Injector;
use crate::program::Operand;

/// What is done at the hits of a probe.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// They are told as events.
    Trace,
    /// They are counted, and that is all.
    Count,
    /// A value of each is added to a result.
    Aggregate(Arc<Aggregated>),
    /// A program's handler is called.
    Handle(Shared<dyn Handler>),
    /// Some calls return before they run.
    Inject(Arc<Injector>),
    /// Calls are followed to their return.
    Return(ReturnPurpose),
    /// The engine itself wants to know.
    Milestone(Milestone),
}

/// What is done at the returns of a function.
#[derive(Clone, Debug)]
pub(crate) enum ReturnAction {
    /// They are told as events.
    Trace,
    /// They are counted.
    Count,
    /// A value of each is added to a result.
    Aggregate(Arc<Aggregated>),
    /// A program's handler is called.
    Handle(Shared<dyn ReturnHandler>),
}

impl ReturnAction {
    /// Whether a record of the return is not enough.
    pub(crate) fn needs_exit(&self) -> bool {
        match self {
            Self::Trace | Self::Count => false,
            // It is not in a record.
            Self::Aggregate(aggregated) => aggregated.aggregate.of() == Operand::CurrentTask,
            Self::Handle(_) => true,
        }
    }
}

/// How calls are followed to their return.
#[derive(Clone, Debug)]
pub(crate) struct ReturnPurpose {
    pub(crate) action: ReturnAction,
    /// So many calls are followed at once.
    pub(crate) maxactive: usize,
}

/// What a probe makes of interest to the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interests {
    /// Calls are followed to their return.
    pub(crate) calls: bool,
    /// Returns have to be told while they happen.
    pub(crate) exits_at_returns: bool,
    /// Modules that come and go.
    pub(crate) modules: bool,
    /// Plants that the kernel must not read.
    pub(crate) plants: bool,
}

impl Purpose {
    /// What values are added to, if they are.
    pub(crate) fn aggregated(&self) -> Option<&Arc<Aggregated>> {
        match self {
            Self::Aggregate(aggregated)
            | Self::Return(ReturnPurpose {
                action: ReturnAction::Aggregate(aggregated),
                ..
            }) => Some(aggregated),
            _ => None,
        }
    }

    /// The same for another probe: each has a result of its own.
    pub(crate) fn for_another(&self) -> Self {
        match self {
            Self::Aggregate(aggregated) => Self::Aggregate(Arc::new(aggregated.anew())),
            Self::Return(ReturnPurpose {
                action: ReturnAction::Aggregate(aggregated),
                maxactive,
            }) => Self::Return(ReturnPurpose {
                action: ReturnAction::Aggregate(Arc::new(aggregated.anew())),
                maxactive: *maxactive,
            }),
            other => other.clone(),
        }
    }
}

/// A point in the guest's life at which the engine has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// The kernel runs on page tables that map its image for good, and its early interrupt table handles #BP.
    EarlyTraps,
    /// The kernel has patched itself for this machine: what it rewrites at boot can be planted.
    BootPatched,
    /// The kernel is about to free its init text: plants there must go, for the pages are given to somebody else.
    InitFreed,
    /// The kernel panics.
    Panic,
    /// The kernel is about to start another one in its place: nothing of ours may stay in memory.
    NextKernel,
    /// A CPU has been brought up: it uses the kernel's interrupt table.
    CpuOnline,
    /// A CPU that the kernel has taken offline is about to wait until it is started anew, without an interrupt table.
    CpuOffline,
    /// A task has ended and will not run again: its calls do not return.
    TaskEnded,
    /// A processor has switched from a task that has ended to another one, or a task is released.
    TaskLeft,
    /// Something happens to modules; of interest while probes wait for some.
    Module(ModuleEvent),
    /// The kernel is about to read its own text; of interest while there is a plant in it.
    Reader(Reader),
}

/// Functions by which the guest's kernel reads or rewrites its own text in a way that plants would disturb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Decodes the function that its argument points into, to see whether an instruction begins there.
    CheckProbe,
    /// Decodes that function to see what jumps where.
    CheckOptimised,
    /// Decodes the instruction that its second argument points to.
    Decode,
    /// Copies from its second argument as many bytes as its third says.
    Copy,
    /// Says whether the instructions that a kprobe's jump would replace are of interest to nobody else.
    CheckJump,
    /// Replaces them, for a list of kprobes.
    WriteJumps,
}

impl Reader {
    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::CheckProbe => "can_probe",
            Self::CheckOptimised => "can_optimize",
            Self::Decode => "insn_decode",
            Self::Copy => "copy_from_kernel_nofault",
            Self::CheckJump => "arch_check_optimized_kprobe",
            Self::WriteJumps => "arch_optimize_kprobes",
        }
    }
}

impl Milestone {
    pub(crate) const ALL: [Self; 18] = [
        Self::EarlyTraps,
        Self::BootPatched,
        Self::InitFreed,
        Self::Panic,
        Self::NextKernel,
        Self::CpuOnline,
        Self::CpuOffline,
        Self::TaskEnded,
        Self::TaskLeft,
        Self::Module(ModuleEvent::Loaded),
        Self::Module(ModuleEvent::InitFreed),
        Self::Module(ModuleEvent::Unloading),
        Self::Reader(Reader::CheckProbe),
        Self::Reader(Reader::CheckOptimised),
        Self::Reader(Reader::Decode),
        Self::Reader(Reader::Copy),
        Self::Reader(Reader::CheckJump),
        Self::Reader(Reader::WriteJumps),
    ];

    /// The function whose entry it is. All kernels from 5.10 to 7.2 have them, and none inlines them; but the readers
    /// come with kprobes, and not all of them with every version.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            // `setup_arch` calls it right behind `idt_setup_early_traps`.
            Self::EarlyTraps => "jump_label_init",
            Self::BootPatched => "rest_init",
            Self::InitFreed => "free_initmem",
            Self::Panic => "panic",
            // kexec and a crash kernel come by there, with the other processors stopped.
            Self::NextKernel => "machine_kexec",
            Self::CpuOnline => "cpu_startup_entry",
            Self::CpuOffline => "arch_cpu_idle_dead",
            Self::TaskEnded => "do_task_dead",
            Self::TaskLeft => "put_task_struct_rcu_user",
            Self::Module(event) => event.function(),
            Self::Reader(reader) => reader.function(),
        }
    }
}
