//! A boot of the guest.
//!
//! Threads: the caller's thread runs the session; the vCPUs' threads bring console bytes and events to [`Watch`]; a thread of the
//! boot ends a guest that hangs ([`super::deadline`]), another disables probes with many exits ([`super::frequent`]). If probes
//! come later than the first instruction, a third adds and removes them ([`super::lifecycle`]). The threads end after
//! [`Watch::finish`] reports the session's end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use events::{Event, EventSink, ProbeSummary};
use manifest::{GuestEnd, ProbeConfig, Stealth, WhenFull};
use probes::{Kernel, Session, SessionConfig};
use vmm::boot::KernelFile;
use vmm::{Console, Host, HostFacts};

use super::console::LittleTime;
use super::deadline::{Deadline, EXITS_MAX};
use super::frequent::{DisabledProbes, FrequentProbes};
use super::lifecycle::{self, Live};
use super::mode::{Configuration, Lifetime, Optimisation};
use super::registers::ProbeEvents;
use errors::chain;

const MEMORY_BYTES: u64 = 256 << 20;
/// The command line makes the kernel print every line, from the first on: the last line locates a death, and each is progress.
const CMDLINE: &str = "earlyprintk=serial,ttyS0,115200 console=ttyS0 panic=-1 loglevel=7 cryptomgr.notests=1 \
                       random.trust_cpu=on";
/// Both vCPUs make system calls, sleep, and start and end processes, once all probes are enabled ([`super::frequent`]).
const WORKLOAD: &str =
    "begin=1 procs=2 opens=20 reads=20 getpids=20 pages=20 nappers=2 naps=2 nap=1";
const ROUNDS: &str = "repeat=2";
/// If the watching thread is blocked, the session ends the guest this long after all limits.
const BEYOND: Duration = Duration::from_secs(30);
/// The guest works until a line of input arrives.
const ROUNDS_WITHOUT_END: &str = "repeat=1000000 pause=5 listen=1";

/// The output of a running guest. Clones share the output.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch(Arc<(Mutex<Watched>, Condvar)>);

#[derive(Debug, Default)]
struct Watched {
    console: Vec<u8>,
    /// The start of the last incomplete line.
    line_start: usize,
    little_time: LittleTime,
    lines: u64,
    last_progress: Option<Instant>,
    longest_silence: Duration,
    events: HashMap<Arc<str>, ProbeEvents>,
    finished: bool,
}

impl Watched {
    fn shows(&self, text: &str) -> bool {
        let mut parts = self.console.windows(text.len());
        parts.any(|part| part == text.as_bytes())
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the session has ended.
    fn finish(&self) {
        self.lock().finished = true;
        self.0.1.notify_all();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// Forgets the registers at the hits of `probe`.
    pub(super) fn forget_registers(&self, probe: &str) {
        if let Some(events) = self.lock().events.get_mut(probe) {
            events.forget_registers();
        }
    }

    /// Whether the last hits of `place` have different registers, and so do those of `entry`, and each stack with many hits of `place`
    /// has a hit of `entry`.
    pub(super) fn registers_change(&self, place: &str, entry: &str) -> bool {
        let watched = self.lock();
        let events = watched.events.get(place).zip(watched.events.get(entry));
        events.is_some_and(|(place, entry)| {
            place.registers_change() && entry.registers_change() && entry.covers(place)
        })
    }

    /// Whether the console shows `text`.
    pub(super) fn shows(&self, text: &str) -> bool {
        self.lock().shows(text)
    }

    /// The number of writes that ended a line of progress, and the time since the last.
    pub(super) fn progress(&self) -> (u64, Duration) {
        let watched = self.lock();
        let silence = watched.last_progress;
        (
            watched.lines,
            silence.map_or(Duration::ZERO, |at| at.elapsed()),
        )
    }

    /// Waits until the console shows `text`; `false` if the session ends before.
    pub(super) fn await_text(&self, text: &str) -> bool {
        let missing = |watched: &mut Watched| !watched.finished && !watched.shows(text);
        let watched = self.0.1.wait_while(self.lock(), missing);
        let watched = watched.unwrap_or_else(PoisonError::into_inner);
        watched.shows(text)
    }

    /// Waits for `time`, or until the session has ended.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let waited = self
            .0
            .1
            .wait_timeout_while(self.lock(), time, |watched| !watched.finished);
        waited.unwrap_or_else(PoisonError::into_inner).0.finished
    }
}

impl Write for Watch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut watched = self.lock();
        watched.console.extend_from_slice(bytes);
        if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            let end = watched.console.len() - bytes.len() + end + 1;
            let Watched {
                console,
                line_start,
                little_time,
                ..
            } = &mut *watched;
            let lines = String::from_utf8_lossy(&console[*line_start..end]);
            // Each line is counted as part of the report, or not, independent of the others.
            let others = lines.lines().filter(|line| !little_time.includes(line));
            let progress = others.count() > 0;
            *line_start = end;
            if progress {
                let silence = watched
                    .last_progress
                    .map_or(Duration::ZERO, |at| at.elapsed());
                watched.longest_silence = watched.longest_silence.max(silence);
                watched.last_progress = Some(Instant::now());
                watched.lines += 1;
            }
            self.0.1.notify_all();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl EventSink for Watch {
    fn event(&self, event: Event) {
        let (probe, vcpu, regs) = match event {
            Event::Hit(hit) => (hit.probe, hit.vcpu, hit.regs),
            Event::Return(returned) => (returned.probe, returned.vcpu, returned.regs),
            Event::Note(_) | Event::Summary(_) => return,
        };
        self.lock().events.entry(probe).or_default().add(vcpu, regs);
    }
}

/// Notes the end of the session.
struct EndNotice<'a>(&'a Watch);

