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
        let has_stock = self.stock.is_some();
        let has_image = self.stock.is_some_and(|stock| stock.image.is_some());
        // An emulated clock does not measure the time that Bochs or QEMU takes.
        let runs_stock = has_stock && (backend != Backend::Local || bench.facts().runs_kernels());
        let is_fast = !matches!(backend, Backend::Intel | Backend::Amd);
        let measurements: [(&str, bool, &dyn Fn() -> Measured); 10] = [
            ("ways", true, &|| test_guest::ways(self, &bench)),
            ("rate/1", true, &|| test_guest::rate(self, &bench, 1)),
            ("rate/2", true, &|| test_guest::rate(self, &bench, 2)),
            ("records/1", true, &|| test_guest::records(self, &bench, 1)),
            ("records/2", true, &|| test_guest::records(self, &bench, 2)),
            ("stock", runs_stock, &|| stock::stock(self, &bench)),
            ("boot", runs_stock && is_fast, &|| boot::boot(self, &bench)),
            ("all-probed", runs_stock && is_fast, &|| {
                boot::all_probed(self, &bench)
            }),
            ("gdbstub", has_image, &|| gdbstub::gdbstub(self)),
            // Bochs would take minutes to look up all these probes.
            ("arming", has_stock && is_fast, &|| {
                arming::arming(self, &bench)
            }),
        ];
        for (name, possible, measure) in measurements {
            let mut measured = Vec::new();
            runner.case(name, || {
                if !possible {
                    return (None, "it cannot be measured here".to_owned());
                }
                let mut result = Ok(Vec::new());
                let attempted = attempt(|| result = measure());
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
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
