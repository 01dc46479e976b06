//! A stock kernel with the workload that counts its own calls, booted once; several cases check the results of the run.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use events::{ProbeState, ProbeSummary, Return, Summary};
use guest_images::workload::Counts;
use manifest::{Action, GuestEnd, ProbeConfig, Stealth, WhenFull};
use probes::{EngineAction, Kernel, Session, SessionConfig};
use vmm::Console;
use vmm::boot::{BootMethod, KernelFile};

use super::bench::Bench;
use super::guest::new;
use super::observer::Observer;

/// The files of a stock guest.
#[derive(Clone, Debug)]
pub struct StockFiles {
    /// The kernel.
    pub kernel: PathBuf,
    /// The workload, with the module to load.
    pub initrd: PathBuf,
    /// Number of vCPUs.
    pub cpus: u8,
    /// The time limit of the run.
    pub timeout: Duration,
}

/// A case that checks the run of the stock guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct StockCase {
    /// The name.
    pub name: &'static str,
    /// Panics when the promise is not kept.
    pub check: fn(&StockRun),
}

impl StockCase {
    /// The name in the lines.
    pub(super) fn line_name(&self, cpus: u8) -> String {
        format!("{}/auto/{cpus}", self.name)
    }
}

const MEMORY_BYTES: u64 = 256 << 20;
/// The command line has the workload's parameters. Each printed character costs exits; a panic is printed anyway.
pub(crate) const COMMAND_LINE: &str = "console=ttyS0 panic=-1 loglevel=4 cryptomgr.notests=1 random.trust_cpu=on \
                                       opens=20 reads=11 getpids=7 modload=/dummy.ko modunload=dummy";
/// The module that the workload loads and unloads. The module makes a single network device.
pub(crate) const MODULE: &str = "dummy";

