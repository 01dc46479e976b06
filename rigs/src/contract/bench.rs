//! The test fixture of the cases: a KVM and the test guest.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use events::Summary;
use probes::Kernel;
use text::PlantByte;
use vmm::boot::KernelFile;
use vmm::{Host, HostFacts};

use super::ContractError;
use super::guest::Guest;
use crate::way::Way;

/// The machine's KVM, and the test guest.
#[derive(Debug)]
pub struct Bench {
    pub(super) host: Host,
    pub(super) facts: HostFacts,
    pub(super) file: KernelFile,
    elf: Vec<u8>,
    pub(super) words: String,
    pub(super) timeout: Duration,
}

impl Bench {
    /// Opens KVM and the test guest, and runs the self-test. No guest runs longer than `timeout`.
    ///
    /// # Errors
    ///
    /// If there is no KVM, if KVM refuses a request that every KVM must accept, or if the file is not a kernel.
    pub fn open(guest: &Path, timeout: Duration) -> Result<Self, ContractError> {
        let host = Host::open()?;
        let facts = vmm::self_test(&host)?;
        let file = KernelFile::open(guest)?;
        let elf = file.vmlinux()?.into_owned();
        // A faulty file is better reported once than by each case.
        Kernel::from_vmlinux(&*elf)?;
        Ok(Self {
            host,
            facts,
            file,
            elf,
            words: String::new(),
            timeout,
        })
    }

    /// Adds `words` to each command line of the test guest.
    #[must_use]
    pub fn with_words(mut self, words: &str) -> Self {
        words.clone_into(&mut self.words);
        self
    }

    /// The machine's KVM.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The result of the self-test.
    #[must_use]
    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// The test guest's ELF file.
    #[must_use]
    pub fn elf(&self) -> &[u8] {
        &self.elf
    }

    /// The test guest's kernel, as known before the guest runs.
    ///
    /// # Panics
    ///
    /// Never: [`open`](Self::open) has tried.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        Kernel::from_vmlinux(&*self.elf).expect("the test guest is a kernel with symbols")
    }

    /// Whether plants can exit in this way.
    #[must_use]
    pub fn delivers(&self, way: Way) -> bool {
        match way {
            Way::Byte(PlantByte::Port) => self.facts.port.is_usable(),
            Way::Byte(PlantByte::Int3) => self.facts.int3.is_usable(),
            Way::HiddenPage => true,
        }
    }
}

/// The bench for a case: the way to plant, and the number of vCPUs.
#[derive(Debug)]
pub struct Here<'a> {
    pub(super) bench: &'a Bench,
    pub(super) way: Option<Way>,
    pub(super) cpus: u8,
    done: Mutex<Vec<Done>>,
}

/// A run made by a case.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) cmdline: String,
    /// `None` until the run has ended.
    pub(super) summary: Option<Summary>,
}

impl<'a> Here<'a> {
    /// `way`: `None` leaves the choice to the engine.
    #[must_use]
    pub fn new(bench: &'a Bench, way: Option<Way>, cpus: u8) -> Self {
        Self {
            bench,
            way,
            cpus,
            done: Mutex::default(),
        }
    }

    /// The test guest with the command line `cmdline`, and a probe at the entry of every function of `functions.S`.
    #[must_use]
    pub fn guest(&self, cmdline: &str) -> Guest<'_> {
        Guest::new(self, cmdline)
    }

    /// As [`Bench::kernel`].
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        self.bench.kernel()
    }

    pub(super) fn done(&self) -> MutexGuard<'_, Vec<Done>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
