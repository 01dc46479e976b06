//! A stock kernel with the workload as init, and a thread that drives the engine while the guest runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use events::{Event, EventSink, Summary};
use guest_images::workload::Counts;
use manifest::{GuestEnd, ProbeConfig, Stealth, WhenFull};
use probes::{Engine, EngineAction, Kernel, Session, SessionConfig};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Control, End, Host, HostFacts};

use errors::chain;

/// RAM of a guest with the workload alone.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;
/// The crypto self-tests only cost time: in Bochs, minutes.
const CMDLINE: &str = "console=ttyS0 panic=-1 loglevel=5 cryptomgr.notests=1 random.trust_cpu=on";
/// The start of the workload's last line.
const DONE: &str = "workload: done";
/// Text that is never on the console of a healthy guest.
const COMPLAINTS: [&str; 8] = [
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "Oops",
    "Call Trace",
    "general protection fault",
    "segfault at",
    "traps: ",
];
/// Reports of too little CPU time. They depend on the other load of the host, and are no complaint. A hanging guest is found otherwise:
/// the guest does not come to its end.
const SLOW: [&str; 3] = ["soft lockup", "rcu: INFO", "INFO: task"];
/// Lines about the virtual processor, with probes and without.
const OF_THE_PROCESSOR: &str = "RETBleed: WARNING: ";
/// The number of console lines in an error message.
const LAST_WORDS: usize = 12;

/// The output of a running guest. Clones share the output.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<SeenInner>);

#[derive(Debug, Default)]
struct SeenInner {
    guest_output: Mutex<GuestOutput>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct GuestOutput {
    console: Vec<u8>,
    ended: bool,
    returns: BTreeMap<Arc<str>, u64>,
    notes: Vec<String>,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, GuestOutput> {
        self.0
            .guest_output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().ended = true;
        self.0.more.notify_all();
    }
}

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().console.extend_from_slice(bytes);
        self.0.more.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl EventSink for Seen {
    fn event(&self, event: Event) {
        match event {
            Event::Return(returned) => *self.lock().returns.entry(returned.probe).or_default() += 1,
            Event::Note(note) => self.lock().notes.push(note.text),
            // No hit is traced, and a session returns the summary.
            Event::Hit(_) | Event::Summary(_) => (),
        }
    }
}

pub(super) fn contains(console: &[u8], text: &str) -> bool {
    console
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// A running guest, for the thread that drives the guest.
#[derive(Debug)]
pub(crate) struct Live<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) control: &'a Control,
    seen: &'a Seen,
    input: UnixStream,
}

impl Live<'_> {
    /// Whether the guest's console has shown `text`.
    pub(crate) fn has_printed(&self, text: &str) -> bool {
        contains(&self.seen.lock().console, text)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.seen.lock().ended
    }

    /// Waits for `text` on the guest's console.
    pub(crate) fn await_text(&self, text: &str, limit: Duration) -> Result<(), String> {
        let guest_output = self.seen.lock();
        let missing = |guest_output: &mut GuestOutput| {
            !guest_output.ended && !contains(&guest_output.console, text)
        };
        let (guest_output, _) = self
            .seen
            .0
            .more
            .wait_timeout_while(guest_output, limit, missing)
            .unwrap_or_else(PoisonError::into_inner);
        if contains(&guest_output.console, text) {
            Ok(())
        } else {
            Err(format!("the guest has not said {text:?}"))
        }
    }

    /// Gives the guest a line of input.
    pub(crate) fn type_line(&self) -> Result<(), String> {
        (&self.input).write_all(b"\n").map_err(chain)
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) summary: Summary,
    /// The guest's own counts.
    pub(crate) counts: Counts,
    /// Returns reported as events, by probe.
    pub(crate) returns: BTreeMap<Arc<str>, u64>,
    pub(crate) notes: Vec<String>,
    pub(crate) console: String,
    /// The number of console lines with a report of too little CPU time.
    pub(crate) slow: usize,
}

/// A guest, and the host to run on.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) host: &'a Host,
    pub(crate) facts: HostFacts,
    pub(crate) file: &'a KernelFile,
    pub(crate) vmlinux: &'a [u8],
    pub(crate) initrd: &'a [u8],
    pub(crate) cpus: u8,
    pub(crate) memory_bytes: u64,
}

/// The observations of a run, before the judgement.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) summary: Summary,
    pub(crate) console: String,
    /// Returns reported as events, by probe.
    pub(crate) returns: BTreeMap<Arc<str>, u64>,
    pub(crate) notes: Vec<String>,
}

impl Observed {
    /// Splits the console into the lines with reports of too little CPU time, and the others.
    fn by_slowness(&self) -> (Vec<&str>, Vec<&str>) {
        let is_slow = |line: &&str| SLOW.iter().any(|word| line.contains(word));
        self.console.lines().partition(is_slow)
    }