/// A probe, and the workload's count of the probe's hits.
type Counted = (&'static str, fn(&Counts) -> u64);

const COUNTED: [Counted; 3] = [
    ("kprobe:do_sys_openat2", |counts| counts.openat),
    ("kprobe:ksys_read", |counts| counts.read),
    ("kprobe:__x64_sys_getpid", |counts| counts.getpid),
];
/// In the workload's own file: each of its `openat` calls is made there.
const IN_PROGRAM: &str = "uprobe:/init:workload_open";
const PROGRAM_RETURNS: &str = "uretprobe:/init:workload_open";
const OPEN_RETURNS: &str = "kretprobe:do_sys_openat2";
/// Never returns.
const EXIT_RETURNS: &str = "kretprobe:do_exit";
/// Functions that kprobes itself refuses: the entry of system calls, the entry of an exception, and the function called by the latter.
const ENTRY_CODE: [&str; 3] = [
    "kprobe:entry_SYSCALL_64",
    "kprobe:asm_exc_page_fault",
    "kprobe:exc_page_fault",
];
/// The self-test that executes the kernel's own int3, and the handler of the int3.
const BREAKPOINT: [&str; 2] = ["kprobe:int3_selftest", "kprobe:asm_exc_int3"];
const IN_MODULE: [&str; 4] = [
    "kprobe:dummy:dummy_init_module",
    "kprobe:dummy:dummy_setup",
    "kprobe:dummy:cleanup_module",
    "kretprobe:dummy:dummy_dev_init",
];

pub(super) const CASES: [StockCase; 7] = [
    StockCase {
        name: "stock",
        check: |run| {
            for (name, made) in COUNTED {
                run.counted(name, made(&run.counts()));
            }
        },
    },
    StockCase {
        name: "stock-program",
        check: |run| {
            run.counted(IN_PROGRAM, run.counts().openat);
            let probe = run.counted(PROGRAM_RETURNS, run.counts().openat);
            assert_eq!(probe.returns, Some(probe.hits), "{probe:?}");
        },
    },
    StockCase {
        name: "stock-returns",
        check: |run| {
            let probe = run.counted(OPEN_RETURNS, run.counts().openat);
            assert_eq!(probe.returns, Some(probe.hits), "{probe:?}");
        },
    },
    StockCase {
        name: "stock-tasks-end",
        check: |run| {
            let probe = run.probe(EXIT_RETURNS);
            assert!(probe.hits >= u64::from(run.cpus), "{probe:?}");
            assert_eq!(probe.returns, Some(0), "{probe:?}");
            // If a call never returns, there may be no instruction to plant behind the call.
            let missed = |why: &str| probe.missed.get(why).copied().unwrap_or(0);
            let (abandoned, sites) = (missed("abandoned"), missed("return-site"));
            let in_flight = probe.in_flight.unwrap_or(0);
            assert_eq!(probe.hits, abandoned + sites + in_flight, "{probe:?}");
            assert!(abandoned > 0, "{probe:?}");
        },
    },
    StockCase {
        name: "stock-entry",
        check: |run| {
            let counts = run.counts();
            let calls = counts.openat + counts.read + counts.getpid;
            for name in ENTRY_CODE {
                let probe = run.probe(name);
                assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
                assert!(probe.hits > 0, "{probe:?}");
            }
            let syscalls = run.probe(ENTRY_CODE[0]);
            assert!(syscalls.hits > calls, "{calls} calls: {syscalls:?}");
        },
    },
    StockCase {
        name: "stock-int3",
        check: |run| {
            let test = run.probe(BREAKPOINT[0]);
            let seen = (test.hits, test.state);
            assert_eq!(seen, (1, ProbeState::Gone), "{test:?}");
            // The kernel patches the handler's first instruction while booting, and runs the self-test before the patch. The later hits
            // differ from boot to boot.
            let handler = run.probe(BREAKPOINT[1]);
            assert_eq!(handler.state, ProbeState::Armed, "{handler:?}");
        },
    },
    StockCase {
        name: "stock-module",
        check: |run| {
            for name in IN_MODULE {
                let probe = run.probe(name);
                let seen = (probe.hits, probe.state);
                assert_eq!(seen, (1, ProbeState::Gone), "{probe:?}");
            }
            let name = IN_MODULE[3];
            assert_eq!(run.probe(name).returns, Some(1));
            let told: Vec<_> = run
                .returns
                .iter()
                .filter(|told| *told.probe == *name)
                .collect();
            assert_eq!(told.len(), 1);
            assert_eq!(told[0].retval.0, 0, "it succeeds");
        },
    },
];

/// The results of a run of the stock guest.
#[derive(Debug)]
pub(super) struct StockRun {
    summary: Summary,
    console: String,
    returns: Vec<Return>,
    cpus: u8,
}

/// Text that is never on the console of a healthy guest.
const COMPLAINTS: [&str; 5] = ["WARNING:", "BUG:", "kernel BUG", "Oops", "Call Trace"];

impl StockRun {
    fn probe(&self, name: &str) -> &ProbeSummary {
        let found = self.summary.probes.iter().find(|probe| probe.probe == name);
        found.unwrap_or_else(|| panic!("no probe {name}"))
    }

    fn counted(&self, name: &str, made: u64) -> &ProbeSummary {
        let probe = self.probe(name);
        assert_eq!(probe.hits, made, "{name}");
        assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
        assert!(probe.missed.is_empty(), "{probe:?}");
        probe
    }

    fn counts(&self) -> Counts {
        Counts::from_console(&self.console).expect("the workload has come to its end")
    }

    /// Checks that the guest has done the work and has powered off.
    fn assert_well(&self) {
        let end = &self.summary.guest;
        let last = self.console.lines().next_back().unwrap_or("nothing");
        assert_eq!(end.end, GuestEnd::Poweroff, "{end:?}, last words: {last}");
        assert_eq!(self.counts().failed, 0);
    }

    /// The kernel's complaints, without the parts that differ from boot to boot: time, processor, task.
    fn complaints(&self) -> Vec<&str> {
        let complains = |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word));
        let essence =
            |line: &'_ str| -> usize { line.find(" at ").or(line.find("] ")).unwrap_or(0) };
        let lines = self.console.lines().filter(complains);
        lines.map(|line| &line[essence(line)..]).collect()
    }
}

