//! The rights of a run on the host's KVM.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The limit for waits that take milliseconds on an idle host.
const PATIENCE: Duration = Duration::from_secs(60);
/// The threads of a run with two vCPUs and clients. Beside them are unnamed threads, which have the name of the program.
const THREADS: [&str; 8] = [
    "hyprobe",
    "signals",
    "report",
    "vcpu0",
    "vcpu1",
    "records",
    "control-http",
    "control-changes",
];

/// A run whose guest works until the value is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) folder: TempDir,
}

impl Running {
    pub(crate) fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let kernel = guest_images::build_testguest(&folder.path().join("guest"));
        let child = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(["run", "--accel", "kvm", "--memory", "64M", "--cpus", "2"])
            .args(["--console", "none", "--cmdline", "run=smp=1000000000"])
            .args([
                "-p",
                "kprobe:bm_recorded",
                "--control",
                "x.sock",
                "--kernel",
            ])
            .arg(kernel.expect("the test guest compiles"))
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        let running = Self { child, folder };
        let began = Instant::now();
        while !running.is_complete() {
            assert!(began.elapsed() < PATIENCE, "{:?}", running.threads());
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    /// The name of each thread, and the value of `Seccomp` and `NoNewPrivs` in its status.
    fn threads(&self) -> Vec<(String, String, String)> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let tasks = tasks.expect("the command runs").filter_map(Result::ok);
        let status = |path: &Path| {
            let status = fs::read_to_string(path.join("status")).ok()?;
            let field = |name: &str| {
                let mut lines = status.lines();
                let value = lines.find_map(|line| line.strip_prefix(name));
                value.map(|value| value.trim().to_owned())
            };
            Some((field("Name:")?, field("Seccomp:")?, field("NoNewPrivs:")?))
        };
        tasks.filter_map(|task| status(&task.path())).collect()
    }

    /// A field of the status of the thread `name`.
    fn field(&self, name: &str, field: &str) -> Option<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let statuses =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
        let is_it = |status: &String| {
            let named = status
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("Name:"));
            named.is_some_and(|found| found.trim() == name)
        };
        let status = statuses.into_iter().find(is_it)?;
        let value = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(value.trim().to_owned())
    }

    /// The number of filters of the thread `guest`, which works for a guest: four, unless the thread takes none for a minute. A thread has
    /// its name before its filters.
    fn filters(&self, guest: &str) -> Option<String> {
        let began = Instant::now();
        loop {
            let filters = self.field(guest, "Seccomp_filters:");
            if filters.as_deref() == Some("4") || began.elapsed() >= PATIENCE {
                return filters;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_complete(&self) -> bool {
        let threads = self.threads();
        let mut names = THREADS.iter();
        names.all(|name| threads.iter().any(|(thread, ..)| thread == name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that the command has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn all_threads_of_a_run_filter_their_calls() {
    let running = Running::start(&[]);
    for (thread, filtered, no_privileges) in running.threads() {
        assert_eq!((&*filtered, &*no_privileges), ("2", "1"), "{thread}");
    }
    // The two filters of all threads, the filter of all threads which work for a guest, and the thread's own.
    for guest in THREADS.iter().skip(2) {
        assert_eq!(running.filters(guest).as_deref(), Some("4"), "{guest}");
    }
}

/// Threads that work for a guest leave signals to other threads: the filters do not cover the calls of a signal's handler.
#[test]
fn signal_to_a_vcpu_thread_is_left_to_others_and_ends_the_run() {
    let mut running = Running::start(&[]);
    assert_eq!(running.filters("vcpu0").as_deref(), Some("4"));
    let blocked = running.field("vcpu0", "SigBlk:").expect("a mask");
    let blocked = u64::from_str_radix(&blocked, 16).expect("a number");
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        assert_ne!(blocked >> (signal.as_raw() - 1) & 1, 0, "{signal:?}");
    }
    for signal in [Signal::STOP, Signal::TERM, Signal::CONT] {
        kill_process(Pid::from_child(&running.child), signal).expect("sent");
    }
    let end = running.child.wait().expect("it ends");
    assert_eq!(end.code(), Some(6));
}

#[test]
fn run_without_sandbox_filters_nothing() {
    let running = Running::start(&["--no-sandbox"]);
    for (thread, filtered, no_privileges) in running.threads() {
        assert_eq!((&*filtered, &*no_privileges), ("0", "1"), "{thread}");
    }
}

/// On a terminal, the thread that writes the output also prints the number of hits.
#[test]
fn line_of_progress_on_a_terminal_needs_no_further_thread() {
    let folder = tempfile::tempdir().expect("tempdir");
    let kernel = guest_images::build_testguest(&folder.path().join("guest"));
    let kernel = kernel.expect("the test guest compiles");
    let run = format!(
        "{} run --accel kvm --memory 64M --cpus 2 --console none --timeout 5s --cmdline run=record2=1000000000 \
         --no-optimise -p kprobe:bm_recorded --output hits --kernel {}",
        env!("CARGO_BIN_EXE_hyprobe"),
        kernel.display()
    );
    // `script` gives the command a terminal, and exits as the command does.
    let output = Command::new("script")
        .args(["-qec", &run, "/dev/null"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("script is there");
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(5), "{told}");
    assert!(told.contains(" hits ("), "{told}");
}
