//! The arguments of commands for a run in progress.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use manifest::{ProbeAction, units};

use super::values::choice;
use crate::config::Format;

/// Which run.
#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// The socket of `hyprobe run --control SOCKET`
    #[arg(long, value_name = "SOCKET", env = "HYPROBE_SOCKET")]
    pub(crate) socket: PathBuf,
}

/// Whose kernel: a run's, or a dump's.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// The socket of `hyprobe run --control SOCKET`
    #[arg(
        long,
        value_name = "SOCKET",
        env = "HYPROBE_SOCKET",
        required_unless_present = "dump"
    )]
    pub(crate) socket: Option<PathBuf>,
    /// A core file of `hyprobe dump FILE`, in place of a run
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProbeCommand {
    /// Add probes: all of them or none
    Add(AddArgs),
    /// Show all probes
    List {
        #[command(flatten)]
        run: SocketArgs,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove probes
    Rm {
        #[command(flatten)]
        run: SocketArgs,
        /// Numbers or names, as `list` shows them
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All probes
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Plant probes again
    Enable(IdArgs),
    /// Take the plants of probes away, and keep the probes
    Disable(IdArgs),
}

#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// Numbers or names, as `list` shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// What to probe, as with `run -p`
    #[arg(required = true, value_name = "SPEC")]
    pub(crate) specs: Vec<String>,
    /// A name for it, in place of its number
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Add it without planting it
    #[arg(long)]
    pub(crate) disabled: bool,
    /// For return probes: how many calls are followed at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) maxactive: Option<u16>,
    /// What is done at its hits [default: trace]
    #[arg(long, value_parser = choice::<ProbeAction>())]
    pub(crate) action: Option<ProbeAction>,
    /// Only executions for which this holds are hits: 'arg0 == 5 && cpu == 1'
    #[arg(long, value_name = "CONDITIONS")]
    pub(crate) filter: Option<String>,
    /// Keep a sum, min, max, hist or lhist of a value in place of events: 'hist(arg2)'
    #[arg(long, value_name = "OF", conflicts_with = "action")]
    pub(crate) aggregate: Option<String>,
    /// Show the kernel's stack at hits and returns
    #[arg(long, conflicts_with = "aggregate")]
    pub(crate) stack: bool,
    /// Debug information of the kernel and of modules, for source lines, as for `run` (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_info: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// From this event on, if it is still kept; 1 is the run's first
    #[arg(long, value_name = "SEQ")]
    pub(crate) from: Option<u64>,
    /// End after this number of events
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// How events are written [default: text]
    #[arg(long, value_parser = choice::<Format>())]
    pub(crate) format: Option<Format>,
    /// Debug information of the kernel and of modules, for frames of stacks (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_info: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// The core file to write
    pub(crate) file: PathBuf,
    /// Let the guest run on after this time, also if the dump is not complete: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "120s")]
    pub(crate) pause_limit: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) run: SocketArgs,
    /// How often it is looked: 1s, 250ms
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, default_value = "1s")]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct PrintArgs {
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
    /// What to show: 'init_task.comm', '*(struct file *)0xffff888003f2b000', 'per_cpu(runqueues, 0).nr_running'
    #[arg(value_name = "EXPR")]
    pub(crate) expression: String,
    /// Show the object of this type at the address: -t 'struct task_struct' init_task
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    pub(crate) declared: Option<String>,
    /// How many structs in each other are shown [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) depth: Option<u8>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Every thread of each process
    #[arg(long)]
    pub(crate) threads: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BtArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Number of a thread, as `hyprobe ps --threads` prints it [default: what the vCPUs run]
    #[arg(value_name = "TID", conflicts_with_all = ["vcpu", "all"])]
    pub(crate) tid: Option<i32>,
    /// The stack of this vCPU alone
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub(crate) vcpu: Option<usize>,
    /// The stacks of all vCPUs and of every thread
    #[arg(long)]
    pub(crate) all: bool,
    /// Debug information of the kernel and of modules: frames have source lines, and inlined functions have lines of their own (repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) debug_info: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PerCpuArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// The variables to show: a name or a glob, as in `kprobe:PATTERN`
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,
}

/// Which kernel to view, and in which form.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CtlArgs {
    /// What to do
    pub(crate) verb: CtlVerb,
    #[command(flatten)]
    pub(crate) run: SocketArgs,
}

/// What can be done to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CtlVerb {
    /// Say how it is
    Status,
    /// Pause every vCPU
    Pause,
    /// Let it run on
    Resume,
    /// End the guest, and the run with it
    Stop,
}
