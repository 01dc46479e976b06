//! How long a stock guest takes to boot with an engine that has no probe, and without an engine.

use std::sync::Arc;
use std::time::Instant;

use probes::{GuestEnd, Kernel, Session, SessionConfig};
use vmm::boot::{BootMethod, KernelFile};
use vmm::{Console, End, Int3Exits, Machine, MachineConfig, NoTraps, TrapHandler};

use super::{Measured, Overhead, nanos, stock};
use crate::chain::chain;
use crate::contract::{Bench, Observer};
use crate::line::{Boot, Line};

const MEMORY_BYTES: u64 = 256 << 20;
const CMDLINE: &str = "console=ttyS0 panic=-1 loglevel=4 boot=1";
/// Boots of each kind, in turns.
const ROUNDS: usize = 7;

/// A guest to be booted time after time.
struct Booted<'a> {
    overhead: &'a Overhead<'a>,
    bench: &'a Bench,
    file: KernelFile,
    initrd: Vec<u8>,
}

/// From the kernel's file to a machine that is ready to run, and from there to its end, nanoseconds.
type Took = (u64, u64);

pub(super) fn boot(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let files = overhead.stock.ok_or("no stock kernel")?;
    let booted = Booted {
        overhead,
        bench,
        file: KernelFile::open(files.kernel).map_err(chain)?,
        initrd: std::fs::read(files.initrd).map_err(chain)?,
    };
    let line = |engine| Boot {
        backend: overhead.backend,
        guest: stock::NAME.to_owned(),
        engine,
        set_up_ns: Vec::new(),
        ran_ns: Vec::new(),
    };
    let mut lines = [line(false), line(true)];
    for _ in 0..ROUNDS {
        for line in &mut lines {
            let (set_up, ran) = match line.engine {
                true => booted.with_engine()?,
                false => booted.without()?,
            };
            line.set_up_ns.push(set_up);
            line.ran_ns.push(ran);
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
    fn with_engine(&self) -> Result<Took, String> {
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
            probes: &[],
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
        match ran.guest.end {
            GuestEnd::Poweroff => Ok((set_up, nanos(began.elapsed()))),
            _ => Err(format!("it did not come to its end: {:?}", ran.guest)),
        }
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
            Some(End::PowerOff) => Ok((set_up, nanos(began.elapsed()))),
            end => Err(format!("it did not come to its end: {end:?}")),
        }
    }
}