    /// The lines with the guest's complaints.
    pub(crate) fn complaints(&self) -> Vec<&str> {
        let (_, others) = self.by_slowness();
        let complains = |line: &&str| {
            COMPLAINTS.iter().any(|word| line.contains(word)) && !line.contains(OF_THE_PROCESSOR)
        };
        others.into_iter().filter(complains).collect()
    }

    /// `what` is wrong, with the end of the run.
    pub(crate) fn wrong(&self, what: &str) -> String {
        let lines: Vec<&str> = self.console.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_WORDS)..].join(" | ");
        let guest = &self.summary.guest;
        format!("{what}; its end: {guest:?}; it said last: {last}")
    }
}

impl Guest<'_> {
    pub(crate) fn kernel(&self) -> Result<Kernel, String> {
        Kernel::from_vmlinux(self.vmlinux).map_err(chain)
    }

    /// Boots the guest with `probes`, and runs `drive` in a thread. If the guest does not come to a good end, complains, or counts failed
    /// calls, returns an error.
    pub(crate) fn run<T: Send, A: Clone + Into<EngineAction>>(
        &self,
        workload: &str,
        probes: &[ProbeConfig<A>],
        limit: Duration,
        drive: impl FnOnce(&Live<'_>) -> Result<T, String> + Send,
    ) -> Result<(Ran, T), String> {
        let (observed, driven) = self.observe(workload, probes, limit, DONE, drive)?;
        let driven = driven.map_err(|error| observed.wrong(&error))?;
        if let Some(complaint) = observed.complaints().first() {
            return Err(observed.wrong(&format!("the guest says: {complaint}")));
        }
        let counts = Counts::from_console(&observed.console)
            .filter(|counts| observed.summary.guest.end == GuestEnd::Poweroff && counts.failed == 0)
            .ok_or_else(|| observed.wrong("the guest did not come to a good end"))?;
        let slow = observed.by_slowness().0.len();
        let Observed {
            summary,
            console,
            returns,
            notes,
        } = observed;
        let ran = Ran {
            counts,
            returns,
            notes,
            slow,
            console,
            summary,
        };
        Ok((ran, driven))
    }

    /// Boots the guest with `probes`, and runs `drive` in a thread. Returns when the console shows `last` and the machine ends, or when
    /// `limit` is over. Does not judge the guest's output.
    pub(crate) fn observe<T: Send, A: Clone + Into<EngineAction>>(
        &self,
        workload: &str,
        probes: &[ProbeConfig<A>],
        limit: Duration,
        last: &str,
        drive: impl FnOnce(&Live<'_>) -> Result<T, String> + Send,
    ) -> Result<(Observed, Result<T, String>), String> {
        let seen = Seen::default();
        let (input, theirs) = UnixStream::pair().map_err(chain)?;
        let cmdline = format!("{CMDLINE} {workload}");
        let config = SessionConfig {
            file: self.file,
            vmlinux: self.vmlinux,
            kernel: self.kernel()?,
            method: BootMethod::Direct,
            initrd: Some(self.initrd),
            cmdline: &cmdline,
            memory_bytes: self.memory_bytes,
            cpus: self.cpus,
            probes,
            injections: &[],
            plant: None,
            optimise: true,
            when_full: WhenFull::default(),
            stealth: Stealth::default(),
            console: Console {
                output: Box::new(seen.clone()),
                input: Some(File::from(OwnedFd::from(theirs))),
            },
            debug_exit: false,
        };
        let session =
            Session::new(self.host, self.facts, config, Arc::new(seen.clone())).map_err(chain)?;
        let (engine, control) = (session.engine().clone(), session.control());
        let (summary, driven) = std::thread::scope(|scope| {
            let seen = &seen;
            let driver = scope.spawn(move || {
                let live = Live {
                    engine: &engine,
                    control: &control,
                    seen,
                    input,
                };
                let began = Instant::now();
                let driven = drive(&live);
                let left = limit.saturating_sub(began.elapsed());
                let driven = driven.and_then(|driven| live.await_text(last, left).map(|()| driven));
                if driven.is_err() {
                    control.end(End::Stopped);
                }
                driven
            });
            let summary = session.run(Some(limit), "kvm");
            seen.end();
            let driven = driver
                .join()
                .unwrap_or_else(|_| Err("the driving thread panicked".to_owned()));
            (summary, driven)
        });
        let summary = summary.map_err(chain)?;
        let guest_output = std::mem::take(&mut *seen.lock());
        let observed = Observed {
            summary,
            console: String::from_utf8_lossy(&guest_output.console).into_owned(),
            returns: guest_output.returns,
            notes: guest_output.notes,
        };
        Ok((observed, driven))
    }
}
