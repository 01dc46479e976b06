//! A QEMU that stands still: `docs/nested.md` tells how often that happens.
//!
//! The timers of the outer Linux interrupt each CPU 250 times a second, so a working QEMU uses processor time, even for an idle guest.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::phase::TICK;
use super::threads::{listed, tasks, ticks_of};

/// The time without any processor time after which QEMU stands still.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// The time for the monitor's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The most that is read of the answer: the registers of 255 CPUs take less.
const MAX_ANSWER_BYTES: usize = 2 << 20;

/// The processor time that a process uses.
///
/// Checks are counted, not seconds: if the host stands still, so does this process, and the time passes without checks.
#[derive(Debug)]
pub(super) struct Activity {
    process: PathBuf,
    ticks: Option<(u64, u64)>,
    checked: Instant,
    unchanged: u128,
}

impl Activity {
    /// The activity of the process `pid` from `now` on.
    pub(super) fn begin(now: Instant, pid: u32) -> Self {
        Self {
            process: format!("/proc/{pid}").into(),
            ticks: None,
            checked: now,
            unchanged: 0,
        }
    }

    /// Whether the process has used no processor time for [`LIMIT`]. Checks at most every [`TICK`].
    ///
    /// A process whose time cannot be read counts as active.
    pub(super) fn stands_still(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.checked) < TICK {
            return false;
        }
        self.checked = now;
        let stat = std::fs::read_to_string(self.process.join("stat")).ok();
        let ticks = stat.as_deref().and_then(ticks_of);
        self.unchanged = match ticks {
            Some(_) if ticks == self.ticks => self.unchanged + 1,
            _ => 0,
        };
        self.ticks = ticks;
        self.unchanged * TICK.as_millis() >= LIMIT.as_millis()
    }
}

/// What QEMU, the process `pid`, does: where each CPU is, and what each thread does. Takes some seconds.
pub(super) fn describe(pid: u32, monitor: &UnixStream) -> String {
    let process = PathBuf::from(format!("/proc/{pid}/task"));
    let threads = listed(tasks(&process));
    let cpus = match cpus(monitor) {
        Ok(cpus) => cpus,
        Err(error) => format!("\n  the monitor does not answer: {error}"),
    };
    format!("the CPUs and threads of QEMU:{cpus}{threads}")
}

/// A line with the instruction pointer of each CPU.
fn cpus(mut monitor: &UnixStream) -> io::Result<String> {
    monitor.set_read_timeout(Some(ANSWER_LIMIT))?;
    monitor.set_write_timeout(Some(ANSWER_LIMIT))?;
    monitor.write_all(b"info registers -a\n")?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    // A line comes behind the registers of the last CPU, but none says so: the answer ends when nothing more arrives.
    loop {
        match monitor.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) if !answer.is_empty() && error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
        if answer.len() > MAX_ANSWER_BYTES {
            break;
        }
    }
    Ok(instruction_pointers(&String::from_utf8_lossy(&answer)))
}

/// The lines with `RIP=`, one for each CPU in order.
fn instruction_pointers(registers: &str) -> String {
    let lines = registers.lines().map(str::trim);
    let pointers = lines.filter(|line| line.starts_with("RIP=") || line.starts_with("EIP="));
    let lines = pointers.enumerate();
    let lines: String = lines
        .map(|(cpu, line)| format!("\n  CPU {cpu}: {line}"))
        .collect();
    match lines.is_empty() {
        true => "\n  the monitor names no CPU".to_owned(),
        false => lines,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::thread;

    use super::*;

    const CHECKS: u32 = 400;

    /// Whether the process stands still in one of `checks` checks, by a clock of the test's own.
    fn stands_still(activity: &mut Activity, checks: u32) -> bool {
        let now = activity.checked;
        (1..=checks).any(|check| activity.stands_still(now + TICK * check))
    }

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            // It has ended if it cannot be killed.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn started(program: &str) -> Killed {
        let child = Command::new("sh").args(["-c", program]).spawn();
        Killed(child.expect("a shell"))
    }

    #[test]
    fn sleeping_process_stands_still_after_the_limit() {
        assert_eq!(TICK * CHECKS, LIMIT);
        let child = started("exec sleep 60");
        // The start of the program takes processor time.
        thread::sleep(Duration::from_millis(500));
        let mut activity = Activity::begin(Instant::now(), child.0.id());
        assert!(!stands_still(&mut activity, CHECKS), "too early");
        assert!(stands_still(&mut activity, 1));
    }

    #[test]
    fn busy_process_does_not_stand_still() {
        let child = started("while :; do :; done");
        let mut activity = Activity::begin(Instant::now(), child.0.id());
        for _ in 0..4 {
            assert!(!stands_still(&mut activity, CHECKS / 2));
            // Long enough for a tick, also on a busy host.
            thread::sleep(Duration::from_millis(500));
        }
    }

    #[test]
    fn checks_without_a_pause_are_one() {
        let child = started("exec sleep 60");
        let now = Instant::now();
        let mut activity = Activity::begin(now, child.0.id());
        assert!((0..3 * CHECKS).all(|_| !activity.stands_still(now + TICK)));
    }

    #[test]
    fn process_without_a_readable_time_counts_as_active() {
        let mut activity = Activity::begin(Instant::now(), 0);
        assert!(!stands_still(&mut activity, 3 * CHECKS));
    }

    #[test]
    fn instruction_pointer_of_each_cpu_is_a_line() {
        let registers = "info registers -a\r\n\r\nCPU#0\r\nRAX=0 RBX=0\r\nRIP=ffffffff81 RFL=246 HLT=1\r\nCPU#1\r\nRIP=7f RFL=2 HLT=0\r\n(qemu) ";
        assert_eq!(
            instruction_pointers(registers),
            "\n  CPU 0: RIP=ffffffff81 RFL=246 HLT=1\n  CPU 1: RIP=7f RFL=2 HLT=0"
        );
        assert_eq!(
            instruction_pointers("(qemu) "),
            "\n  the monitor names no CPU"
        );
    }

    #[test]
    fn monitor_that_says_nothing_is_an_error() {
        let (ours, _theirs) = UnixStream::pair().expect("pair");
        assert!(cpus(&ours).is_err());
    }
}
