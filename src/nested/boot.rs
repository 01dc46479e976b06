//! The outer Linux, from QEMU's start until the run inside begins.
//!
//! Now and then it comes to nothing: it has been seen to say no word for two minutes, on a host on which the same boot takes
//! three seconds, and QEMU has been seen to abort by an assertion of its own (`docs/nested.md`). The guest has not run by then and
//! nobody has been told anything, so QEMU is started again.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::command::{self, Machine, Running, StartError};
use super::phase::{BOOT_LIMIT, Facts, TICK};
use super::ports::{self, Inbox};
use super::protocol::Port;
use super::qemu::Qemu;
use super::tail::Tail;
use crate::stop::StopSignal;

/// How long each start may take. Two seconds, if the host has nothing else to do.
pub(super) const LIMITS: [Duration; 2] = [Duration::from_secs(60), BOOT_LIMIT];

/// Why QEMU could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum BootError {
    /// It could not be executed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// This process is short of something.
    #[error("cannot start a thread for a port of the outer Linux")]
    Thread(#[source] io::Error),
}

/// What has come of a start.
#[derive(Debug)]
enum CameUp {
    /// There is something to tell.
    Yes,
    /// Nothing within the limit.
    Late,
    /// A signal has ended QEMU: its status.
    Crashed(String),
}

/// A start that was given up.
#[derive(Debug)]
pub(crate) struct GivenUp {
    /// Since QEMU's start.
    pub(crate) after: Duration,
    /// QEMU's status and last line, if a signal has ended it.
    pub(crate) crash: Option<String>,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.after.as_secs_f64();
        match &self.crash {
            Some(crash) => write!(f, "QEMU ended after {after:.1} s ({crash})"),
            None => write!(f, "the outer Linux had not come up after {after:.1} s"),
        }
    }
}

/// A QEMU whose control port, serial line and standard error are followed. What comes out of the other ports waits there.
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
    fn start(qemu: &Qemu, machine: &Machine<'_>) -> Result<Self, BootError> {
        let began = Instant::now();
        let mut running = command::start(qemu, machine)?;
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

    /// Waits until the run inside says something, or nothing can come any more.
    fn comes_up(&mut self, limit: Duration, stop: &StopSignal) -> CameUp {
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
                return CameUp::Yes;
            }
            match ended {
                Some(status) if self.running.has_crashed() => return CameUp::Crashed(status),
                // The outer Linux has switched itself off, or QEMU refuses its options: so it would again.
                Some(_) => return CameUp::Yes,
                None => (),
            }
            if self.began.elapsed() >= limit {
                return CameUp::Late;
            }
            self.inbox.wait_for_news(&facts, TICK);
        }
    }

    /// Ends QEMU and its threads.
    fn give_up(mut self) {
        self.running.kill();
        for follower in self.followers {
            // A follower that panicked has said so on standard error.
            let _ = follower.join();
        }
    }
}

/// Starts QEMU, and again if QEMU crashes or the outer Linux does not come up within the first of `limits`, and so on. The last
/// that is started is what comes out, be it up or not. `again` is told of each that was given up.
///
/// QEMU dies with the calling *thread*, which must therefore be the one that waits for the run.
pub(super) fn boot(
    qemu: &Qemu,
    machine: &Machine<'_>,
    limits: &[Duration],
    stop: &StopSignal,
    again: &dyn Fn(GivenUp),
) -> Result<Booting, BootError> {
    let mut limits = limits.iter().peekable();
    loop {
        let mut booting = Booting::start(qemu, machine)?;
        let limit = limits.next().copied().unwrap_or(BOOT_LIMIT);
        let came_up = booting.comes_up(limit, stop);
        let after = booting.began.elapsed();
        let crash = match came_up {
            CameUp::Yes => return Ok(booting),
            _ if limits.peek().is_none() => return Ok(booting),
            CameUp::Late => None,
            CameUp::Crashed(status) => Some(status),
        };
        let tail = booting.tail.clone();
        booting.give_up();
        let crash = crash.map(|status| format!("{status}: {}", tail.last_lines(1).trim_end()));
        tracing::warn!(
            ?after,
            ?crash,
            "the outer Linux does not come up; started again"
        );
        again(GivenUp { after, crash });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::Sandbox;

    /// Stands in for QEMU: does FIRST the first time, and then says what the outer Linux would.
    const SCRIPT: &str = r#"#!/bin/bash
case "$*" in --version | *help) echo "QEMU emulator version 10.0.0"; exit;; esac
if [ ! -e "$0.tried" ]; then : >"$0.tried"; FIRST; fi
for word; do
    case $word in *id=org.hyprobe.control,*) fd=${word##*fd=};; esac
done
echo '{"started":{"uptime_ms":7}}' >&"$fd"
exec sleep 60
"#;

    /// Boots with the script in QEMU's place; returns what was given up before the boot.
    fn boot_after(first: &str) -> GivenUp {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("qemu");
        std::fs::write(&path, SCRIPT.replace("FIRST", first)).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("executable");
        let qemu = Qemu::at(path).expect("it says its version");
        let machine = Machine {
            kernel: b"kernel",
            initramfs: b"initramfs",
            cpus: 1,
            memory_mib: 1,
            sandbox: Sandbox::Off,
        };
        let limits = [Duration::from_millis(300), Duration::from_secs(30)];
        let given_up = RefCell::new(Vec::new());
        let again = |start| given_up.borrow_mut().push(start);
        let stop = StopSignal::default();
        let booted = boot(&qemu, &machine, &limits, &stop, &again).expect("started");
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
    fn one_that_crashes_is_started_again_and_its_last_line_is_told() {
        let crash = boot_after("echo 'Assertion x failed.' >&2; kill -ABRT $$").crash;
        let crash = crash.expect("a crash");
        assert!(crash.starts_with("signal: 6"), "{crash}");
        assert!(crash.ends_with(": Assertion x failed."), "{crash}");
    }
}
