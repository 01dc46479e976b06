//! Runs whose output is read late, or never.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use control::Client;
use events::Event;
use manifest::GuestEnd;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The limit for waits that take milliseconds on an idle host.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time in which hits would come if the guest ran.
const STILL: Duration = Duration::from_secs(1);
/// The number of readings of the hits in that time. A host that stands still for a second makes few of them.
const READINGS: u32 = 50;
/// The guest's first hits, before it is held.
const FIRST_HITS: u64 = 1000;

/// A run with two busy vCPUs, whose hits go to a pipe.
struct Piped {
    /// The command. The drop of the value kills the command, so a failed test leaves no guest behind.
    child: Child,
    /// The unread end of the pipe.
    hits: ChildStdout,
    folder: TempDir,
}

impl Piped {
    fn start(run: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("tempdir");
        let kernel = guest_images::build_testguest(&folder.path().join("guest"));
        let kernel = kernel.expect("the test guest compiles");
        let mut child = Command::new(env!("CARGO_BIN_EXE_hyprobe"))
            .args(["run", "--accel", "kvm", "--memory", "64M", "--cpus", "2"])
            .args(["--format", "json", "--console", "none", "--cmdline", run])
            .args(["-p", "kprobe:bm_recorded", "--control", "x.sock"])
            .arg("--kernel")
            .arg(kernel)
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let hits = child.stdout.take().expect("it is a pipe");
        Self {
            child,
            hits,
            folder,
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("x.sock")
    }

    fn client(&self) -> Client {
        connect(&self.socket())
    }

    /// Waits until the number of hits stops growing, and returns the number. The guest's code has many more hits to make.
    fn wait_until_held(&self, client: &Client) -> u64 {
        let hits = || client.stats("1").expect("stats").probes[0].hits;
        let began = Instant::now();
        let (mut last, mut alike) = (hits(), 0);
        while last <= FIRST_HITS || alike < READINGS {
            assert!(began.elapsed() < PATIENCE, "the guest goes on: {last} hits");
            std::thread::sleep(STILL / READINGS);
            let now = hits();
            alike = if now == last { alike + 1 } else { 0 };
            last = now;
        }
        last
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it goes on");
    }

    /// Waits for the end without reading a hit. Returns the exit code and standard error.
    fn finish_unread(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let mut errors = self.child.stderr.take().expect("it is a pipe");
        errors.read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("it is a child");
        (status.code(), said)
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        // The command may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(socket: &Path) -> Client {
    let began = Instant::now();
    while !socket.exists() {
        assert!(began.elapsed() < PATIENCE, "there is no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    Client::new(socket).expect("client")
}

#[test]
fn run_with_unread_hits_can_be_changed_and_ended() {
    for options in [&["--no-optimise"][..], &[]] {
        let piped = Piped::start("run=record2=1000000000", options);
        let client = piped.client();
        let hits = piped.wait_until_held(&client);
        let removed = client.remove("1").expect("removed");
        assert_eq!(removed.probes[0].summary.hits, hits, "{removed:?}");
        client
            .add(&control::api::AddProbes::One(control::api::AddProbe::new(
                "kprobe:fn_nop",
            )))
            .expect("added");
        let began = Instant::now();
        client.command("stop").expect("stopped");
        drop(client);
        // The user does not wait for the reader, either.
        std::thread::sleep(STILL);
        piped.terminate();
        let (code, said) = piped.finish_unread();
        let took = began.elapsed();
        assert_eq!(code, Some(3), "{said}");
        assert!(
            said.contains("events and what follows them are lost"),
            "{said}"
        );
        assert!(took < PATIENCE, "{took:?}: {said}");
    }
}

#[test]
fn signal_ends_a_run_with_unread_hits() {
    let piped = Piped::start("run=record2=1000000000", &[]);
    piped.wait_until_held(&piped.client());
    let began = Instant::now();
    piped.terminate();
    let (code, said) = piped.finish_unread();
    let took = began.elapsed();
    assert_eq!(code, Some(3), "{said}");
    assert!(took < PATIENCE, "{took:?}: {said}");
}

#[test]
fn a_run_whose_hits_are_read_late_loses_none() {
    const ROUNDS: u64 = 20_000;
    let run = format!("run=record2={ROUNDS} exit=reset");
    let mut piped = Piped::start(&run, &[]);
    let hits = piped.wait_until_held(&piped.client());
    assert!(hits < 2 * ROUNDS, "the guest was not held");
    let mut text = String::new();
    piped.hits.read_to_string(&mut text).expect("text");
    let events: Vec<Event> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let read = events.iter().filter(|event| matches!(event, Event::Hit(_)));
    let Some(Event::Summary(summary)) = events.last() else {
        panic!("{:?}", events.last());
    };
    assert_eq!(summary.guest.end, GuestEnd::Reset);
    assert_eq!(read.count() as u64, 2 * ROUNDS);
    assert_eq!((summary.probes[0].hits, summary.dropped), (2 * ROUNDS, 0));
    let (code, said) = piped.finish_unread();
    assert_eq!(code, Some(0), "{said}");
}
