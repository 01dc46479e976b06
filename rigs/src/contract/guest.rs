//! The test guest with its probes, from the description to the output.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use events::{EventSink, Hex, ProbeId, ProbeSummary, Summary};
use guest_images::testguest::Outcome;
use manifest::{GuestEnd, ProbeConfig, ProbeSpec, Stealth, WhenFull};
use probes::{EngineAction, Session, SessionConfig};
use vmm::Console;
use vmm::boot::BootMethod;

use super::bench::{Done, Here};
use super::observer::Observer;
use crate::way::Way;

/// The RAM of the test guest.
pub const MEMORY_BYTES: u64 = 64 << 20;

/// A run of the test guest.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    here: &'a Here<'a>,
    cmdline: String,
    probes: Vec<ProbeConfig<EngineAction>>,
    optimise: bool,
    stealth: Stealth,
    timeout: Duration,
}

/// A probe that reports each hit, from the text of a specification.
///
/// # Panics
///
/// If `spec` is no probe specification.
pub(crate) fn new(spec: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig::from(spec.parse::<ProbeSpec>().expect(spec)).with_action(EngineAction::default())
}

impl<'a> Guest<'a> {
    pub(super) fn new(here: &'a Here<'a>, cmdline: &str) -> Self {
        Self {
            here,
            cmdline: cmdline.to_owned(),
            probes: vec![new("kprobe:fn_*")],
            optimise: true,
            stealth: here.way.map(Way::stealth).unwrap_or_default(),
            timeout: here.bench.timeout,
        }
    }

    /// Replaces the probe at every function by probes that report their hits.
    ///
    /// # Panics
    ///
    /// If a text is no probe specification.
    #[must_use]
    pub fn probes<S: AsRef<str>>(mut self, probes: impl IntoIterator<Item = S>) -> Self {
        self.probes = probes
            .into_iter()
            .map(|probe| new(probe.as_ref()))
            .collect();
        self
    }

    /// Turns optimisation off: only plants are used, and each hit exits.
    #[must_use]
    pub fn without_jumps(mut self) -> Self {
        self.optimise = false;
        self
    }

    /// Sets the level, which is else that of the way to plant.
    #[must_use]
    pub fn at_level(mut self, level: Stealth) -> Self {
        self.stealth = level;
        self
    }

    /// Sets probes with their actions, instead of a probe at every function.
    #[must_use]
    pub fn with(mut self, probes: impl IntoIterator<Item = ProbeConfig<EngineAction>>) -> Self {
        self.probes = probes.into_iter().collect();
        self
    }

    /// Sets the time after which the guest is ended.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs the guest to the end.
    ///
    /// # Panics
    ///
    /// As [`prepare`](Self::prepare) and [`Prepared::run`].
    #[must_use]
    pub fn run(self) -> Ran {
        self.prepare().run()
    }

    /// Prepares the guest: everything is planted, and nothing has run.
    ///
    /// # Panics
    ///
    /// If the session cannot be set up.
    #[must_use]
    pub fn prepare(self) -> Prepared<'a> {
        self.prepare_with(|observer| Arc::new(observer))
    }

    /// Prepares the guest like [`prepare`](Self::prepare), with events sent through `sink`. If the observer is to see the
    /// events, the sink has to forward them.
    ///
    /// # Panics
    ///
    /// As [`prepare`](Self::prepare).
    #[must_use]
    pub fn prepare_with(self, sink: impl FnOnce(Observer) -> Arc<dyn EventSink>) -> Prepared<'a> {
        let bench = self.here.bench;
        let observer = Observer::default();
        let cmdline = format!("{} {}", self.cmdline, bench.words);
        let config = SessionConfig {
            file: &bench.file,
            vmlinux: bench.elf(),
            kernel: bench.kernel(),
            method: BootMethod::Direct,
            initrd: None,
            cmdline: cmdline.trim_end(),
            memory_bytes: MEMORY_BYTES,
            cpus: self.here.cpus,
            probes: &self.probes,
            injections: &[],
            plant: self.here.way.and_then(Way::byte),
            optimise: self.optimise,
            when_full: WhenFull::default(),
            stealth: self.stealth,
            console: Console {
                output: Box::new(observer.clone()),
                input: None,
            },
            debug_exit: true,
        };
        let session = Session::new(&bench.host, bench.facts, config, sink(observer.clone()))
            .expect("the session is set up");
        self.here.done().push(Done {
            cmdline: self.cmdline,
            summary: None,
        });
        Prepared {
            here: self.here,
            session,
            observer,
            timeout: self.timeout,
        }
    }
}

/// A guest before the first instruction.
#[derive(Debug)]
pub struct Prepared<'a> {
    here: &'a Here<'a>,
    /// The session of the guest, with the probes.
    pub session: Session,
    /// The events and the console output.
    pub observer: Observer,
    timeout: Duration,
}

impl Prepared<'_> {
    /// Registers more probes.
    ///
    /// # Panics
    ///
    /// If the probes cannot be registered.
    #[must_use]
    pub fn register(&self, probes: &[ProbeConfig<EngineAction>]) -> Vec<ProbeId> {
        let paused = self.session.control();
        self.session
            .engine()
            .register(&paused.pause_all(), probes)
            .expect("registered")
    }

    /// Runs the guest to the end.
    ///
    /// # Panics
    ///
    /// If a thread cannot be started.
    #[must_use]
    pub fn run(self) -> Ran {
        let engine = Arc::clone(self.session.engine());
        let summary = self
            .session
            .run(Some(self.timeout), "kvm")
            .expect("threads start");
        if let Some(done) = self.here.done().last_mut() {
            done.summary = Some(summary.clone());
        }
        let outcome = Outcome::from_console(&self.observer.console());
        Ran {
            summary,
            outcome,
            observer: self.observer,
            int3_exits: engine.unprobed_exits().int3s(),
        }
    }
}

