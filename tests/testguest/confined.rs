//! The rights of a run on this host's KVM.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
struct Running {
    child: Child,
    folder: TempDir,
}

impl Running {
    fn start(options: &[&str]) -> Self {
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

    fn is_complete(&self) -> bool {
        let threads = self.threads();
        let mut names = THREADS.iter();
        names.all(|name| threads.iter().any(|(thread, ..)| thread == name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended.
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
    assert!(running.folder.path().join("x.sock").exists());
}

#[test]
fn run_without_sandbox_filters_nothing() {
    let running = Running::start(&["--no-sandbox"]);
    for (thread, filtered, no_privileges) in running.threads() {
        assert_eq!((&*filtered, &*no_privileges), ("0", "1"), "{thread}");
    }
}
