//! The threads of a process that no longer answers, and their processor time.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The time over which processor time is measured.
pub(super) const SAMPLE: Duration = Duration::from_secs(1);

/// A thread of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Task {
    name: String,
    /// Clock ticks in user mode and in the kernel during [`SAMPLE`].
    user_ticks: u64,
    kernel_ticks: u64,
    /// The number and the arguments of the system call, or `running`.
    call: String,
    /// The functions of the kernel, innermost first. Only root may read them.
    kernel_stack: Option<Vec<String>>,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            user_ticks,
            kernel_ticks,
            call,
            kernel_stack,
        } = self;
        let stack = match kernel_stack {
            Some(functions) => functions.join(" < "),
            None => "only for root".to_owned(),
        };
        write!(
            f,
            "{name}: {user_ticks} ticks in user mode, {kernel_ticks} in the kernel, call {call}, stack {stack}"
        )
    }
}

/// The threads in the folder `tasks`, observed for [`SAMPLE`].
///
/// # Errors
///
/// If the folder cannot be read.
pub(super) fn tasks(tasks: &Path) -> io::Result<Vec<Task>> {
    let mut before = Vec::new();
    for entry in fs::read_dir(tasks)? {
        let folder = entry?.path();
        // The thread may end at any moment.
        let ticks = fs::read_to_string(folder.join("stat")).ok();
        before.extend(ticks.as_deref().and_then(ticks_of).map(|it| (folder, it)));
    }
    thread::sleep(SAMPLE);
    let task = |(folder, (user, kernel)): (PathBuf, (u64, u64))| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let (user_now, kernel_now) = ticks_of(&read("stat")?)?;
        let stack = read("stack");
        Some(Task {
            name: read("comm")?.trim().replace(char::is_control, "?"),
            user_ticks: user_now.saturating_sub(user),
            kernel_ticks: kernel_now.saturating_sub(kernel),
            call: read("syscall").unwrap_or_default().trim().to_owned(),
            kernel_stack: stack.map(|stack| stack.lines().map(function).collect()),
        })
    };
    Ok(before.into_iter().filter_map(task).collect())
}

/// User and kernel time, in clock ticks, in the text of a thread's `stat`. The name, in parentheses, may hold spaces and parentheses.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    // The state is the third field of the file, user time the fourteenth.
    let mut times = behind_name.split(' ').skip(11);
    Some((times.next()?.parse().ok()?, times.next()?.parse().ok()?))
}

/// `[<0>] kvm_vcpu_block+0x54/0x90 [kvm]` without the address.
fn function(line: &str) -> String {
    let behind = line.split_once("] ").map_or(line, |(_, function)| function);
    behind.trim().to_owned()
}

/// A line for each thread.
pub(super) fn listed(tasks: io::Result<Vec<Task>>) -> String {
    match tasks {
        Ok(tasks) => tasks.iter().map(|task| format!("\n  {task}")).collect(),
        Err(error) => format!(" cannot be listed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn times_behind_a_name_with_parentheses_are_read() {
        let stat = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 21 32 0 0 20 0";
        assert_eq!(ticks_of(stat), Some((21, 32)));
        assert_eq!(ticks_of("7 (a"), None);
    }

    #[test]
    fn function_of_a_stack_line_has_no_address() {
        assert_eq!(
            function("[<0>] kvm_vcpu_block+0x54/0x90 [kvm]"),
            "kvm_vcpu_block+0x54/0x90 [kvm]"
        );
    }

    #[test]
    fn busy_thread_of_this_process_is_listed_with_its_time() {
        let is_over = Arc::new(AtomicBool::default());
        let ends = Arc::clone(&is_over);
        let busy = thread::Builder::new().name("is-busy".to_owned());
        let busy = busy.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let busy = busy.expect("a thread");
        // On a busy host, the thread may have had no time at first.
        let is_listed = (0..20).any(|_| {
            let listed = tasks(Path::new("/proc/self/task")).expect("its threads");
            let mut busy = listed.iter().filter(|task| task.name == "is-busy");
            busy.any(|task| task.user_ticks > 0)
        });
        is_over.store(true, Ordering::Relaxed);
        busy.join().expect("no panic");
        assert!(is_listed);
    }
}
