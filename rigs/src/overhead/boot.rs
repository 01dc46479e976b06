//! How long a stock guest takes to boot without an engine, with an engine that has no probe, and with all functions probed.

use std::sync::Arc;
use std::time::Instant;

use probes::{GuestEnd, Kernel, NewProbe, ProbeState, ProbeSummary, Session, SessionConfig};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, End, Int3Exits, Machine, MachineConfig, NoTraps, TrapHandler};

use super::ways::counted;
use super::{Measured, Overhead, nanos, stock};
use crate::chain::chain;
use crate::contract::{Bench, Observer};
use crate::line::{Boot, BootKind, Line};

const MEMORY_BYTES: u64 = 256 << 20;
const CMDLINE: &str = "console=ttyS0 panic=-1 loglevel=4 boot=1";
/// Boots of each kind, in turns. With all functions probed a boot takes minutes where exits are slow: there is one.
const ROUNDS: usize = 7;
const ALL_FUNCTIONS: &str = "kprobe:*";

/// A guest to be booted time after time.
struct Booted<'a> {
    overhead: &'a Overhead<'a>,
    bench: &'a Bench,
    file: KernelFile,
    initrd: Vec<u8>,
}

/// What a boot took, and what its probes counted.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    /// From the kernel's file to a machine that is ready to run, nanoseconds.
    set_up_ns: u64,
    /// From there to the guest's end, nanoseconds.
    ran_ns: u64,
    probes: u64,
    hits: u64,
    missed: u64,
    exits: u64,
}

pub(super) fn boot(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let files = overhead.stock.ok_or("no stock kernel")?;
    let booted = Booted {
        overhead,
        bench,
        file: KernelFile::open(files.kernel).map_err(chain)?,
        initrd: std::fs::read(files.initrd).map_err(chain)?,
    };
    let line = |kind| Boot {
        backend: overhead.backend,
        guest: stock::NAME.to_owned(),
        kind,
        set_up_ns: Vec::new(),
        ran_ns: Vec::new(),
        probes: 0,
        hits: 0,
        missed: 0,
        exits: 0,
    };
    let mut lines = [BootKind::NoEngine, BootKind::Engine, BootKind::AllProbed].map(line);
    for round in 0..ROUNDS {
        for line in &mut lines {
            let took = match line.kind {
                BootKind::NoEngine => booted.without()?,
                BootKind::Engine => booted.with_engine(&[])?,
                BootKind::AllProbed if round > 0 => continue,
                BootKind::AllProbed => booted.with_engine(&[counted(ALL_FUNCTIONS)])?,
            };
            line.set_up_ns.push(took.set_up_ns);
            line.ran_ns.push(took.ran_ns);
            (line.probes, line.hits) = (took.probes, took.hits);
            (line.missed, line.exits) = (took.missed, took.exits);
        }
    }
    Ok(lines.map(Line::Boot).into())
}

fn silent() -> Console {
    Console {
        output: Box::new(std::io::sink()),
        input: None,
    }
}

impl Booted<'_> {
    fn with_engine(&self, probes: &[NewProbe]) -> Result<Took, String> {
        let began = Instant::now();
        let vmlinux = self.file.vmlinux().map_err(chain)?;
        let config = SessionConfig {
            file: &self.file,
            vmlinux: &vmlinux,
            kernel: Kernel::from_vmlinux(&vmlinux).map_err(chain)?,
            method: BootMethod::Direct,
            initrd: Some(&self.initrd),
            cmdline: CMDLINE,
            memory_bytes: MEMORY_BYTES,
            cpus: 1,
            probes,
            plant: None,
            optimise: true,
            when_full: probes::WhenFull::default(),
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
        let exits = ran.probes.iter().map(|probe| probe.exits).sum();
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
