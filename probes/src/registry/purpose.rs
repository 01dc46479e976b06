//! The purposes of probes: the work at hits and returns, and the kernel event probes.

use std::sync::Arc;

use introspect::ModuleEvent;

use super::file_event::FileEvent;
use crate::applied::Aggregated;
use crate::handler::{Handler, ReturnHandler, Shared};
use crate::inject::Injector;

/// The work at the hits of a probe.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Hits are reported as events.
    Trace,
    /// Hits are counted, and have no other effect.
    Count,
    /// A value of each hit is added to a result.
    Aggregate(Arc<Aggregated>),
    /// A program's handler is called.
    Handle(Shared<dyn Handler>),
    /// Some calls return before the function runs.
    Inject(Arc<Injector>),
    /// Calls are followed to their return.
    Return(ReturnPurpose),
    /// A kernel event probe: the engine handles the hits.
    KernelEvent(KernelEvent),
}

/// The work at the returns of a function.
#[derive(Clone, Debug)]
pub(crate) enum ReturnAction {
    /// Returns are reported as events.
    Trace,
    /// Returns are counted.
    Count,
    /// A value of each return is added to a result.
    Aggregate(Arc<Aggregated>),
    /// A program's handler is called.
    Handle(Shared<dyn ReturnHandler>),
}

impl ReturnAction {
    /// Whether each return has to exit, since a record holds too little.
    pub(crate) fn needs_exit(&self) -> bool {
        match self {
            Self::Trace | Self::Count => false,
            // Not every record holds the current task.
            Self::Aggregate(aggregated) => aggregated.aggregate.of().is_of_task(),
            Self::Handle(_) => true,
        }
    }
}

/// How calls are followed to their return.
#[derive(Clone, Debug)]
pub(crate) struct ReturnPurpose {
    pub(crate) action: ReturnAction,
    /// The maximum number of calls followed at once.
    pub(crate) maxactive: usize,
}

/// The requirements of a probe: kernel event probes, and exits at returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interests {
    /// Calls are followed to their return.
    pub(crate) calls: bool,
    /// Returns have to exit.
    pub(crate) exits_at_returns: bool,
    /// Loaded and unloaded modules are watched.
    pub(crate) modules: bool,
    /// Plants are possible that the kernel must not read.
    pub(crate) plants: bool,
    /// The files that programs map are watched.
    pub(crate) files: bool,
    /// Starting and ending tasks are watched.
    pub(crate) tasks: bool,
}

impl Purpose {
    /// The result that values are added to, if any.
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

    /// The same purpose for another probe, with a new result.
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

/// A kernel event: a point in the guest's life at which the engine has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelEvent {
    /// The kernel's present page tables share their top entries with its final tables, and its early interrupt table handles #BP.
    EarlyTraps,
    /// The kernel has patched itself for this machine: plants are possible on instructions rewritten at boot.
    BootPatched,
    /// The kernel is about to free its init text: plants in the text must go, since the pages are reused.
    InitFreed,
    /// The kernel panics.
    Panic,
    /// The kernel is about to start another kernel: hyprobe's changes to memory must go.
    NextKernel,
    /// A CPU has been brought up, and uses the kernel's interrupt table.
    CpuOnline,
    /// A CPU taken offline by the kernel is about to wait for a new start, without an interrupt table.
    CpuOffline,
    /// A task has ended and will not run again: its calls do not return.
    TaskEnded,
    /// A task is about to run for the first time; required while a probe is at data of a task.
    TaskStarted,
    /// A processor has switched from an ended task to another task, or a task is released.
    TaskLeft,
    /// The kernel gives up the struct of an ended task; required while a probe is at data of a task.
    TaskFreed,
    /// A module is loaded, loses its init text, or is unloaded; required while a probe or a return site may be in a module.
    Module(ModuleEvent),
    /// A program maps a file, or a page comes into the memory of a file; required while a probe is in a program.
    File(FileEvent),
    /// The kernel is about to read its own text; required while the text may have a plant.
    Reader(Reader),
}

impl KernelEvent {
    /// Whether the engine serves the event even if a handler has moved the vCPU elsewhere: plants and watched data that are given up without need
    /// cost only hits, and a check of the processors has no cost. A panic, the start of another kernel and the reading of text take
    /// place only if the kernel executes the function. The end of a task is served before handlers run.
    pub(crate) const fn is_served_when_moved(self) -> bool {
        match self {
            Self::EarlyTraps
            | Self::BootPatched
            | Self::InitFreed
            | Self::CpuOnline
            | Self::CpuOffline
            | Self::TaskStarted
            | Self::TaskFreed
            | Self::Module(_) => true,
            Self::Panic
            | Self::NextKernel
            | Self::TaskEnded
            | Self::TaskLeft
            | Self::File(_)
            | Self::Reader(_) => false,
        }
    }
}

/// A function of the guest's kernel that reads or rewrites kernel text, and that plants would disturb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Decodes the function around its argument, to check whether an instruction begins at the argument.
    CheckProbe,
    /// Decodes the function around its argument, to find the targets of jumps.
    CheckOptimised,
    /// Decodes the instruction at its second argument.
    Decode,
    /// Copies from its second argument; the third argument is the number of bytes.
    Copy,
    /// Checks the instructions that a kprobe's jump would replace: no other kprobe may be there.
    CheckJump,
    /// Writes the jumps of a list of kprobes.
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

impl KernelEvent {
    pub(crate) const ALL: [Self; 27] = [
        Self::EarlyTraps,
        Self::BootPatched,
        Self::InitFreed,
        Self::Panic,
        Self::NextKernel,
        Self::CpuOnline,
        Self::CpuOffline,
        Self::TaskEnded,
        Self::TaskStarted,
        Self::TaskLeft,
        Self::TaskFreed,
        Self::Module(ModuleEvent::Loaded),
        Self::Module(ModuleEvent::InitFreed),
        Self::Module(ModuleEvent::Unloading),
        Self::File(FileEvent::ALL[0]),
        Self::File(FileEvent::ALL[1]),
        Self::File(FileEvent::ALL[2]),
        Self::File(FileEvent::ALL[3]),
        Self::File(FileEvent::ALL[4]),
        Self::File(FileEvent::ALL[5]),
        Self::File(FileEvent::ALL[6]),
        Self::Reader(Reader::CheckProbe),
        Self::Reader(Reader::CheckOptimised),
        Self::Reader(Reader::Decode),
        Self::Reader(Reader::Copy),
        Self::Reader(Reader::CheckJump),
        Self::Reader(Reader::WriteJumps),
    ];

    /// The function at whose entry the event happens. All kernels from 5.10 to 7.2 have these functions, and none inlines
    /// any of them. The readers are exceptions: they come with kprobes, and some versions lack some readers.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            // `setup_arch` calls the function right behind `idt_setup_early_traps`.
            Self::EarlyTraps => "jump_label_init",
            Self::BootPatched => "rest_init",
            Self::InitFreed => "free_initmem",
            Self::Panic => "panic",
            // kexec and a crash kernel both pass this function, with the other processors stopped.
            Self::NextKernel => "machine_kexec",
            Self::CpuOnline => "cpu_startup_entry",
            Self::CpuOffline => "arch_cpu_idle_dead",
            Self::TaskEnded => "do_task_dead",
            Self::TaskStarted => "wake_up_new_task",
            Self::TaskLeft => "put_task_struct_rcu_user",
            // A callback, called by its address.
            Self::TaskFreed => "delayed_put_task_struct",
            Self::Module(event) => event.function(),
            Self::File(event) => event.function(),
            Self::Reader(reader) => reader.function(),
        }
    }
}
