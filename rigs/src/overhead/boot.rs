//! The boot time of a stock guest without an engine, with an engine without probes, and with all functions probed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use events::{ProbeState, ProbeSummary};
use manifest::{GuestEnd, ProbeConfig};
use probes::{EngineAction, Kernel, Session, SessionConfig};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, End, Int3Exits, Machine, MachineConfig, NoTraps, TrapHandler};

use super::ways::counted;
use super::{Measured, Overhead, nanos, stock};
use crate::contract::{Bench, Observer};
use crate::line::{Boot, BootKind, Line};
use errors::chain;

const MEMORY_BYTES: u64 = 256 << 20;
const CMDLINE: &str = "console=ttyS0 panic=-1 loglevel=4 boot=1";
/// The number of boots of each kind, in turns. With all functions probed there is a single boot, which takes minutes if exits are slow.
const ROUNDS: usize = 7;
const ALL_FUNCTIONS: &str = "kprobe:*";
/// Every stock kernel has more functions that can be probed.
const FUNCTIONS_MIN: u64 = 30_000;

/// A guest to be booted time after time.
struct Booted<'a> {
    overhead: &'a Overhead<'a>,
    bench: &'a Bench,
    file: KernelFile,
    initrd: Vec<u8>,
}

/// The times of a boot, and the counts of its probes.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    /// From the kernel's file to a machine ready to run, nanoseconds.
    set_up_ns: u64,
    /// From there to the guest's end, nanoseconds.
    ran_ns: u64,
    probes: u64,
    hits: u64,
    missed: u64,
    exits: u64,
}

/// Boots without an engine, and with an engine without probes.
pub(super) fn boot(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let booted = Booted::new(overhead, bench)?;
    let mut lines = [BootKind::NoEngine, BootKind::Engine].map(|kind| booted.line(kind));
    for _ in 0..ROUNDS {
        for line in &mut lines {
            add(
                line,
                match line.kind {
                    BootKind::NoEngine => booted.without()?,
                    BootKind::Engine | BootKind::AllProbed => booted.with_engine(&[])?,
                },
            );
        }
    }
    Ok(lines.map(Line::Boot).into())
}

/// A boot with all functions probed.
pub(super) fn all_probed(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let booted = Booted::new(overhead, bench)?;
    let mut line = booted.line(BootKind::AllProbed);
    let took = booted.with_engine(&[counted(ALL_FUNCTIONS)])?;
    if took.probes < FUNCTIONS_MIN || took.hits == 0 {
        return Err(format!(
            "{} probes with {} hits are not all functions",
            took.probes, took.hits
        ));
    }
    add(&mut line, took);
    Ok(vec![Line::Boot(line)])
}

fn add(line: &mut Boot, took: Took) {
    line.set_up_ns.push(took.set_up_ns);
    line.ran_ns.push(took.ran_ns);
    (line.probes, line.hits) = (took.probes, took.hits);
    (line.missed, line.exits) = (took.missed, took.exits);
}

fn silent() -> Console {
    Console {
        output: Box::new(std::io::sink()),
        input: None,
    }
}

impl<'a> Booted<'a> {
    fn new(overhead: &'a Overhead<'a>, bench: &'a Bench) -> Result<Self, String> {
        let files = overhead.stock.ok_or("no stock kernel")?;
        Ok(Self {
            overhead,
            bench,
            file: KernelFile::open(files.kernel).map_err(chain)?,
            initrd: std::fs::read(files.initrd).map_err(chain)?,
        })
    }

    fn line(&self, kind: BootKind) -> Boot {
        Boot {
            backend: self.overhead.backend,
            guest: stock::NAME.to_owned(),
            kind,
            set_up_ns: Vec::new(),
            ran_ns: Vec::new(),
            probes: 0,
            hits: 0,
            missed: 0,
            exits: 0,
        }
    }

    fn with_engine(&self, probes: &[ProbeConfig<EngineAction>]) -> Result<Took, String> {
        let began = Instant::now();
        let vmlinux = self.file.vmlinux().map_err(chain)?;
        let config = SessionConfig {
            file: &self.file,
            vmlinux: &vmlinux,
            kernel: Kernel::from_vmlinux(&*vmlinux).map_err(chain)?,
            method: BootMethod::Direct,
            initrd: Some(&self.initrd),
            cmdline: CMDLINE,
            memory_bytes: MEMORY_BYTES,
            cpus: 1,
            probes,
            injections: &[],
            plant: None,
            optimise: true,
            when_full: manifest::WhenFull::default(),
            stealth: manifest::Stealth::default(),
            console: silent(),
            debug_exit: false,
        };
        let sink = Arc::new(Observer::default());
        let session =
            Session::new(self.bench.host(), *self.bench.facts(), config, sink).map_err(chain)?;
        let set_up = nanos(began.elapsed());
        let began = Instant::now();
        let ran = session
            .run(Some(self.overhead.timeout), "kvm")
            .map_err(chain)?;
        let ran_ns = nanos(began.elapsed());
        // Probes of the same instruction share the exits.
        let mut by_site: BTreeMap<_, u64> = BTreeMap::new();
        for probe in &ran.probes {
            let exits = by_site.entry(probe.ip.map(|ip| ip.0)).or_default();
            *exits = probe.exits.max(*exits);
        }
        let exits = by_site.values().sum();
        if ran.guest.end != GuestEnd::Poweroff {
            return Err(format!(
                "it did not come to its end: {:?} after {exits} exits",
                ran.guest
            ));
        }
        let armed =
            |probe: &&ProbeSummary| matches!(probe.state, ProbeState::Armed | ProbeState::Gone);
        Ok(Took {
            set_up_ns: set_up,
            ran_ns,
            probes: ran.probes.iter().filter(armed).count() as u64,
            hits: ran.probes.iter().map(|probe| probe.hits).sum(),
            missed: ran
                .probes
                .iter()
                .flat_map(|probe| probe.missed.values())
                .sum(),
            exits,
        })
    }

    fn without(&self) -> Result<Took, String> {
        let began = Instant::now();
        let vmlinux = self.file.vmlinux().map_err(chain)?;
        let config = MachineConfig {
            kernel: &self.file,
            vmlinux: &vmlinux,
            method: BootMethod::Direct,
            initrd: Some(&self.initrd),
            cmdline: CMDLINE,
            memory_bytes: MEMORY_BYTES,
            cpus: 1,
            console: silent(),
            debug_exit: false,
            int3: Int3Exits::Alone,
        };
        let (mut machine, _) =
            Machine::new(self.bench.host(), *self.bench.facts(), config).map_err(chain)?;
        let set_up = nanos(began.elapsed());
        let began = Instant::now();
        let handler: Arc<dyn TrapHandler> = Arc::new(NoTraps);
        machine.start(&handler).map_err(chain)?;
        let end = machine.wait(Some(self.overhead.timeout));
        machine.stop();
        match end {
            Some(End::PowerOff) => Ok(Took {
                set_up_ns: set_up,
                ran_ns: nanos(began.elapsed()),
                ..Took::default()
            }),
            end => Err(format!("it did not come to its end: {end:?}")),
        }
    }
}
