//! A nested run, seen from outside: starts QEMU, passes all data on, and ensures an end of the run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::Incoming;
use control::mux::Outer;
use events::{EventSink, GuestSummary, ProbeState, ProbeSummary, Summary};
use manifest::GuestEnd;
use outer::Qemu;

use super::boot::{self, AbandonedStart, Booting};
use super::command::Running;
use super::error::{LastWords, LaunchError};
use super::inputs::{GuestKernel, Inputs};
use super::phase::{Facts, Over, Progress, TICK, Verdict};
use super::ports::{self, Inbox, Typing};
use super::protocol::{Outcome, Port, ToInner};
use super::standstill::{self, Activity};
use super::tail::Tail;
use crate::config::RunConfig;
use crate::run::crash_dump::CoreWriter;
use crate::stderr::say;
use crate::stop::StopSignal;

/// From the end of QEMU to the end of the core file: the last bytes, and the disk.
const DUMP_END: Duration = Duration::from_secs(60);
/// The period of the check for the end of the core file.
const LOOK: Duration = Duration::from_millis(5);
/// As much of the outer Linux's last words as fits below an error.
const TAIL_LINES: usize = 25;

/// A step of a launch, for a progress line.
#[derive(Debug)]
pub enum Step<'a> {
    /// An image is being fetched.
    Fetching(&'a guest_images::Progress<'a>),
    /// QEMU is started.
    Booting(&'a Qemu),
    /// QEMU is started again, because a start was given up.
    Again(&'a AbandonedStart),
    /// The run inside begins.
    Running {
        /// Since QEMU's start.
        after: Duration,
    },
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetching(progress) => progress.fmt(f),
            Self::Booting(qemu) => write!(f, "booting the outer Linux in {qemu}"),
            Self::Again(start) => write!(f, "{start}: QEMU is started again"),
            Self::Running { after } => {
                write!(
                    f,
                    "the outer Linux is up after {:.1} s",
                    after.as_secs_f64()
                )
            }
        }
    }
}

/// The connections of a nested run.
pub struct Outside<'a> {
    /// Receives hits and notes, on a thread of the launcher.
    pub sink: Arc<dyn EventSink>,
    /// Receives the guest's output on the serial line.
    pub console: Box<dyn Write + Send>,
    /// The input for the guest's serial line.
    pub input: Option<File>,
    /// Ends the run.
    pub stop: StopSignal,
    /// The clients that control the run inside; `None` without a control socket.
    pub clients: Option<Incoming>,
    /// Receives the dump of the guest, if the guest crashes.
    pub dump: Option<CoreWriter>,
    /// Receives every step.
    pub progress: &'a dyn Fn(&Step<'_>),
}

impl fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside")
            .field("sink", &self.sink)
            .field("input", &self.input)
            .field("stop", &self.stop)
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

/// Boots the guest in an outer Linux and probes the guest until the guest ends, `stop` is requested, or the time is over.
///
/// Blocks the calling thread. QEMU dies with the calling thread. The summary is returned, not sent to the sink.
///
/// # Errors
///
/// See [`LaunchError`]; after an error, QEMU has ended, too.
pub fn launch(
    qemu: &Qemu,
    config: &RunConfig,
    kernel: GuestKernel,
    outside: Outside<'_>,
) -> Result<Summary, LaunchError> {
    let progress = outside.progress;
    let inputs = Inputs::build(config, kernel, &|step| progress(&Step::Fetching(step)))?;
    progress(&Step::Booting(qemu));
    let restarts = RefCell::new(Vec::new());
    let again = |start: AbandonedStart| {
        progress(&Step::Again(&start));
        restarts.borrow_mut().push(start.to_string());
    };
    let booting = boot::boot(qemu, &inputs, &boot::LIMITS, &outside.stop, &again)?;
    drop(inputs);
    let began = booting.began;
    let most = dump::sparse::most_bytes(config.memory_bytes);
    let mut watch = Watch::connect(booting, outside, most)?;
    let over = watch.until_over(began, config.timeout);
    let summary = watch.result(over, began, config)?;
    Ok(Summary {
        restarts: restarts.into_inner(),
        ..summary
    })
}

