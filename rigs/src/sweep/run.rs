//! A sweep of a kernel in a mode, beside KVM.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use probes::Kernel;
use text::PlantByte;
use thiserror::Error;
use vmm::boot::{BootMethod, KernelError, KernelFile};
use vmm::{Host, HostFacts};

use super::batches;
use super::boot::{Guest, Limits};
use super::function::{Functions, Selection};
use super::judge::{self, Baseline};
use super::known::{Known, Printing, millis};
use super::mode::{Configuration, Mode};
use super::outcome::Finding;
use super::program;
use super::step::{Plan, Step, Sum};
use crate::line::{self, Backend, Line, print};

/// The limits of the boot without probes, on every KVM.
const BASELINE: Limits = Limits {
    total: Duration::from_secs(1200),
    silence: Duration::from_secs(600),
};

/// The reason why a sweep has no result.
#[derive(Debug, Error)]
pub enum SweepError {
    /// No KVM.
    #[error(transparent)]
    Open(#[from] vmm::OpenError),
    /// KVM refuses a request that every KVM must accept.
    #[error(transparent)]
    SelfTest(#[from] vmm::SelfTestError),
    /// The kernel's file cannot be used.
    #[error(transparent)]
    File(#[from] KernelError),
    /// The kernel cannot be parsed.
    #[error(transparent)]
    Kernel(#[from] probes::KernelError),
    /// A file cannot be read, or a line cannot be printed.
    #[error("cannot read a file of the sweep, or print a line")]
    Io(#[from] io::Error),
    /// The guest fails without probes, so boots with probes cannot be judged.
    #[error("no baseline: {0}")]
    Baseline(String),
    /// The lines to continue from belong to another sweep.
    #[error(
        "the lines of the earlier launch are of another build, another guest or other functions: sweep again without --resume"
    )]
    OtherPlan,
    /// No function can be found.
    #[error("cannot list the kernel's functions: {0}")]
    Functions(String),
}

/// The input of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct Sweep<'a> {
    /// The KVM's name for the lines.
    pub backend: Backend,
    /// The guest's kernel, unpacked.
    pub kernel: &'a Path,
    /// The packed kernel, for a guest that unpacks itself.
    pub packed: Option<&'a Path>,
    /// The guest's initramfs, whose init is the workload.
    pub initrd: &'a Path,
    /// The lines of an earlier launch.
    pub known: Option<&'a Path>,
    /// How the functions are probed.
    pub mode: Mode,
    /// The number of vCPUs; the mode's default if `None`.
    pub cpus: Option<u8>,
    /// The seed for the order of functions and the choice of instructions.
    pub seed: u64,
    /// The hash of the program, for the plan.
    pub program: &'a str,
    /// The maximum number of functions in a batch.
    pub batch: usize,
    /// The number of functions to sweep; all if `None`.
    pub sample: Option<usize>,
    /// The names of functions to sweep first.
    pub with: &'a [String],
    /// Whether only the functions of `with` are swept.
    pub only_with: bool,
}

impl Sweep<'_> {
    /// Sweeps, and prints each step. Returns the number of harmful findings.
    ///
    /// # Errors
    ///
    /// See [`SweepError`]; a harmed guest is not an error.
    pub fn run(&self, output: &mut dyn Write) -> Result<usize, SweepError> {
        let backend = self.backend;
        let began = Instant::now();
        let host = Host::open()?;
        let facts = vmm::self_test(&host)?;
        let host_line = Line::Host {
            backend,
            facts: format!("{facts:?}"),
            took_ms: line::millis(began),
        };
        print(output, &host_line)?;
        let configuration = Configuration {
            cpus: self.cpus.unwrap_or(self.mode.cpus()),
            ..self.mode.configuration()
        };
        let path = match (configuration.method, self.packed) {
            (BootMethod::BzImage, Some(packed)) => packed,
            _ => self.kernel,
        };
        let file = KernelFile::open(path)?;
        let vmlinux = std::fs::read(self.kernel)?;
        let initrd = std::fs::read(self.initrd)?;
        let selection = Selection {
            seed: self.seed,
            sample: self.sample,
            with: self.with,
            only_with: self.only_with,
        };
        let kernel = Kernel::from_vmlinux(&*vmlinux)?;
        let functions = Functions::of(&kernel, configuration, &selection);
        let functions = functions.map_err(SweepError::Functions)?;
        // Each boot gets a copy: reading the tables costs as much as a boot, under emulation.
        let _ = kernel.survey();
        let batches = functions.batches(self.batch);
        let plan = Plan {
            mode: self.mode,
            cpus: configuration.cpus,
            seed: self.seed,
            batch: self.batch,
            functions: functions.len(),
            of: functions.of,
            batches: batches.len(),
            refused: functions.refused.clone(),
            program: self.program.to_owned(),
            guest: program::hash([functions.specifications().as_bytes(), &vmlinux, &initrd]),
        };
        let known = match self.known {
            Some(path) => Known::from_lines(&std::fs::read_to_string(path)?, &plan),
            None => Some(Known::default()),
        };
        let known = known.ok_or(SweepError::OtherPlan)?;
        print(output, &Line::Sweep(Step::Plan(plan)))?;
        let guest = Guest {
            host: &host,
            facts,
            file: &file,
            vmlinux: &vmlinux,
            kernel: &kernel,
            initrd: &initrd,
            configuration,
        };
        let (cases, failed) = match cannot(configuration, &facts) {
            Some(reason) => {
                print(output, &Line::Sweep(Step::Cannot { reason }))?;
                (0, 0)
            }
            None => {
                let ran = guest.boot(&[], BASELINE);
                let baseline = Baseline::of(&ran).map_err(SweepError::Baseline)?;
                let step = Step::Baseline {
                    took_ms: millis(ran.took),
                    limit_ms: millis(baseline.limits.total),
                    silence_ms: millis(baseline.limits.silence),
                };
                print(output, &Line::Sweep(step))?;
                let mut boots = Printing {
                    guest: &guest,
                    functions: &functions,
                    baseline: &baseline,
                    known,
                    output: &mut *output,
                };
                let sum = sweep_all(&mut boots, &batches)?;
                let harms = sum
                    .findings
                    .iter()
                    .filter(|found| found.kind.is_harm())
                    .count();
                print(output, &Line::Sweep(Step::Sum(sum)))?;
                (batches.len(), harms)
            }
        };
        let end = Line::End {
            backend,
            cases,
            failed,
        };
        print(output, &end)?;
        Ok(failed)
    }
}

/// The reason why this KVM cannot run the mode, if any.
fn cannot(configuration: Configuration, facts: &HostFacts) -> Option<String> {
    let delivers = match configuration.plant {
        Some(PlantByte::Int3) => facts.int3.is_usable(),
        Some(PlantByte::Port) => facts.port.is_usable(),
        None => true,
    };
    if !delivers {
        return Some("this KVM does not report the guest's int3 to the host".to_owned());
    }
    let moves = configuration.method == BootMethod::BzImage;
    (moves && !facts.msr_exits).then(|| {
        "this KVM does not report MSR writes, so that a kernel that moves is not found".to_owned()
    })
}

fn sweep_all(
    boots: &mut Printing<'_>,
    batches: &[Vec<super::outcome::FunctionId>],
) -> io::Result<Sum> {
    let mut sum = Sum {
        tally: judge::refused(&boots.functions.refused),
        ..Sum::default()
    };
    for (index, batch) in batches.iter().enumerate() {
        let swept = batches::sweep(boots, batch)?;
        sum.tally.add(&swept.tally);
        for culprit in swept.culprits {
            let found = Finding {
                kind: culprit.kind,
                functions: culprit
                    .functions
                    .iter()
                    .map(|id| boots.functions.name(*id))
                    .collect(),
                reason: culprit.reason,
            };
            print(boots.output, &Line::Sweep(Step::Found(found.clone())))?;
            sum.findings.push(found);
        }
        let step = Step::Batch {
            number: index + 1,
            of: batches.len(),
        };
        print(boots.output, &Line::Sweep(step))?;
    }
    sum.boots = boots.known.boots;
    sum.repeats = boots.known.repeats;
    sum.restarts = boots.known.restarts;
    Ok(sum)
}
