//! The engine on the machine's KVM with a busy guest: a stock kernel whose processes report how many calls they made.
//!
//! A case drives the engine through its programming interface while the guest runs: the case reads the counters, and enables, disables,
//! registers and removes probes. The probes must have counted the calls that the guest reports.

pub(crate) mod counting;
pub(crate) mod guest;
mod hot;
mod pauses;
mod program;
pub(crate) mod random;
mod returns;
pub(crate) mod second;
mod soak;
mod text;

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use thiserror::Error;
use vmm::Host;
use vmm::boot::{KernelError, KernelFile};

use crate::line::Backend;
use crate::runner::{Runner, verdict};

pub use hot::Heat;
pub use program::Cycles;
pub use soak::Soak;

use guest::Guest;

/// The names of the cases, in the order in which they are run.
pub(crate) const NAMES: [&str; 5] = ["returns", "pauses", "program", "soak", "hot"];

/// An error that prevents all cases.
#[derive(Debug, Error)]
pub enum BusyError {
    /// No KVM.
    #[error(transparent)]
    Open(#[from] vmm::OpenError),
    /// KVM refuses a request that every KVM must accept.
    #[error(transparent)]
    SelfTest(#[from] vmm::SelfTestError),
    /// The kernel's file cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The initramfs cannot be read, or a line could not be printed.
    #[error("cannot read the guest's initramfs, or print a line")]
    File(#[from] io::Error),
}

/// The cases to run.
#[derive(Clone, Copy, Debug)]
pub struct Busy<'a> {
    /// The kind of KVM, for the lines.
    pub backend: Backend,
    /// The guest's kernel.
    pub kernel: &'a Path,
    /// The guest's initramfs, with the workload as init.
    pub initrd: &'a Path,
    /// Only cases with this text in the name, or with one of several texts, separated by commas.
    pub only: &'a str,
    /// vCPUs of the guest.
    pub cpus: u8,
    /// How often a probe in the program comes and goes.
    pub cycles: Cycles,
    /// How to soak.
    pub soak: Soak,
    /// How to switch the probes of hot functions.
    pub heat: Heat,
}

impl Busy<'_> {
    /// Runs the cases and prints a line for each. Returns how many failed.
    ///
    /// # Errors
    ///
    /// See [`BusyError`]; a failed case is not an error.
    pub fn run(&self, output: &mut dyn Write) -> Result<usize, BusyError> {
        let began = Instant::now();
        let host = Host::open()?;
        let facts = vmm::self_test(&host)?;
        let mut runner = Runner::begin(self.backend, self.only, &facts, began, output)?;
        let file = KernelFile::open(self.kernel)?;
        let vmlinux = file.vmlinux()?;
        let initrd = std::fs::read(self.initrd)?;
        let guest = Guest {
            host: &host,
            facts,
            file: &file,
            vmlinux: &vmlinux,
            initrd: &initrd,
            cpus: self.cpus,
            memory_bytes: guest::MEMORY_BYTES,
        };
        for name in NAMES {
            runner.case(name, || {
                verdict(match name {
                    "returns" => returns::run(&guest),
                    "pauses" => pauses::run(&guest),
                    "program" => program::run(&guest, self.cycles),
                    "soak" => soak::run(&guest, self.soak),
                    _ => hot::run(&guest, self.heat),
                })
            })?;
        }
        Ok(runner.end()?)
    }
}
