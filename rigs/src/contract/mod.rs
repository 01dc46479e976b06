//! The engine on this machine's KVM, case by case, with the test guest.
//!
//! A case is a command line of the test guest, the byte that is planted, and a number of vCPUs. The guest checks itself
//! and counts what it calls; the probes must have counted the same.

mod cases;
mod flow;
mod generated;
mod run;

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use probes::PlantByte;
use thiserror::Error;
use vmm::boot::{KernelError, KernelFile};
use vmm::{Host, HostFacts};

use crate::line::{Backend, Case, Line};

use cases::{CASES, CaseSpec, Probed};
use run::Guest;

/// Why there is nothing to say about any case.
#[derive(Debug, Error)]
pub enum ContractError {
    /// No KVM.
    #[error(transparent)]
    Open(#[from] vmm::OpenError),
    /// A KVM that refuses what every KVM must do.
    #[error(transparent)]
    SelfTest(#[from] vmm::SelfTestError),
    /// The test guest's file cannot be used.
    #[error(transparent)]
    File(#[from] KernelError),
    /// The test guest has no symbols.
    #[error(transparent)]
    Symbols(#[from] probes::KernelError),
    /// A line could not be printed.
    #[error("cannot print a line")]
    Print(#[from] io::Error),
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Contract<'a> {
    /// What the lines say of where this is.
    pub backend: Backend,
    /// The test guest, an ELF file.
    pub guest: &'a Path,
    /// Only cases whose name contains this.
    pub only: &'a str,
    /// Functions that are left unprobed, and kinds of generated snippets that are not run.
    pub without: &'a [String],
    /// Cases whose name contains the first cannot be run here, for the second as reason.
    pub cannot: &'a [(String, String)],
    /// Number of snippets in the cases called `generated`.
    pub generated: u64,
    /// Says which snippets.
    pub seed: u64,
    /// Each case is given so long.
    pub timeout: Duration,
}

impl Contract<'_> {
    /// Runs the cases and prints a line for each. Returns how many failed.
    ///
    /// # Errors
    ///
    /// See [`ContractError`]; a case that fails is none.
    pub fn run(&self, output: &mut dyn Write) -> Result<usize, ContractError> {
        let backend = self.backend;
        let began = Instant::now();
        let host = Host::open()?;
        let facts = vmm::self_test(&host)?;
        let line = Line::Host {
            backend,
            facts: format!("{facts:?}"),
            took_ms: millis(began),
        };
        print(output, &line)?;
        let file = KernelFile::open(self.guest)?;
        let guest = Guest::new(&host, facts, &file, self)?;
        let (mut cases, mut failed) = (0, 0);
        for case in &CASES {
            for &plant in case.plants() {
                for &cpus in case.cpus {
                    let name = format!("{}/{}/{cpus}", case.name, word(plant));
                    if !name.contains(self.only) {
                        continue;
                    }
                    let began = Instant::now();
                    let cannot = self.cannot.iter().find(|(part, _)| name.contains(part));
                    let (ok, detail) = match cannot {
                        Some((_, reason)) => (None, reason.clone()),
                        None => try_case(&guest, &facts, case, plant, cpus),
                    };
                    cases += 1;
                    failed += usize::from(ok == Some(false));
                    let took_ms = millis(began);
                    let case = Case {
                        backend,
                        case: name,
                        ok,
                        detail,
                        took_ms,
                    };
                    print(output, &Line::Case(case))?;
                }
            }
        }
        for case in generated::CASES {
            if case.name().contains(self.only) {
                let began = Instant::now();
                let (ok, detail) = case.run(&host, facts, file.bytes(), self);
                cases += 1;
                failed += usize::from(ok == Some(false));
                let case = Case {
                    backend,
                    case: case.name(),
                    ok,
                    detail,
                    took_ms: millis(began),
                };
                print(output, &Line::Case(case))?;
            }
        }
        print(
            output,
            &Line::End {
                backend,
                cases,
                failed,
            },
        )?;
        Ok(failed)
    }
}

fn print(output: &mut dyn Write, line: &Line) -> io::Result<()> {
    writeln!(output, "{}", serde_json::to_string(line)?)?;
    output.flush()
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A case that fails where the guest fares no better without probes says nothing about them.
fn try_case(
    guest: &Guest<'_>,
    facts: &HostFacts,
    case: &CaseSpec,
    plant: Option<PlantByte>,
    cpus: u8,
) -> (Option<bool>, String) {
    if !plant.is_none_or(|plant| delivers(facts, plant)) {
        return (None, "this KVM does not deliver the trap".to_owned());
    }
    match guest.run(case, plant, cpus) {
        Ok(detail) => (Some(true), detail),
        Err(detail) if case.probed == Probed::Nothing => (Some(false), detail),
        Err(detail) => match guest.run(&case.unprobed(), None, cpus) {
            Ok(_) => (Some(false), detail),
            Err(without) => (None, format!("fails without probes too: {without}")),
        },
    }
}

fn word(plant: Option<PlantByte>) -> &'static str {
    match plant {
        Some(PlantByte::Port) => "port",
        Some(PlantByte::Int3) => "int3",
        None => "none",
    }
}

fn delivers(facts: &HostFacts, plant: PlantByte) -> bool {
    match plant {
        PlantByte::Port => facts.port.is_usable(),
        PlantByte::Int3 => facts.int3.is_usable(),
    }
}
