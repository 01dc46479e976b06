//! The configuration of a run: the command line and the manifest, merged and checked.
//!
//! A [`RunConfig`] has no defaults left to apply and no path relative to the working directory. The JSON form loses nothing: the nested
//! launcher passes the configuration as JSON to the hyprobe inside the outer Linux, with the paths replaced by the paths of the files
//! there.

use std::path::PathBuf;
use std::time::Duration;

use confine::FileRights;
use guest_images::Module;
pub use manifest::{Accel, Boot, Console, Format, Stealth, TrapChoice, WhenFull, Workload};
use manifest::{Injection, ProbeConfig};
use serde::{Deserialize, Serialize};

pub use crate::kernel_input::KernelInput;
pub use crate::sandbox::Sandbox;

/// The whole configuration of the engine, here or in the outer Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The kernel: an ELF vmlinux or a bzImage.
    pub kernel: KernelInput,
    /// A survey of the kernel's code, made by the process that the user started; in an outer Linux only.
    pub survey: Option<PathBuf>,
    /// The guest's first file system.
    pub initrd: Initrd,
    /// The modules loaded by the demo guest, in load order.
    pub modules: Vec<Module>,
    /// The kernel's command line.
    pub cmdline: String,
    /// The guest's RAM.
    pub memory_bytes: u64,
    /// The number of vCPUs.
    pub cpus: u8,
    /// How the kernel is started.
    pub boot: Boot,
    /// The probes, in the order of the requests.
    pub probes: Vec<ProbeConfig>,
    /// Functions that return before they run.
    pub injections: Vec<Injection>,
    /// Where the guest runs.
    pub accel: Accel,
    /// The choice of the plant's byte.
    pub trap: TrapChoice,
    /// Whether jumps may replace plants.
    pub optimise: bool,
    /// The effect of a hit if the ring has no room for the record.
    pub when_full: WhenFull,
    /// The guest's accesses to probed kernel code that find the guest's own bytes.
    pub stealth: Stealth,
    /// The target of the guest's serial console. The process started by the user opens the writer of the console; the field only says
    /// whether output is read and input can be typed.
    pub console: Console,
    /// The guest is ended after this time, counted from its first instruction.
    pub timeout: Option<Duration>,
    /// The control socket of the run. The process started by the user listens on the path; in an outer Linux, the path only means that a
    /// control socket exists.
    pub control: Option<PathBuf>,
    /// Whether hyprobe and its QEMU give up rights, here and in the outer Linux.
    pub sandbox: Sandbox,
    /// Whether the guest is dumped if the guest crashes. The process started by the user has the file.
    pub dump_on_crash: bool,
}

impl RunConfig {
    /// Adds the rights to the files of the run.
    pub(crate) fn add_rights(&self, rights: &mut FileRights) {
        if let KernelInput::File(path) = &self.kernel {
            rights.read.push(path.clone());
        }
        if let Initrd::File(path) = &self.initrd {
            rights.read.push(path.clone());
        }
        // The socket's file is removed at the end.
        let socket = self.control.as_deref();
        let directory = socket.and_then(|socket| socket.parent());
        rights
            .remove
            .extend(directory.map(|directory| directory.to_owned()));
    }
}

/// Where the guest's first file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Initrd {
    /// No initrd.
    None,
    /// An initrd file.
    File(PathBuf),
    /// The demo guest, built when needed.
    Demo,
}

/// The configuration used only by the process that the user started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputConfig {
    /// How events are written.
    pub format: Format,
    /// The output file; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Whether lines of text have the registers below.
    pub registers: bool,
    /// The core file of a guest that crashes.
    pub crash_dump: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_to_the_files_of_the_run() {
        let config = serde_json::json!({
            "kernel": {"file": "/k/vmlinuz"}, "initrd": {"file": "/i/initrd"}, "modules": [], "cmdline": "",
            "memory_bytes": 1, "cpus": 1, "boot": "direct", "probes": [], "injections": [], "accel": "kvm",
            "trap": "auto", "optimise": true, "when_full": "exit", "stealth": "writes", "console": "none", "timeout": null,
            "control": "/run/x/y.sock", "sandbox": "on", "dump_on_crash": false,
        });
        let config: RunConfig = serde_json::from_value(config).expect("a run");
        let mut rights = FileRights::default();
        config.add_rights(&mut rights);
        let expected = FileRights {
            read: vec!["/k/vmlinuz".into(), "/i/initrd".into()],
            remove: vec!["/run/x".into()],
            ..FileRights::default()
        };
        assert_eq!(rights, expected);
    }
}
