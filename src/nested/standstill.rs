//! A QEMU that stands still: `docs/nested.md` tells how often that happens.
//!
//! The timer of each of the outer Linux's CPUs interrupts 250 times a second, so each of QEMU's CPU threads uses processor time, even for an
//! idle guest.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::threads::{listed, tasks};

/// The time without any processor time after which a CPU thread stands still.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// The period of the checks.
const PERIOD: Duration = Duration::from_millis(500);
/// The time for the monitor's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// The monitor's invitation to type the next command: the end of an answer.
const PROMPT: &str = "(qemu) ";
/// The bound on an answer, which takes 1.5 KiB for each CPU.
const MAX_ANSWER_BYTES: usize = 512 << 10;
/// The length of a line in an error.
const MAX_LINE_CHARS: usize = 120;

/// The processor time that QEMU's CPU threads use.
///
/// Checks are counted, not seconds: on a host that stands still, time passes without checks.
#[derive(Debug)]
pub(super) struct Activity {
    cpus: Vec<CpuThread>,
    checked: Instant,
}

#[derive(Debug)]
struct CpuThread {
    /// The thread's folder in `/proc`.
    folder: PathBuf,
    nanoseconds: Option<u64>,
    unchanged: u32,
}

impl Activity {
    /// The activity of the QEMU `pid` from `now` on. QEMU must have started its CPU threads.
    pub(super) fn begin(now: Instant, pid: u32) -> Self {
        // If QEMU has no such threads, nothing is watched, and the run goes on.
        let entries = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten();
        let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Self::of_threads(now, folders.filter(|folder| is_cpu_thread(folder)))
    }

    fn of_threads(now: Instant, folders: impl Iterator<Item = PathBuf>) -> Self {
        let cpu = |folder| CpuThread {
            folder,
            nanoseconds: None,
            unchanged: 0,
        };
        Self {
            cpus: folders.map(cpu).collect(),
            checked: now,
        }
    }

    /// Whether a CPU thread has used no processor time for [`LIMIT`]. Checks at most every [`PERIOD`].
    pub(super) fn stands_still(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.checked) < PERIOD {
            return false;
        }
        self.checked = now;
        // Each thread is checked each time.
        let still = self.cpus.iter_mut().filter_map(CpuThread::check);
        still.count() > 0
    }
}

impl CpuThread {
    /// `Some` if the thread has used no processor time for [`LIMIT`].
    ///
    /// A thread that a debugger or a signal has stopped, or whose time cannot be read, counts as active.
    fn check(&mut self) -> Option<()> {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).ok();
        let nanoseconds = read("schedstat").and_then(|text| text.split(' ').next()?.parse().ok());
        let is_unchanged = nanoseconds.is_some()
            && nanoseconds == self.nanoseconds
            && read("stat").is_some_and(|stat| is_sleeping(&stat));
        self.nanoseconds = nanoseconds;
        self.unchanged = if is_unchanged { self.unchanged + 1 } else { 0 };
        (PERIOD * self.unchanged >= LIMIT).then_some(())
    }
}

fn is_cpu_thread(folder: &Path) -> bool {
    let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
    name.starts_with("CPU ") && name.trim_end().ends_with("/TCG")
}

/// Whether a thread with the text `stat` waits for something other than a debugger or `SIGCONT`.
fn is_sleeping(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").map(|(_, behind_name)| behind_name);
    state.is_some_and(|state| state.starts_with(['S', 'D']))
}

/// What QEMU, the process `pid`, does: where each CPU is, and what each thread does. Takes some seconds.
pub(super) fn describe(pid: u32, monitor: &UnixStream) -> String {
    let process = PathBuf::from(format!("/proc/{pid}/task"));
    let threads = listed(tasks(&process));
    let cpus = match cpus(monitor) {
        Ok(cpus) => cpus,
        Err(error) => format!("\n  QEMU's monitor does not answer: {error}"),
    };
    format!("the CPUs and threads of QEMU:{cpus}{threads}")
}

/// A line with the instruction pointer of each CPU.
fn cpus(mut monitor: &UnixStream) -> io::Result<String> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    monitor.set_write_timeout(Some(ANSWER_LIMIT))?;
    // The greeting, which has waited since QEMU's start.
    read_to_prompt(monitor, deadline)?;
    monitor.write_all(b"info registers -a\n")?;
    Ok(instruction_pointers(&read_to_prompt(monitor, deadline)?))
}

