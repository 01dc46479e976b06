//! The rights given up by the whole process and its children, before the process starts a thread or reads a file.

use rustix::io;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::set_no_new_privs;

/// The process cannot give up a right.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Programs with the set-user-ID bit would still get other rights.
    #[error("cannot set no_new_privs")]
    NewPrivileges(#[source] io::Errno),
    /// A crash would write the guest's memory to a file.
    #[error("cannot forbid core dumps")]
    CoreDumps(#[source] io::Errno),
}

/// Gives up privileges of executed programs, and core dumps: no part of hyprobe needs them.
///
/// # Errors
///
/// If the kernel refuses.
pub fn begin() -> Result<(), ConfineError> {
    set_no_new_privs(true).map_err(ConfineError::NewPrivileges)?;
    // 0 would mean no files only. At 1, the kernel gives no dump to a program (`core_pattern`) either.
    let none = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    setrlimit(Resource::Core, none).map_err(ConfineError::CoreDumps)
}

/// Whether the calling thread is the process's only thread. The kernel keeps some rights for each thread: only a single thread can give up
/// the rights of the whole process.
#[must_use]
pub fn has_one_thread() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"));
    threads.is_some_and(|threads| threads.trim() == "1")
}