/// A running QEMU with its threads.
#[derive(Debug)]
struct Watch<'a> {
    running: Running,
    outside: Watched<'a>,
    inbox: Inbox,
    control: UnixStream,
    followers: Vec<JoinHandle<()>>,
    dump: Option<JoinHandle<()>>,
    tail: Tail,
    clients: Option<Outer>,
    // Dropped with the rest: the typing ends by itself only at the end of the input.
    _typing: Option<Typing>,
}

/// The parts of [`Outside`] that no thread takes over.
struct Watched<'a> {
    stop: StopSignal,
    progress: &'a dyn Fn(&Step<'_>),
}

impl fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

impl<'a> Watch<'a> {
    /// `most` is the maximum size of a core file.
    fn connect(booting: Booting, outside: Outside<'a>, most: u64) -> Result<Self, LaunchError> {
        let Booting {
            mut running,
            control,
            inbox,
            tail,
            mut followers,
            began: _,
        } = booting;
        let start = || {
            let console = running.take_port(Port::Console);
            let typing = match outside.input {
                Some(input) => Some(Typing::start(input, console.try_clone()?)?),
                None => None,
            };
            let (sink, events) = (outside.sink, running.take_port(Port::Events));
            followers.extend([
                ports::follow_events(events, inbox.clone(), Arc::clone(&sink))?,
                ports::follow_console(console, inbox.clone(), outside.console, sink)?,
                ports::follow_log(running.take_port(Port::Log))?,
            ]);
            let dump = match outside.dump {
                Some(core) => {
                    let port = running.take_port(Port::Dump);
                    Some(ports::follow_dump(port, inbox.clone(), core, most)?)
                }
                None => None,
            };
            let clients = match outside.clients {
                Some(incoming) => {
                    let port = running.take_port(Port::Clients);
                    let (ours, link) = UnixStream::pair()?;
                    ports::send_clients(ours.try_clone()?, port.try_clone()?)?;
                    followers.push(ports::follow_clients(port, inbox.clone(), ours)?);
                    Some(Outer::start(incoming, link)?)
                }
                None => None,
            };
            Ok((typing, clients, dump))
        };
        let (typing, clients, dump) = start().map_err(LaunchError::Thread)?;
        Ok(Self {
            running,
            outside: Watched {
                stop: outside.stop,
                progress: outside.progress,
            },
            inbox,
            control,
            followers,
            dump,
            tail,
            clients,
            _typing: typing,
        })
    }

    fn until_over(&mut self, began: Instant, timeout: Option<Duration>) -> Over {
        let mut progress = Progress::begin(began, timeout);
        let mut activity = Activity::begin(began, self.running.pid());
        let mut told = false;
        loop {
            // The order matters: see `Progress::next`.
            let has_quit = self.running.ended().is_some();
            if has_quit {
                self.inbox.note_ending();
            }
            let mut followers = self.followers.iter().chain(&self.dump);
            let ended = has_quit && followers.all(JoinHandle::is_finished);
            let stop = self.outside.stop.requested();
            let still = !has_quit && activity.stands_still(Instant::now());
            let received = self.inbox.lock();
            let facts = Facts {
                started: received.started.is_some(),
                ending: received.ending,
                finished: received.finished.is_some(),
                complete: received.is_complete(),
                violation: received.violation.is_some(),
                dumped: received.dumped,
                stop: stop.is_some(),
                ended,
                still,
            };
            let started = received.started;
            drop(received);
            if let (Some(uptime_ms), false) = (started, told) {
                told = true;
                let after = began.elapsed();
                tracing::debug!(?after, uptime_ms, "the outer Linux is up");
                (self.outside.progress)(&Step::Running { after });
            }
            match progress.next(Instant::now(), facts) {
                Verdict::Over(over) => return over,
                Verdict::SendStop => self.send(stop.map_or(ToInner::Stop, ToInner::from)),
                Verdict::Wait => {}
            }
            self.inbox.wait_for_news(&facts, TICK);
        }
    }

