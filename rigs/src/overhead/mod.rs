//! The cost of probes on the path of every hit, measured on the machine's KVM.
//!
//! The measurements print the times of loops unprocessed; [`page`] computes the table.

mod arming;
mod boot;
mod clock;
mod gdbstub;
pub mod page;
mod stock;
mod test_guest;
mod ways;
mod words;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::contract::{Bench, ContractError, attempt};
use crate::line::{Backend, Line, Timing};
use crate::runner::{Runner, verdict};

pub use ways::{WAYS, Way};

/// The measurements and their extent.
#[derive(Clone, Copy, Debug)]
pub struct Overhead<'a> {
    /// The machine's name in the lines.
    pub backend: Backend,
    /// The test guest, an ELF file.
    pub guest: &'a Path,
    /// A stock guest: many probes are armed in the guest, which runs only if a run does not take minutes.
    pub stock: Option<Stock<'a>>,
    /// Only measurements with this text in the name, or with one of several texts, separated by commas.
    pub only: &'a str,
    /// Number of calls in a loop.
    pub calls: u64,
    /// Number of loops; the page reports the median.
    pub rounds: usize,
    /// The maximum time of a guest.
    pub timeout: Duration,
}

/// The name, in the lines, of a loop of guest instructions, which counts instructions as calls.
const SPEED: &str = "instructions";

/// A stock guest's files.
#[derive(Clone, Copy, Debug)]
pub struct Stock<'a> {
    /// The kernel, unpacked.
    pub kernel: &'a Path,
    /// An initramfs with the init of [`guest_images::workload::build_overhead`].
    pub initrd: &'a Path,
    /// The packed kernel, if QEMU runs on this machine.
    pub image: Option<&'a Path>,
}

/// The lines of a measurement, or the error.
type Measured = Result<Vec<Line>, String>;

/// The name, whether the machine can make the measurement, and the measurement.
type Measurement = (
    &'static str,
    fn(&Overhead<'_>, &Bench) -> bool,
    fn(&Overhead<'_>, &Bench) -> Measured,
);

/// In the order in which they are made.
const MEASUREMENTS: [Measurement; 10] = [
    ("ways", |_, _| true, test_guest::ways),
    (
        "rate/1",
        |_, _| true,
        |overhead, bench| test_guest::rate(overhead, bench, 1),
    ),
    (
        "rate/2",
        |_, _| true,
        |overhead, bench| test_guest::rate(overhead, bench, 2),
    ),
    (
        "records/1",
        |_, _| true,
        |overhead, bench| test_guest::records(overhead, bench, 1),
    ),
    (
        "records/2",
        |_, _| true,
        |overhead, bench| test_guest::records(overhead, bench, 2),
    ),
    (
        "stock",
        |overhead, bench| overhead.runs_stock(bench),
        stock::stock,
    ),
    (
        "boot",
        |overhead, bench| overhead.runs_stock(bench) && overhead.is_fast(),
        boot::boot,
    ),
    (
        "all-probed",
        |overhead, bench| overhead.runs_stock(bench) && overhead.is_fast(),
        boot::all_probed,
    ),
    (
        "gdbstub",
        |overhead, _| overhead.stock.is_some_and(|stock| stock.image.is_some()),
        |overhead, _| gdbstub::gdbstub(overhead),
    ),
    (
        "arming",
        |overhead, _| overhead.stock.is_some() && overhead.is_fast(),
        arming::arming,
    ),
];

/// The names of the measurements, in the order in which they are made.
pub(crate) fn names() -> [&'static str; 10] {
    MEASUREMENTS.map(|(name, ..)| name)
}

impl Overhead<'_> {
    /// Measures and prints the results. Returns the number of failed measurements.
    ///
    /// # Errors
    ///
    /// See [`ContractError`]; a failed measurement is not an error.
    pub fn run(&self, output: &mut dyn Write) -> Result<usize, ContractError> {
        let backend = self.backend;
        let began = Instant::now();
        let bench = Bench::open(self.guest, self.timeout)?;
        let mut runner = Runner::begin(backend, self.only, bench.facts(), began, output)?;
        let speed = bench.facts().speed;
        runner.print(&Line::Timing(Timing {
            backend,
            guest: "self-test".to_owned(),
            way: SPEED.to_owned(),
            cpus: 1,
            calls: speed.instructions,
            rounds_ns: vec![nanos(speed.took)],
            hits: 0,
            exits: 0,
        }))?;
        for (name, is_possible, measure) in MEASUREMENTS {
            let mut measured = Vec::new();
            runner.case(name, || {
                if !is_possible(self, &bench) {
                    return (None, "it cannot be measured here".to_owned());
                }
                let mut result = Ok(Vec::new());
                let attempted = attempt(|| result = measure(self, &bench));
                verdict(attempted.and(result).map(|lines| {
                    measured = lines;
                    format!("{} lines", measured.len())
                }))
            })?;
            for line in measured {
                runner.print(&line)?;
            }
        }
        Ok(runner.end()?)
    }

    /// An emulated clock does not measure the time that Bochs or QEMU takes.
    fn runs_stock(&self, bench: &Bench) -> bool {
        self.stock.is_some() && (self.backend != Backend::Local || bench.facts().runs_kernels())
    }

    /// Bochs would take minutes to boot a kernel several times, or to look up all probes of a kernel.
    const fn is_fast(&self) -> bool {
        !matches!(self.backend, Backend::Intel | Backend::Amd)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
