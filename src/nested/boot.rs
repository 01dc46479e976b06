//! The outer Linux, from QEMU's start until the run inside begins.
//!
//! Some boots fail: an outer Linux has been silent for two minutes, on a host where the same boot takes three seconds, and QEMU has
//! aborted by an assertion of its own (`docs/nested.md`). By then the guest has not run and nothing has been reported, so QEMU is started
//! again.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outer::Qemu;

use super::command::{self, Running, StartError};
use super::inputs::Inputs;
use super::phase::{BOOT_LIMIT, Facts, TICK};
use super::ports::{self, Inbox};
use super::protocol::Port;
use super::standstill;
use super::tail::Tail;
use crate::stop::StopSignal;

/// The limit of each start. On an idle host, a start takes two seconds.
pub(super) const LIMITS: [Duration; 2] = [Duration::from_secs(60), BOOT_LIMIT];

/// Why QEMU could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// QEMU could not be executed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// This process cannot start a thread.
    #[error("cannot start a thread for a port of the outer Linux")]
    Thread(#[source] io::Error),
}

/// The result of a start.
#[derive(Debug)]
enum StartOutcome {
    /// The run inside has reported, a port is damaged, a stop was requested, or QEMU ended without a crash.
    Yes,
    /// Nothing within the limit.
    Late,
    /// A signal has ended QEMU: its status.
    Crashed(String),
}

/// A start that was given up.
#[derive(Debug)]
pub struct AbandonedStart {
    /// Since QEMU's start.
    pub(crate) after: Duration,
    /// QEMU's status and last line, if a signal has ended it.
    pub(crate) crash: Option<String>,
}

impl fmt::Display for AbandonedStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.after.as_secs_f64();
        match &self.crash {
            Some(crash) => write!(f, "QEMU ended after {after:.1} s ({crash})"),
            None => write!(f, "the outer Linux had not come up after {after:.1} s"),
        }
    }
}

/// A QEMU with threads for the control port, the serial line and standard error. The output of the other ports waits in the ports.
#[derive(Debug)]
pub(super) struct Booting {
    pub(super) running: Running,
    pub(super) control: UnixStream,
    pub(super) inbox: Inbox,
    pub(super) tail: Tail,
    pub(super) followers: Vec<JoinHandle<()>>,
    pub(super) began: Instant,
}

impl Booting {
    fn start(qemu: &Qemu, inputs: &Inputs) -> Result<Self, BootError> {
        let began = Instant::now();
        let mut running = command::start(qemu, inputs)?;
        let (inbox, tail) = (Inbox::default(), Tail::default());
        let control = running.take_port(Port::Control);
        let (serial, errors) = (running.take_serial(), running.take_stderr());
        let (serial_tail, errors_tail) = (tail.clone(), tail.clone());
        let follow = || {
            Ok(vec![
                ports::follow_control(control.try_clone()?, inbox.clone())?,
                ports::named("nested-serial", move || serial_tail.follow(serial))?,
                ports::named("nested-stderr", move || errors_tail.follow(errors))?,
            ])
        };
        let followers = follow().map_err(BootError::Thread)?;
        Ok(Self {
            running,
            control,
            inbox,
            tail,
            followers,
            began,
        })
    }

    /// Waits for a report of the run inside, for a stop request or for QEMU's end, at most for `limit`.
    fn comes_up(&mut self, limit: Duration, stop: &StopSignal) -> StartOutcome {
        loop {
            // Behind the threads' ends, nothing more can arrive.
            let ended = self.running.ended();
            let ended = ended.filter(|_| self.followers.iter().all(JoinHandle::is_finished));
            let received = self.inbox.lock();
            let facts = Facts {
                started: received.started.is_some(),
                finished: received.finished.is_some(),
                violation: received.violation.is_some(),
                stop: stop.requested().is_some(),
                ended: ended.is_some(),
                ..Facts::default()
            };
            drop(received);
            if facts.started || facts.finished || facts.violation || facts.stop {
                return StartOutcome::Yes;
            }
            match ended {
                Some(status) if self.running.has_crashed() => return StartOutcome::Crashed(status),
                // The outer Linux has powered off, or QEMU refuses the options: another start would end in the same way.
                Some(_) => return StartOutcome::Yes,
                None => (),
            }
            if self.began.elapsed() >= limit {
                return StartOutcome::Late;
            }
            self.inbox.wait_for_news(&facts, TICK);
        }
    }