/// Reads up to the next [`PROMPT`], also from a QEMU that sends a byte now and then.
fn read_to_prompt(mut monitor: &UnixStream, deadline: Instant) -> io::Result<String> {
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while !answer.ends_with(PROMPT.as_bytes()) && answer.len() < MAX_ANSWER_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        monitor.set_read_timeout(Some(left))?;
        match monitor.read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => (),
                _ => return Err(error),
            },
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The lines with `RIP=`, one for each CPU in order.
fn instruction_pointers(registers: &str) -> String {
    let lines = registers.lines().map(str::trim);
    let pointers = lines.filter(|line| line.starts_with("RIP=") || line.starts_with("EIP="));
    let lines = pointers.take(usize::from(u8::MAX)).enumerate();
    lines
        .map(|(cpu, line)| {
            let shown: String = line.chars().take(MAX_LINE_CHARS).collect();
            format!("\n  CPU {cpu}: {shown}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKS: u32 = 40;

    /// A thread's folder that the test writes.
    struct Thread(tempfile::TempDir);

    impl Thread {
        fn new() -> Self {
            let thread = Self(tempfile::tempdir().expect("tempdir"));
            thread.is("S", "1000 2 3\n");
            thread
        }

        fn is(&self, state: &str, schedstat: &str) {
            let stat = format!("7 (CPU 1/TCG) {state} 1 2 3");
            fs::write(self.0.path().join("stat"), stat).expect("written");
            fs::write(self.0.path().join("schedstat"), schedstat).expect("written");
        }

        fn activity(&self) -> Activity {
            Activity::of_threads(Instant::now(), [self.0.path().to_owned()].into_iter())
        }
    }

    /// Whether a thread stands still in one of `checks` checks, by a clock of the test's own.
    fn stands_still(activity: &mut Activity, checks: u32) -> bool {
        let now = activity.checked;
        (1..=checks).any(|check| activity.stands_still(now + PERIOD * check))
    }

    #[test]
    fn thread_without_processor_time_stands_still_after_the_limit() {
        assert_eq!(PERIOD * CHECKS, LIMIT);
        let thread = Thread::new();
        let mut activity = thread.activity();
        assert!(!stands_still(&mut activity, CHECKS), "too early");
        assert!(stands_still(&mut activity, 1));
    }

    #[test]
    fn one_nanosecond_begins_the_limit_anew() {
        let thread = Thread::new();
        let mut activity = thread.activity();
        assert!(!stands_still(&mut activity, CHECKS));
        thread.is("S", "1001 2 3\n");
        assert!(!stands_still(&mut activity, CHECKS));
        assert!(stands_still(&mut activity, 1));
    }

    #[test]
    fn one_of_two_threads_is_enough() {
        let (still, busy) = (Thread::new(), Thread::new());
        let folders = [&still, &busy].map(|thread| thread.0.path().to_owned());
        let mut activity = Activity::of_threads(Instant::now(), folders.into_iter());
        for time in 0..CHECKS {
            busy.is("R", &format!("{time} 2 3"));
            assert!(!stands_still(&mut activity, 1));
        }
        assert!(stands_still(&mut activity, 1));
    }

    #[test]
    fn thread_that_a_debugger_has_stopped_counts_as_active() {
        for state in ["T", "t"] {
            let thread = Thread::new();
            thread.is(state, "1000 2 3");
            assert!(!stands_still(&mut thread.activity(), 3 * CHECKS));
        }
    }

    #[test]
    fn thread_without_a_readable_time_counts_as_active() {
        let thread = Thread::new();
        thread.is("S", "");
        assert!(!stands_still(&mut thread.activity(), 3 * CHECKS));
        fs::remove_file(thread.0.path().join("schedstat")).expect("removed");
        assert!(!stands_still(&mut thread.activity(), 3 * CHECKS));
    }

    #[test]
    fn checks_without_a_pause_are_one() {
        let thread = Thread::new();
        let mut activity = thread.activity();
        let now = activity.checked + PERIOD;
        assert!((0..3 * CHECKS).all(|_| !activity.stands_still(now)));
    }

    #[test]
    fn threads_of_a_process_that_is_no_qemu_are_not_watched() {
        let activity = Activity::begin(Instant::now(), std::process::id());
        assert!(activity.cpus.is_empty());
    }

    #[test]
    fn instruction_pointer_of_each_cpu_is_a_line() {
        let registers = "info registers -a\r\n\r\nCPU#0\r\nRAX=0 RBX=0\r\nRIP=ffffffff81 RFL=246 HLT=1\r\nCPU#1\r\nRIP=7f RFL=2 HLT=0\r\n(qemu) ";
        assert_eq!(
            instruction_pointers(registers),
            "\n  CPU 0: RIP=ffffffff81 RFL=246 HLT=1\n  CPU 1: RIP=7f RFL=2 HLT=0"
        );
    }

    #[test]
    fn registers_come_behind_the_greeting() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(b"QEMU 10.0\r\n(qemu) ").expect("sent");
        let monitor = std::thread::spawn(move || {
            let mut command = [0; 18];
            theirs.read_exact(&mut command).expect("a command");
            assert_eq!(&command, b"info registers -a\n");
            theirs.write_all(b"RIP=1\r\n(qe").expect("sent");
            theirs.write_all(b"mu) ").expect("sent");
        });
        assert_eq!(cpus(&ours).expect("an answer"), "\n  CPU 0: RIP=1");
        monitor.join().expect("no panic");
    }

    #[test]
    fn monitor_that_only_greets_is_an_error_within_the_limit() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(b"QEMU 10.0\r\n(qemu) ").expect("sent");
        let began = Instant::now();
        let error = cpus(&ours).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= ANSWER_LIMIT);
    }

    #[test]
    fn monitor_that_sends_without_end_is_read_up_to_the_bound() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        // The writes fail when the reader has gone.
        let monitor = std::thread::spawn(move || while theirs.write_all(b"RIP=1\n").is_ok() {});
        let deadline = Instant::now() + Duration::from_secs(60);
        let answer = read_to_prompt(&ours, deadline).expect("the bound");
        assert!(answer.len() < MAX_ANSWER_BYTES + 4096);
        assert_eq!(instruction_pointers(&answer).lines().count(), 1 + 255);
        drop(ours);
        monitor.join().expect("no panic");
    }
}
