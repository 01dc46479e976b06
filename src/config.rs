//! What a run is: the command line and the manifest, merged and checked.
//!
//! A [`RunConfig`] has no defaults left to apply and no path that depends on the working directory. It goes through
//! JSON unchanged, because the nested launcher hands it to the hyprobe inside the outer Linux, with the paths replaced
//! by the places of the files there.

use std::path::PathBuf;
use std::time::Duration;

use guest_images::Module;
pub(crate) use probes::{Accel, Boot, Console, Format, TrapChoice, WhenFull, Workload};
use probes::{Injection, ProbeRequest};
use serde::{Deserialize, Serialize};

pub(crate) use crate::kernel_input::KernelInput;
pub(crate) use crate::sandbox::Sandbox;

/// Everything that the engine needs to know, here or in the outer Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunConfig {
    /// The kernel: an ELF vmlinux or a bzImage.
    pub(crate) kernel: KernelInput,
    /// The guest's first file system.
    pub(crate) initrd: Initrd,
    /// What the demo guest loads, in this order.
    pub(crate) modules: Vec<Module>,
    /// The kernel's command line.
    pub(crate) cmdline: String,
    /// The guest's RAM.
    pub(crate) memory_bytes: u64,
    /// The number of vCPUs.
    pub(crate) cpus: u8,
    /// How the kernel is started.
    pub(crate) boot: Boot,
    /// What is probed, in the order in which it was asked for.
    pub(crate) probes: Vec<ProbeRequest>,
    /// Functions that return before they run.
    pub(crate) injections: Vec<Injection>,
    /// Where the guest runs.
    pub(crate) accel: Accel,
    /// What is planted.
    pub(crate) trap: TrapChoice,
    /// Whether jumps may stand for plants.
    pub(crate) optimise: bool,
    /// What a hit does that there is no room to record.
    pub(crate) when_full: WhenFull,
    /// Where the guest's serial console goes. The writer that belongs to it is opened by the process that the user
    /// started; this only says whether there is anybody to read and to type.
    pub(crate) console: Console,
    /// The guest is ended after this time, counted from its first instruction.
    pub(crate) timeout: Option<Duration>,
    /// The socket through which the run can be controlled. The process that the user started listens there; in an
    /// outer Linux this only says that there is one.
    pub(crate) control: Option<PathBuf>,
    /// Whether hyprobe and its QEMU give up rights, here and in the outer Linux.
    pub(crate) sandbox: Sandbox,
}

/// Where the guest's first file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Initrd {
    /// There is none.
    None,
    /// This file.
    File(PathBuf),
    /// The demo guest, built when it is needed.
    Demo,
}

/// What only the process that the user started needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputConfig {
    /// How events are written.
    pub(crate) format: Format,
    /// Where to; standard output if nothing is said.
    pub(crate) output: Option<PathBuf>,
}