    /// Ends QEMU and its threads.
    fn give_up(mut self) {
        self.running.kill();
        for follower in self.followers {
            // The panic of a follower is already on standard error.
            let _ = follower.join();
        }
    }
}

/// Starts QEMU. If QEMU crashes or the outer Linux does not come up within the first of `limits`, the function starts QEMU again with the
/// next limit, and so on. The last start is returned, up or not. Each start given up is passed to `again`.
///
/// QEMU dies with the calling *thread*, so the caller must be the thread that waits for the run.
pub(super) fn boot(
    qemu: &Qemu,
    inputs: &Inputs,
    limits: &[Duration],
    stop: &StopSignal,
    again: &dyn Fn(AbandonedStart),
) -> Result<Booting, BootError> {
    let mut limits = limits.iter().peekable();
    loop {
        let mut booting = Booting::start(qemu, inputs)?;
        let limit = limits.next().copied().unwrap_or(BOOT_LIMIT);
        let came_up = booting.comes_up(limit, stop);
        let after = booting.began.elapsed();
        let crash = match came_up {
            StartOutcome::Yes => return Ok(booting),
            _ if limits.peek().is_none() => return Ok(booting),
            StartOutcome::Late => None,
            StartOutcome::Crashed(status) => Some(status),
        };
        let tail = booting.tail.clone();
        let running = &booting.running;
        let seen = match crash {
            None => standstill::describe(running.pid(), running.monitor()),
            Some(_) => String::new(),
        };
        booting.give_up();
        let crash = crash.map(|status| format!("{status}: {}", tail.last_lines(1).trim_end()));
        tracing::warn!(
            ?after,
            ?crash,
            seen,
            "the outer Linux does not come up; started again"
        );
        again(AbandonedStart { after, crash });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::Sandbox;

    /// A script in QEMU's place: runs FIRST at the first start, and then writes the first message of the outer Linux.
    const SCRIPT: &str = r#"#!/bin/bash
case "$*" in --version | *help) echo "QEMU emulator version 10.0.0"; exit;; esac
if [ ! -e "$0.tried" ]; then : >"$0.tried"; FIRST; fi
for word; do
    case $word in *id=org.hyprobe.control,*) fd=${word##*fd=};; esac
done
echo '{"started":{"uptime_ms":7}}' >&"$fd"
exec sleep 60
"#;

    /// Boots with the script in QEMU's place. Returns the start given up before the boot.
    fn boot_after(first: &str) -> AbandonedStart {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("qemu");
        std::fs::write(&path, SCRIPT.replace("FIRST", first)).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("executable");
        let qemu = Qemu::at(path).expect("it says its version");
        let inputs = Inputs {
            kernel: b"kernel".to_vec(),
            initramfs: b"initramfs".to_vec(),
            cpus: 1,
            memory_mib: 1,
            sandbox: Sandbox::Off,
        };
        let limits = [Duration::from_millis(300), Duration::from_secs(30)];
        let given_up = RefCell::new(Vec::new());
        let again = |start| given_up.borrow_mut().push(start);
        let stop = StopSignal::default();
        let booted = boot(&qemu, &inputs, &limits, &stop, &again).expect("started");
        assert_eq!(booted.inbox.lock().started, Some(7));
        booted.give_up();
        let mut given_up = given_up.into_inner();
        assert_eq!(given_up.len(), 1, "{given_up:?}");
        given_up.remove(0)
    }

    #[test]
    fn one_that_hangs_is_started_again() {
        let given_up = boot_after("exec sleep 60");
        assert!(given_up.after >= Duration::from_millis(300));
        assert_eq!(given_up.crash, None);
    }

    #[test]
    fn crashed_qemu_is_started_again_and_its_last_line_is_reported() {
        let crash = boot_after("echo 'Assertion x failed.' >&2; kill -ABRT $$").crash;
        let crash = crash.expect("a crash");
        assert!(crash.starts_with("signal: 6"), "{crash}");
        assert!(crash.ends_with(": Assertion x failed."), "{crash}");
    }
}