/// The stock guest, and the results of its runs.
#[derive(Debug)]
pub(super) struct Stock<'a> {
    bench: &'a Bench,
    files: &'a StockFiles,
    run: OnceLock<StockRun>,
    unprobed: OnceLock<StockRun>,
}

impl<'a> Stock<'a> {
    pub(super) fn new(bench: &'a Bench, files: &'a StockFiles) -> Self {
        Self {
            bench,
            files,
            run: OnceLock::new(),
            unprobed: OnceLock::new(),
        }
    }

    /// Panics when the guest is not well, or the case's promise is not kept.
    pub(super) fn check(&self, case: &StockCase) {
        let run = self.run.get_or_init(|| self.boot(true));
        run.assert_well();
        let complaints = run.complaints();
        if !complaints.is_empty() {
            let without = self.unprobed().complaints();
            let new: Vec<_> = complaints
                .iter()
                .filter(|line| !without.contains(line))
                .collect();
            assert!(new.is_empty(), "it complains: {new:?}");
        }
        (case.check)(run);
    }

    /// The same guest without probes.
    fn unprobed(&self) -> &StockRun {
        self.unprobed.get_or_init(|| self.boot(false))
    }

    /// The guest's end without probes; `None` if the guest powers off.
    pub(super) fn fails_unprobed(&self) -> Option<String> {
        let guest = &self.unprobed().summary.guest;
        (guest.end != GuestEnd::Poweroff).then(|| format!("{:?}", guest.end))
    }

    /// The counts of the run.
    pub(super) fn counted(&self) -> String {
        let Some(run) = self.run.get() else {
            return String::new();
        };
        let sum = |of: fn(&ProbeSummary) -> u64| run.summary.probes.iter().map(of).sum::<u64>();
        format!(
            "{} probes, {} hits, {} exits, {:.1} s of the guest",
            run.summary.probes.len(),
            sum(|probe| probe.hits),
            sum(|probe| probe.exits),
            Duration::from_nanos(run.summary.ran_ns).as_secs_f64()
        )
    }

    fn boot(&self, probed: bool) -> StockRun {
        let file = KernelFile::open(&self.files.kernel).expect("a kernel");
        let vmlinux = file.vmlinux().expect("it unpacks");
        let kernel = Kernel::from_vmlinux(&*vmlinux).expect("it has symbols");
        let initrd = read(&self.files.initrd);
        let counting = COUNTED.map(|(name, _)| name).into_iter();
        let names = counting
            .chain([IN_PROGRAM, PROGRAM_RETURNS, OPEN_RETURNS, EXIT_RETURNS])
            .chain(ENTRY_CODE)
            .chain(BREAKPOINT);
        let probes: Vec<ProbeConfig<EngineAction>> = names
            .map(|name| ProbeConfig {
                action: Action::Count.into(),
                ..new(name)
            })
            .chain(IN_MODULE.map(new))
            .collect();
        let observer = Observer::default();
        let config = SessionConfig {
            file: &file,
            vmlinux: &vmlinux,
            kernel,
            method: BootMethod::Direct,
            initrd: Some(&initrd),
            cmdline: COMMAND_LINE,
            memory_bytes: MEMORY_BYTES,
            cpus: self.files.cpus,
            probes: if probed { &probes } else { &[] },
            injections: &[],
            plant: None,
            optimise: true,
            when_full: WhenFull::default(),
            stealth: Stealth::default(),
            console: Console {
                output: Box::new(observer.clone()),
                input: None,
            },
            debug_exit: false,
        };
        let (host, facts) = (&self.bench.host, self.bench.facts);
        let session = Session::new(host, facts, config, Arc::new(observer.clone()))
            .expect("the session is set up");
        let summary = session.run(Some(self.files.timeout), "kvm");
        StockRun {
            summary: summary.expect("threads start"),
            console: observer.console(),
            returns: observer.returns(),
            cpus: self.files.cpus,
        }
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
