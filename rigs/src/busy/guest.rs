//! A stock kernel with the workload as its init, and a thread that does something to it while it runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guest_images::workload::Counts;
use probes::{
    Engine, Event, EventSink, GuestEnd, Kernel, NewProbe, Session, SessionConfig, Summary, WhenFull,
};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Control, End, Host, HostFacts};

use crate::chain::chain;

/// RAM of a guest that only works.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;
/// The crypto self-tests only cost time: in Bochs, minutes.
const CMDLINE: &str = "console=ttyS0 panic=-1 loglevel=5 cryptomgr.notests=1 random.trust_cpu=on";
/// The workload's last line begins so.
const DONE: &str = "workload: done";
/// Text that the console of a healthy guest never shows.
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
/// What it says when it has been given too little time: that depends on what else the host does. A guest that hangs does
/// not come to its end.
const SLOW: [&str; 3] = ["soft lockup", "rcu: INFO", "INFO: task"];
/// Lines about the virtual processor, with probes and without.
const OF_THE_PROCESSOR: &str = "RETBleed: WARNING: ";
/// So many lines of the console are told when something is wrong.
const LAST_WORDS: usize = 12;

/// What came out of a running guest. Cloning shares it.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<SeenInner>);

#[derive(Debug, Default)]
struct SeenInner {
    told: Mutex<Told>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    console: Vec<u8>,
    ended: bool,
    returns: BTreeMap<Arc<str>, u64>,
    notes: Vec<String>,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
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
            // Nothing is traced, and a session returns its summary.
            Event::Hit(_) | Event::Summary(_) => (),
        }
    }
}

pub(super) fn contains(console: &[u8], text: &str) -> bool {
    console
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// A running guest, in the hands of the thread that drives it.
#[derive(Debug)]
pub(crate) struct Live<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) control: &'a Control,
    seen: &'a Seen,
    input: UnixStream,
}

impl Live<'_> {
    /// Whether the guest's console has shown `text`.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        contains(&self.seen.lock().console, text)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.seen.lock().ended
    }

    /// Waits for `text` on the guest's console.
    pub(crate) fn await_text(&self, text: &str, limit: Duration) -> Result<(), String> {
        let told = self.seen.lock();
        let missing = |told: &mut Told| !told.ended && !contains(&told.console, text);
        let (told, _) = self
            .seen
            .0
            .more
            .wait_timeout_while(told, limit, missing)
            .unwrap_or_else(PoisonError::into_inner);
        if contains(&told.console, text) {
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

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) summary: Summary,
    /// What the guest says it did.
    pub(crate) counts: Counts,
    /// Returns that were told as events.
    pub(crate) returns: BTreeMap<Arc<str>, u64>,
    pub(crate) notes: Vec<String>,
    pub(crate) console: String,
    /// How often the guest complained that it had been given too little time.
    pub(crate) slow: usize,
}

/// The guest and where it runs.
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

/// A run as it was seen, before anything is made of it.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) summary: Summary,
    pub(crate) console: String,
    /// Returns that were told as events.
    pub(crate) returns: BTreeMap<Arc<str>, u64>,
    pub(crate) notes: Vec<String>,
}

impl Observed {
    /// The lines of the console by which the guest complains that it has been given too little time, and the others.
    fn by_slowness(&self) -> (Vec<&str>, Vec<&str>) {
        let is_slow = |line: &&str| SLOW.iter().any(|word| line.contains(word));
        self.console.lines().partition(is_slow)
    }

    /// What the guest complains of.
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

    /// Boots it with `probes` while `drive` has a thread of its own. A guest that does not come to its end, or
    /// complains, or whose calls fail, is an error.
    pub(crate) fn run<T: Send>(
        &self,
        workload: &str,
        probes: &[NewProbe],
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

    /// Boots it with `probes` while `drive` has a thread of its own, until `last` is on its console and the machine ends,
    /// or `limit` is over. Nothing is made of what the guest says.
    pub(crate) fn observe<T: Send>(
        &self,
        workload: &str,
        probes: &[NewProbe],
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
            plant: None,
            optimise: true,
            when_full: WhenFull::default(),
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
        let told = std::mem::take(&mut *seen.lock());
        let observed = Observed {
            summary,
            console: String::from_utf8_lossy(&told.console).into_owned(),
            returns: told.returns,
            notes: told.notes,
        };
        Ok((observed, driven))
    }
}
