//! Permanent probes on functions whose calls the workload counts: at the entry, by a jump; at the second instruction, by an `int3` if the
//! instruction is short; and at the returns of some functions.

use address::Gva;
use probes::Kernel;

use super::super::counting::{Counted, function};
use super::super::second::second;

pub(super) const GETPID: &str = "__x64_sys_getpid";

/// Functions called once for each of the workload's calls.
const SYSCALLS: [(&str, Counted); 13] = [
    ("__x64_sys_openat", Counted::Openat),
    ("do_sys_openat2", Counted::Openat),
    ("__x64_sys_read", Counted::Read),
    ("ksys_read", Counted::Read),
    ("vfs_read", Counted::Read),
    (GETPID, Counted::Getpid),
    ("__x64_sys_nanosleep", Counted::Nap),
    ("hrtimer_nanosleep", Counted::Nap),
    ("do_nanosleep", Counted::Nap),
    ("__x64_sys_clone", Counted::Children),
    ("__x64_sys_wait4", Counted::Children),
    ("__x64_sys_exit_group", Counted::Children),
    ("do_group_exit", Counted::Children),
];
/// The functions with a return probe.
const RETURNS: [&str; 3] = ["do_sys_openat2", "ksys_read", "do_nanosleep"];

/// A permanent probe, and the kind of calls that the probe must have counted.
#[derive(Debug)]
pub(super) struct Stays {
    pub(super) spec: String,
    pub(super) function: Gva,
    pub(super) counted: Counted,
}

pub(super) fn all(kernel: &Kernel) -> Result<Vec<Stays>, String> {
    let mut all = Vec::new();
    for (name, counted) in SYSCALLS {
        let symbol = function(kernel, name)?;
        let function = symbol.address;
        let kind = if RETURNS.contains(&name) {
            "kretprobe"
        } else {
            "kprobe"
        };
        let second = second(kernel, &symbol);
        let second = second.map(|offset| format!("kprobe:{name}+{offset}"));
        let specs = [Some(format!("{kind}:{name}")), second];
        all.extend(specs.into_iter().flatten().map(|spec| Stays {
            spec,
            function,
            counted,
        }));
    }
    Ok(all)
}