impl Drop for EndNotice<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// The time limits of a boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// In all, without the time of the guest's exits.
    pub(super) total: Duration,
    /// Without a line on the console, and without the time of the exits since the last line.
    pub(super) silence: Duration,
}

/// The end of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The guest ended by itself.
    Guest {
        end: GuestEnd,
        detail: Option<String>,
    },
    /// No line came for the given time.
    Silent(Duration),
    /// At the limit of the boot, no line had come for the given time, though perhaps because of exits.
    SilentAtLimit(Duration),
    /// Lines came, but not the end.
    OverLimit(Duration),
    /// The session could not be set up, or panicked.
    Broken(String),
}

/// The result of a boot.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) ended: Ended,
    /// The summaries in the order of the probes; empty if the session could not be set up.
    pub(super) probes: Vec<ProbeSummary>,
    /// The number of probes that were disabled for a time.
    pub(super) disabled: usize,
    /// Events of each probe, by name.
    pub(super) events: HashMap<Arc<str>, u64>,
    pub(super) console: String,
    pub(super) longest_silence: Duration,
    /// From building the machine to its end.
    pub(super) took: Duration,
    /// From the guest's first instruction to its end.
    pub(super) in_guest: Duration,
    /// The result of adding, removing and disabling probes.
    pub(super) lifecycle: Result<(), String>,
}

/// The guest and its configuration.
#[derive(Debug)]
pub(super) struct Guest<'a> {
    pub(super) host: &'a Host,
    pub(super) facts: HostFacts,
    pub(super) file: &'a KernelFile,
    pub(super) vmlinux: &'a [u8],
    /// The guest's kernel, parsed once for all boots.
    pub(super) kernel: &'a Kernel,
    pub(super) initrd: &'a [u8],
    pub(super) configuration: Configuration,
}

