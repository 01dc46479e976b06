//! System-call filters of threads.

use std::io;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, TargetArch, apply_filter, apply_filter_all_threads, compile_from_json, sock_filter,
};

use crate::ThreadKind;
use crate::violation;

/// The filter of all threads, against the calls that no part of hyprobe makes. Child processes inherit the filter.
const ALL: (&str, &str) = ("all", include_str!("filters/all.json"));
/// The second filter of all threads.
const CLONE3: (&str, &str) = ("clone3", include_str!("filters/clone3.json"));
/// The first filter of each thread working for a guest: the thread opens no file.
const GUEST: (&str, &str) = ("guest", include_str!("filters/guest.json"));

/// The filters cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// A filter is no valid filter.
    #[error("the system-call filter `{name}` cannot be compiled")]
    Compile {
        /// The filter.
        name: &'static str,
        /// The cause.
        source: seccompiler::Error,
    },
    /// A filter's file has a filter of another name.
    #[error("no system-call filter is called `{name}`")]
    Unnamed {
        /// The filter.
        name: &'static str,
    },
    /// The kernel refuses filters.
    #[error("the kernel takes no system-call filter (CONFIG_SECCOMP_FILTER)")]
    Apply(#[source] seccompiler::Error),
    /// No handler for forbidden calls.
    #[error("cannot handle SIGSYS, which reports forbidden system calls")]
    Handler(#[source] io::Error),
}

/// The filters of threads working for a guest.
#[derive(Debug)]
struct Filters {
    guest: BpfProgram,
    kinds: Vec<(ThreadKind, BpfProgram)>,
}

/// Set once: afterwards each thread takes the filter of its kind before the work for a guest.
static FILTERS: OnceLock<Filters> = OnceLock::new();

fn compile(name: &'static str, json: &str) -> Result<BpfProgram, FilterError> {
    let compiled = compile_from_json(json.as_bytes(), TargetArch::x86_64);
    let mut programs = compiled.map_err(|source| FilterError::Compile { name, source })?;
    programs.remove(name).ok_or(FilterError::Unnamed { name })
}

impl Filters {
    fn new() -> Result<Self, FilterError> {
        let (guest, json) = GUEST;
        let kinds = ThreadKind::ALL
            .iter()
            .map(|kind| Ok((*kind, compile(kind.name(), kind.filter())?)));
        Ok(Self {
            guest: compile(guest, json)?,
            kinds: kinds.collect::<Result<_, FilterError>>()?,
        })
    }
}

/// Prepares the filters: afterwards [`enter`] gives threads their filters.
///
/// # Errors
///
/// If a filter is no filter, or forbidden calls could not be reported.
pub fn load_filters() -> Result<(), FilterError> {
    if FILTERS.get().is_some() {
        return Ok(());
    }
    let filters = Filters::new()?;
    violation::report().map_err(FilterError::Handler)?;
    // Another caller's filters are the same.
    let _ = FILTERS.set(filters);
    Ok(())
}

/// Mark of calls of the x32 interface: the same calls under other numbers, which no filter lists.
const X32_BIT: u32 = 0x4000_0000;
/// `BPF_LD | BPF_W | BPF_ABS`: load a word of the call's description.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JSET | BPF_K`: jump if a bit is set.
const JUMP_IF_SET: u16 = 0x45;
/// `BPF_RET | BPF_K`: answer.
const ANSWER: u16 = 0x06;

/// `program` behind a look at the number of the call: calls of the x32 interface, which kernels of some distributions have, fail.
fn without_x32(program: BpfProgram) -> BpfProgram {
    let instruction = |code, k, jf| sock_filter { code, jt: 0, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let look = [
        // The number is the first word.
        instruction(LOAD, 0, 0),
        instruction(JUMP_IF_SET, X32_BIT, 1),
        instruction(ANSWER, refused, 0),
    ];
    look.into_iter().chain(program).collect()
}

/// Forbids the calls that no part of hyprobe makes, for all threads of the process and for later child processes. A forbidden call fails.
///
/// # Errors
///
/// If the kernel has no filters.
pub fn filter_process() -> Result<(), FilterError> {
    for (name, json) in [ALL, CLONE3] {
        let program = without_x32(compile(name, json)?);
        apply_filter_all_threads(&program).map_err(FilterError::Apply)?;
    }
    Ok(())
}

/// Whether the host's kernel has filters.
#[must_use]
pub fn has_filters() -> bool {
    std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

/// Gives the calling thread the filter of `kind`, for good. Without an earlier [`load_filters`], the function does nothing.
///
/// A system call outside the filter ends the process: a message on standard error names the thread and the call, and the exit code is 3. If
/// the thread blocks signals at the call, SIGSYS ends the process without a message.
///
/// # Panics
///
/// If the kernel refuses a filter: the thread must not work without.
pub fn enter(kind: ThreadKind) {
    let Some(filters) = FILTERS.get() else {
        return;
    };
    let own = filters.kinds.iter().find(|(known, _)| *known == kind);
    violation::name_thread(kind.name());
    // The signals' handlers wake the thread waiting for signals, with calls outside the filter.
    violation::leave_signals_to_others();
    for program in [&filters.guest].into_iter().chain(own.map(|(_, own)| own)) {
        if let Err(error) = apply_filter(program) {
            panic!("the kernel refuses the filter `{}`: {error}", kind.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_all_kinds_compile_and_allow_less_than_everything() {
        let filters = Filters::new().expect("filters");
        assert_eq!(filters.kinds.len(), ThreadKind::ALL.len());
        for (kind, program) in &filters.kinds {
            assert!(program.len() > 20, "{kind:?}");
        }
        for (name, json) in [ALL, CLONE3] {
            compile(name, json).expect("a filter of all threads");
        }
    }
}