    /// Sends `message` to the run inside. If the message cannot be sent, the deadline for the answer passes.
    fn send(&mut self, message: ToInner) {
        let line = serde_json::to_string(&message).map(|line| line + "\n");
        let sent = line
            .map_err(io::Error::from)
            .and_then(|line| self.control.write_all(line.as_bytes()));
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot ask the nested run to end");
        }
    }

    /// Ends QEMU and the follower threads, and returns the result of the run.
    fn result(
        mut self,
        over: Over,
        began: Instant,
        config: &RunConfig,
    ) -> Result<Summary, LaunchError> {
        let seen = match over {
            Over::NotBooted | Over::NotStopped | Over::StoodStill => {
                standstill::describe(self.running.pid(), self.running.monitor())
            }
            _ => String::new(),
        };
        // The description takes seconds, in which the outcome may have arrived.
        let over = match over {
            Over::NotStopped | Over::StoodStill if self.inbox.lock().is_complete() => {
                Over::Finished
            }
            over => over,
        };
        let status = self.running.ended().unwrap_or_else(|| "killed".to_owned());
        self.running.kill();
        self.inbox.note_ending();
        for follower in self.followers.drain(..) {
            // The panic of a follower is already on standard error.
            let _ = follower.join();
        }
        if let Some(dump) = self.dump.take()
            && !is_finished_within(&dump, DUMP_END)
        {
            // The thread ends with the process.
            say("hyprobe: no dump of the crash: its disk, or its reader, takes no more bytes");
        }
        if let Some(clients) = self.clients.take() {
            clients.join();
        }
        let said = LastWords(self.tail.last_lines(TAIL_LINES));
        let mut received = self.inbox.lock();
        match over {
            Over::Finished => match received.finished.take() {
                Some((Outcome::Summary(summary), _)) => Ok(Summary {
                    accel: "nested".to_owned(),
                    ..summary
                }),
                Some((Outcome::Failure(failure), _)) => Err(failure.into()),
                None => Err(LaunchError::Ended { status, said }),
            },
            Over::Incomplete => {
                let (arrived, sent) = (
                    received.arrived,
                    received
                        .finished
                        .take()
                        .map(|(_, sent)| sent)
                        .unwrap_or_default(),
                );
                Err(LaunchError::Incomplete {
                    events: sent.events.saturating_sub(arrived.events),
                    console: sent.console.saturating_sub(arrived.console),
                })
            }
            Over::Violation => match received.violation.take() {
                Some((port, source)) => Err(LaunchError::Port { port, source, said }),
                None => Err(LaunchError::Ended { status, said }),
            },
            Over::StoppedEarly => Ok(not_begun(config)),
            Over::QemuEnded => Err(LaunchError::Ended { status, said }),
            Over::NotStopped => Err(LaunchError::NotStopped { said, seen }),
            Over::StoodStill => Err(LaunchError::StoodStill { said, seen }),
            Over::NotBooted => Err(LaunchError::NotBooted {
                after: began.elapsed(),
                said,
                seen,
            }),
        }
    }
}

/// Waits until `thread` has finished, at most for `limit`.
fn is_finished_within(thread: &JoinHandle<()>, limit: Duration) -> bool {
    let began = Instant::now();
    while !thread.is_finished() && began.elapsed() < limit {
        std::thread::sleep(LOOK);
    }
    thread.is_finished()
}

/// The summary of a run stopped before the guest's first instruction.
fn not_begun(config: &RunConfig) -> Summary {
    let pending = |probe: &manifest::ProbeConfig| ProbeSummary {
        probe: probe.at.to_string(),
        ip: None,
        hits: 0,
        missed: BTreeMap::new(),
        tier: None,
        exits: 0,
        returns: None,
        in_flight: None,
        state: ProbeState::Pending,
        reason: Some("the run was stopped before the guest had started".to_owned()),
        unoptimised: None,
        filter: None,
        result: None,
    };
    Summary {
        accel: "nested".to_owned(),
        guest: GuestSummary {
            end: GuestEnd::Stopped,
            detail: Some("stopped while the outer Linux was booting".to_owned()),
            crash: None,
            vcpus: Vec::new(),
            log: None,
        },
        ran_ns: 0,
        probes: config.probes.iter().map(pending).collect(),
        dropped: 0,
        restarts: Vec::new(),
    }
}