impl Guest<'_> {
    /// Boots with these probes, added at the time that the configuration asks for.
    pub(super) fn boot(&self, probes: &[ProbeConfig], limits: Limits) -> Ran {
        let began = Instant::now();
        let watch = Watch::default();
        watch.lock().last_progress = Some(began);
        // A panic of the engine costs this boot only.
        let session = AssertUnwindSafe(|| self.session(&watch, probes, limits));
        let ran = match catch_unwind(session) {
            Ok(Ok(ran)) => ran,
            Ok(Err(error)) => RanSession::broken(error),
            Err(_) => RanSession::broken("the engine panicked".to_owned()),
        };
        watch.finish();
        let watched = std::mem::take(&mut *watch.lock());
        Ran {
            ended: ran.ended,
            probes: ran.probes,
            disabled: ran.disabled,
            events: watched
                .events
                .into_iter()
                .map(|(probe, events)| (probe, events.count))
                .collect(),
            console: String::from_utf8_lossy(&watched.console).into_owned(),
            longest_silence: watched.longest_silence,
            took: began.elapsed(),
            in_guest: ran.in_guest,
            lifecycle: ran.lifecycle,
        }
    }

    fn session(
        &self,
        watch: &Watch,
        probes: &[ProbeConfig],
        limits: Limits,
    ) -> Result<RanSession, String> {
        let (input, theirs) = UnixStream::pair().map_err(chain)?;
        let lifetime = self.configuration.lifetime;
        let rounds = match lifetime {
            Lifetime::WholeBoot => ROUNDS,
            Lifetime::AddedLater | Lifetime::Rearmed => ROUNDS_WITHOUT_END,
        };
        let cmdline = format!("{CMDLINE} {WORKLOAD} {rounds}");
        let at_start = match lifetime {
            Lifetime::WholeBoot | Lifetime::Rearmed => probes,
            Lifetime::AddedLater => &[],
        };
        let config = SessionConfig {
            file: self.file,
            vmlinux: self.vmlinux,
            kernel: self.kernel.clone(),
            method: self.configuration.method,
            initrd: Some(self.initrd),
            cmdline: &cmdline,
            memory_bytes: MEMORY_BYTES,
            cpus: self.configuration.cpus,
            probes: at_start,
            injections: &[],
            plant: self.configuration.plant,
            optimise: self.configuration.optimisation == Optimisation::On,
            when_full: WhenFull::default(),
            stealth: Stealth::default(),
            console: Console {
                output: Box::new(watch.clone()),
                input: Some(File::from(OwnedFd::from(theirs))),
            },
            debug_exit: false,
        };
        let session = Session::new(self.host, self.facts, config, Arc::new(watch.clone()));
        let session = session.map_err(chain)?;
        // Looking up thousands of probes is not the guest's silence.
        watch.lock().last_progress = Some(Instant::now());
        let (engine, control) = (session.engine().clone(), session.control());
        let deadline = Deadline {
            limits,
            exit: Duration::from_nanos(self.facts.exit_ns),
        };
        let (summary, stuck, changed) = std::thread::scope(|scope| {
            // If the engine panics, the other threads end, too.
            let ends = EndNotice(watch);
            let stuck = scope.spawn(|| deadline.end_stuck_guest(watch, &control, &engine));
            let frequent = FrequentProbes {
                watch,
                control: &control,
                engine: &engine,
                action: self.configuration.action,
                input: &input,
            };
            let frequent = scope.spawn(move || frequent.disable());
            let lifecycle = scope.spawn(|| {
                let live = Live {
                    engine: &engine,
                    control: &control,
                    watch,
                    input: &input,
                };
                lifecycle::drive(lifetime, &live, probes)
            });
            // The watching thread ends the guest first, unless the engine blocks the thread.
            let last = limits.total + EXITS_MAX + BEYOND;
            let summary = session.run(Some(last), "kvm");
            drop(ends);
            let panicked = |does| Err(format!("the thread that {does} probes panicked"));
            let lifecycle = lifecycle.join().unwrap_or_else(|_| panicked("adds"));
            let disabled = frequent
                .join()
                .unwrap_or_else(|_| panicked("disables").map(|()| DisabledProbes::default()));
            let changed = lifecycle.and(disabled);
            (summary, stuck.join().unwrap_or(None), changed)
        });
        let summary = summary.map_err(chain)?;
        let ended = match (stuck, summary.guest.end) {
            (Some(ended), _) => ended,
            (None, GuestEnd::Timeout) => {
                Ended::Broken("nobody ended a guest that was over all its limits".to_owned())
            }
            (None, end) => Ended::Guest {
                end,
                detail: summary.guest.detail,
            },
        };
        let (disabled, lifecycle) = match changed {
            Ok(disabled) => (disabled, Ok(())),
            Err(error) => (DisabledProbes::default(), Err(error)),
        };
        let statuses = engine.inventory().statuses().into_iter();
        let judged = statuses.filter(|status| !disabled.beside.contains(&status.id));
        Ok(RanSession {
            ended,
            probes: judged.map(|status| status.summary).collect(),
            disabled: disabled.probes.len(),
            in_guest: Duration::from_nanos(summary.ran_ns),
            lifecycle,
        })
    }
}

/// The result of a session.
#[derive(Debug)]
struct RanSession {
    ended: Ended,
    probes: Vec<ProbeSummary>,
    disabled: usize,
    in_guest: Duration,
    lifecycle: Result<(), String>,
}

impl RanSession {
    fn broken(why: String) -> Self {
        Self {
            ended: Ended::Broken(why),
            probes: Vec::new(),
            disabled: 0,
            in_guest: Duration::ZERO,
            lifecycle: Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_report_of_a_hang_is_no_progress() {
        let mut watch = Watch::default();
        let mut print = |text: &str| {
            watch.write_all(text.as_bytes()).expect("it only keeps");
            watch.progress().0
        };
        assert_eq!(print("[    1.0] Linux\r\n[    1.1] smp"), 1);
        assert_eq!(print(": up\r\n"), 2);
        for hang in 0..3 {
            let report = format!(
                "[  {hang}2.1] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [init:1]\r\n[  {hang}2.1] CPU: 0 PID: {hang}\r\n"
            );
            assert_eq!(print(&report), 2);
            assert_eq!(print(&format!("[  {hang}2.3] Call Trace:\r\n")), 2);
        }
        assert_eq!(print("workload: start\r\n"), 3);
    }
}