/// A guest after the end of the run.
#[derive(Debug)]
pub struct Ran {
    /// The end of the guest, and the state and counters of the probes.
    pub summary: Summary,
    /// The guest's own report.
    pub outcome: Outcome,
    /// The events and the console output.
    pub observer: Observer,
    /// As [`UnprobedExits::int3s`](probes::UnprobedExits::int3s).
    pub int3_exits: u64,
}

/// In the note about a page of watched data with many exits.
const HOT: &str = "slow the guest";
/// The most such notes of a case: its data is on a few pages, each reported once for each power of ten.
const MAX_HOT: usize = 8;

impl Ran {
    /// How the guest ended.
    #[must_use]
    pub fn end(&self) -> (GuestEnd, Option<&str>) {
        (self.summary.guest.end, self.summary.guest.detail.as_deref())
    }

    /// Asserts a good run: the guest found no failure and exited with code 0, no note was emitted (a refused probe emits a
    /// note), and all hits and calls are accounted for ([`assert_accounted`](Self::assert_accounted)).
    ///
    /// # Panics
    ///
    /// If the assertion fails.
    pub fn assert_good(&self) {
        assert!(self.outcome.failures.is_empty(), "{}", self.report());
        assert_eq!(self.end(), (GuestEnd::Exit, Some("0")), "{}", self.report());
        assert!(self.outcome.is_good(), "{}", self.report());
        let notes = self.observer.notes().into_iter();
        let (hot, others): (Vec<_>, Vec<_>) = notes.partition(|note| note.text.contains(HOT));
        assert_eq!(others, [], "nothing needed saying");
        // The data of some cases is hot on purpose.
        assert!(hot.len() <= MAX_HOT, "{hot:?}");
        self.assert_accounted();
    }

    /// The failures and the end of the guest, the notes, and the last line of the console.
    fn report(&self) -> String {
        let console = self.observer.console();
        let last = console.lines().next_back().unwrap_or("nothing").to_owned();
        let failures = self.outcome.failures.join("; ");
        format!(
            "{failures} {:?} {:?}, it said last: {last}",
            self.end(),
            self.observer.notes()
        )
    }

    /// Asserts the accounts of the probes: each call entered at a return probe has returned, is in flight, or was missed for
    /// a reason. Other probes have missed nothing.
    ///
    /// # Panics
    ///
    /// If the assertion fails.
    pub fn assert_accounted(&self) {
        for probe in &self.summary.probes {
            if let (Some(returns), Some(in_flight)) = (probe.returns, probe.in_flight) {
                let missed: u64 = probe.missed.values().sum();
                assert_eq!(probe.hits, returns + in_flight + missed, "{probe:?}");
            } else {
                assert!(probe.missed.is_empty(), "{probe:?}");
            }
        }
    }

    /// The probe with the name `name`; the first, if several probes have the name.
    ///
    /// # Panics
    ///
    /// If no probe has the name.
    #[must_use]
    pub fn probe(&self, name: &str) -> &ProbeSummary {
        self.summary
            .probes
            .iter()
            .find(|probe| probe.probe == name)
            .unwrap_or_else(|| panic!("no probe {name}"))
    }

    /// Hits of the probe at a function's entry.
    #[must_use]
    pub fn hits(&self, function: &str) -> u64 {
        self.probe(&format!("kprobe:{function}")).hits
    }

    /// The number of executions of the function's first instruction, by the guest's own count.
    #[must_use]
    pub fn counted(&self, function: &str) -> u64 {
        self.outcome.counts.get(function).copied().unwrap_or(0)
    }

    /// The first arguments of the hits, in order.
    #[must_use]
    pub fn first_arguments(&self) -> Vec<u64> {
        let hits = self.observer.hits();
        hits.iter().map(|hit| hit.args[0].0).collect()
    }

    /// Asserts the hits of every function's entry: as many as the executions counted by the guest, and each hit was
    /// reported. `extra` holds the additional hits of functions.
    ///
    /// # Panics
    ///
    /// If the assertion fails.
    pub fn assert_counts(&self, extra: &[(&str, u64)]) {
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        for hit in self.observer.hits() {
            assert_eq!(hit.regs.rip, hit.ip);
            assert_ne!(hit.ip, Hex(0));
            *told.entry(hit.probe.to_string()).or_default() += 1;
        }
        let mut compared = 0;
        let mut wrong = Vec::new();
        for probe in &self.summary.probes {
            let name = probe.probe.trim_start_matches("kprobe:");
            let extra = extra.iter().find(|(function, _)| *function == name);
            let expected = self.counted(name) + extra.map_or(0, |(_, more)| *more);
            let told = told.get(&probe.probe).copied().unwrap_or(0);
            if (probe.hits, told) != (expected, expected) {
                let hits = probe.hits;
                wrong.push(format!("{name}: {hits} hits, {told} told, {expected} made"));
            }
            compared += u64::from(expected > 0);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("; "));
        assert!(compared > 0, "the guest counted nothing");
    }
}
