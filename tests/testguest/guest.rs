//! The test guest with its probes, from its description to what it said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use control::{EventHub, Tee};
use guest_images::testguest::Outcome;
use probes::{
    GuestEnd, Kernel, NewProbe, PlantByte, ProbeSpec, ProbeSummary, Session, SessionConfig, Summary,
};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, Host, HostFacts};

use crate::observer::Observer;

pub(crate) const MEMORY_BYTES: u64 = 64 << 20;
/// Longer than any scenario takes where ring 0 is interpreted.
const TIMEOUT: Duration = Duration::from_secs(100);

static HOST: LazyLock<(Host, HostFacts)> = LazyLock::new(|| {
    let host = Host::open().expect("the feature `test-kvm` promises a usable /dev/kvm");
    let facts = vmm::self_test(&host).expect("the self-test runs");
    (host, facts)
});

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("testguest");
    guest_images::build_testguest(&dir).expect("the test guest compiles")
});

/// The test guest's ELF file.
pub(crate) static ELF: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read(&*FILE).expect("read"));

/// What is known of the test guest before it runs.
pub(crate) fn kernel() -> Kernel {
    Kernel::from_vmlinux(&ELF).expect("the test guest is a kernel with symbols")
}

/// The bytes that can be planted on this host.
pub(crate) fn plant_bytes() -> Vec<PlantByte> {
    let facts = &HOST.1;
    let mut bytes = Vec::new();
    bytes.extend(facts.port.is_usable().then_some(PlantByte::Port));
    bytes.extend(facts.int3.is_usable().then_some(PlantByte::Int3));
    assert!(!bytes.is_empty(), "this host delivers no trap: {facts:?}");
    bytes
}

/// A run of the test guest.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    cmdline: String,
    cpus: u8,
    probes: Vec<String>,
    plant: Option<PlantByte>,
    timeout: Duration,
}

impl Guest {
    /// One vCPU and a probe at the entry of every function of `functions.S`.
    pub(crate) fn new(cmdline: &str) -> Self {
        Self {
            cmdline: cmdline.to_owned(),
            cpus: 1,
            probes: vec!["kprobe:fn_*".to_owned()],
            plant: None,
            timeout: TIMEOUT,
        }
    }

    pub(crate) fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = cpus;
        self
    }

    pub(crate) fn probes<S: Into<String>>(mut self, probes: impl IntoIterator<Item = S>) -> Self {
        self.probes = probes.into_iter().map(Into::into).collect();
        self
    }

    pub(crate) fn plant(mut self, plant: PlantByte) -> Self {
        self.plant = Some(plant);
        self
    }

    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Ran {
        self.prepare().run()
    }

    /// Everything is planted and nothing has run.
    pub(crate) fn prepare(self) -> Prepared {
        let (host, facts) = &*HOST;
        let observer = Observer::default();
        let probes: Vec<NewProbe> = self
            .probes
            .iter()
            .map(|probe| probe.parse::<ProbeSpec>().expect("a probe").into())
            .collect();
        let file = KernelFile::open(&FILE).expect("the test guest is a kernel");
        let config = SessionConfig {
            file: &file,
            vmlinux: &ELF,
            kernel: kernel(),
            method: BootMethod::Direct,
            initrd: None,
            cmdline: &self.cmdline,
            memory_bytes: MEMORY_BYTES,
            cpus: self.cpus,
            probes: &probes,
            plant: self.plant,
            console: Console {
                output: Box::new(observer.clone()),
                input: None,
            },
            debug_exit: true,
        };
        let hub = Arc::new(EventHub::default());
        let sink = Tee::new(Arc::new(observer.clone()), Arc::clone(&hub));
        let session =
            Session::new(host, *facts, config, Arc::new(sink)).expect("the session is set up");
        Prepared {
            session,
            observer,
            hub,
            timeout: self.timeout,
        }
    }
}

/// A guest before its first instruction.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) session: Session,
    pub(crate) observer: Observer,
    /// For clients of a control socket.
    pub(crate) hub: Arc<EventHub>,
    timeout: Duration,
}

impl Prepared {
    pub(crate) fn run(self) -> Ran {
        let summary = self
            .session
            .run(Some(self.timeout), "kvm")
            .expect("threads start");
        let outcome = Outcome::from_console(&self.observer.console());
        Ran {
            summary,
            outcome,
            observer: self.observer,
        }
    }
}

/// A guest after its end.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) summary: Summary,
    pub(crate) outcome: Outcome,
    pub(crate) observer: Observer,
}

impl Ran {
    /// The guest found nothing wrong and ended as it should, and no probe was refused.
    pub(crate) fn assert_good(&self) {
        let told = || {
            format!(
                "{:?}\n{:?}\n{}",
                self.summary.guest,
                self.observer.notes(),
                self.observer.console()
            )
        };
        assert_eq!(self.summary.guest.end, GuestEnd::Exit, "{}", told());
        assert!(self.outcome.is_good(), "{}", told());
        assert_eq!(
            self.summary.guest.detail.as_deref(),
            Some("0"),
            "{}",
            told()
        );
        assert_eq!(self.observer.notes(), [], "nothing needed saying");
    }

    pub(crate) fn probe(&self, name: &str) -> &ProbeSummary {
        self.summary
            .probes
            .iter()
            .find(|probe| probe.probe == name)
            .unwrap_or_else(|| panic!("no probe {name}"))
    }

    /// Hits of the probe at a function's entry.
    pub(crate) fn hits(&self, function: &str) -> u64 {
        self.probe(&format!("kprobe:{function}")).hits
    }

    /// Every function's entry was hit as often as the guest says that it ran, and every hit was told. `extra` is
    /// what a function is hit beyond that.
    pub(crate) fn assert_counts(&self, extra: &[(&str, u64)]) {
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        for hit in self.observer.hits() {
            *told.entry(hit.probe.to_string()).or_default() += 1;
        }
        let mut compared = 0;
        for probe in &self.summary.probes {
            let name = probe.probe.trim_start_matches("kprobe:");
            let ran = self.outcome.counts.get(name).copied().unwrap_or(0);
            let more = extra
                .iter()
                .find(|(function, _)| *function == name)
                .map_or(0, |(_, more)| *more);
            assert_eq!(probe.hits, ran + more, "hits of {name}");
            assert_eq!(
                told.get(&probe.probe).copied().unwrap_or(0),
                probe.hits,
                "told hits of {name}"
            );
            compared += u64::from(ran > 0);
        }
        assert!(compared > 0, "the guest counted nothing");
    }
}
