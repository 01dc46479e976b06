//! The checks of the mechanisms that confine a run on this host.

use confine::{Landlock, has_filters, landlock};
use rustix::process::geteuid;

use super::Verdict::Warn;
use super::{Check, Group};

pub(super) fn checks() -> [Check; 3] {
    let files = Check::new(Group::Sandbox, "landlock", "access to files");
    let files = match landlock() {
        Landlock::Full => files.found("confined (Landlock)"),
        Landlock::Partial => files.found("confined in part").verdict(
            Warn,
            "this kernel is older than Linux 6.12, and its Landlock does not confine all of these: truncating files, TCP, device controls, \
             signals to other processes",
        ),
        Landlock::Missing => files.found("not confined").verdict(
            Warn,
            "this kernel has no Landlock, or it is switched off: a guest that takes hyprobe over can read and write the files of \
             its user",
        ),
    };
    let calls = Check::new(Group::Sandbox, "seccomp", "system calls of threads");
    let calls = match has_filters() {
        true => calls.found("filtered (seccomp)"),
        false => calls.found("not filtered").verdict(
            Warn,
            "this kernel has no CONFIG_SECCOMP_FILTER: a run needs --no-sandbox",
        ),
    };
    let user = Check::new(Group::Sandbox, "user", "user");
    let uid = geteuid();
    let user = match uid.is_root() {
        false => user.found(format!("not root (user {})", uid.as_raw())),
        true => user.found("root").verdict(
            Warn,
            "a guest that takes hyprobe over is root within its files and calls: on this host's KVM, `--user USER` and `--chroot DIR` give \
             that up; a nested run needs no root",
        ),
    };
    [files, calls, user]
}
