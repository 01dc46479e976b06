//! The controlled machine: the trait [`Target`], and the implementation [`Live`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use address::{Gpa, Gva};
use events::{ProbeId, ProbeStatus};
use inspect::stacks::StackReader;
use introspect::{Btf, SymbolTable};
use manifest::ProbeConfig;
use probes::{ArmError, At, Engine, NoStacks, ReadError, RegisterError, ResolveError};
use text::Paused;
use vmm::{Control, End, VcpuState};

/// Constant properties of a machine.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `kvm` or `nested`.
    pub accel: String,
    /// Number of vCPUs.
    pub cpus: u64,
    /// Size of RAM in bytes.
    pub memory_bytes: u64,
    /// The kernel's version line.
    pub kernel: Option<String>,
    /// The build-id of the kernel's file, in hexadecimal digits.
    pub build_id: Option<String>,
}

/// Registers the prepared probes while the guest is paused: all or none. Fails if a plant cannot be placed, or if the kernel has meanwhile
/// reported the running address, and an address is not in the kernel's code.
pub type Registration<'t> =
    Box<dyn FnOnce(&dyn Paused) -> Result<Vec<ProbeId>, RegisterError> + 't>;

/// A running guest with its probes. Only one thread makes changes; any thread may call the other methods.
pub trait Target: Send + Sync {
    /// The constant properties.
    fn facts(&self) -> &Facts;
    /// Pauses every vCPU, until the returned pause is dropped.
    fn pause(&self) -> Box<dyn Paused + '_>;
    /// Whether the machine has ended or is about to end. No thread may hold a pause then.
    fn is_ending(&self) -> bool;
    /// Ends the machine.
    fn stop(&self);

    /// Resolves new probes while the guest runs: sites, and near names for a mistake, take long to find. A mistake costs the guest
    /// nothing.
    ///
    /// # Errors
    ///
    /// If a probe specification cannot be resolved.
    fn prepare(&self, new: &[ProbeConfig]) -> Result<Registration<'_>, ResolveError>;
    /// Removes probes.
    ///
    /// # Errors
    ///
    /// If original bytes cannot be restored; then nothing has changed.
    fn unregister(&self, paused: &dyn Paused, ids: &[ProbeId]) -> Result<usize, ArmError>;
    /// Enables or disables a probe. Returns whether the probe exists.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; then nothing has changed.
    fn set_enabled(
        &self,
        paused: &dyn Paused,
        id: ProbeId,
        enabled: bool,
    ) -> Result<bool, ArmError>;
    /// Plants all enabled probes if `armed`, or else removes their plants.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; then nothing has changed.
    fn set_armed(&self, paused: &dyn Paused, armed: bool) -> Result<(), ArmError>;

    /// The last value of [`set_armed`](Self::set_armed).
    fn is_armed(&self) -> bool;

    /// Prepares the survey and the clock for [`set_optimising`](Self::set_optimising) while the guest runs.
    fn prepare_optimising(&self);

    /// Replaces plants with jumps where possible if `wanted`, or else removes all jumps.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; the remaining jumps still work.
    fn set_optimising(&self, paused: &dyn Paused, wanted: bool) -> Result<(), ArmError>;

    /// The last value of [`set_optimising`](Self::set_optimising), or the value at the start.
    fn is_optimising(&self) -> bool;
    /// The ids of all probes.
    fn ids(&self) -> Vec<ProbeId>;
    /// All probes.
    fn statuses(&self) -> Vec<ProbeStatus>;
    /// The statuses of the first `most` probes with an id in `ids`.
    fn statuses_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeStatus>;
    /// The statuses of the probe `id`; several for a pattern in a module.
    fn statuses_of(&self, id: ProbeId) -> Vec<ProbeStatus>;
    /// Reads guest memory without plants.
    ///
    /// # Errors
    ///
    /// If a part of the range cannot be read.
    fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError>;
    /// The ranges of guest RAM in ascending order; whole pages.
    fn ram(&self) -> Vec<Range<Gpa>>;
    /// The guest-physical address of an address of the kernel.
    fn translate(&self, at: Gva) -> Option<Gpa>;
    /// Whether `at` is in hyprobe's code in the guest's address space.
    fn is_in_detour(&self, at: Gva) -> bool;
    /// A reader of the stacks of the machine, which is paused with its first vCPU in the state `vcpu`.
    ///
    /// # Errors
    ///
    /// If the kernel has no tables for unwinding.
    fn stack_reader(&self, vcpu: &VcpuState) -> Result<StackReader<'_>, NoStacks>;
    /// The kernel's symbols, at the addresses where they were linked.
    fn symbols(&self) -> &SymbolTable;
    /// The kernel's types; `None` for a kernel without BTF.
    fn types(&self) -> Option<&Btf>;
    /// Distance from the kernel's linked address to the running address; `None` until the kernel has reported the running address.
    fn slide(&self) -> Option<i64>;
    /// Nanoseconds since the guest's first instruction.
    fn clock_ns(&self) -> u64;
}

/// A machine on this host's KVM.
#[derive(Debug)]
pub struct Live {
    engine: Arc<Engine>,
    control: Control,
    facts: Facts,
}

impl Live {
    /// The machine of `control`, with its engine.
    #[must_use]
    pub fn new(engine: Arc<Engine>, control: Control, accel: &str, memory_bytes: u64) -> Self {
        let facts = Facts {
            accel: accel.to_owned(),
            cpus: control.cpus() as u64,
            memory_bytes,
            kernel: engine.kernel().banner().map(str::to_owned),
            build_id: engine.kernel().build_id().map(|id| id.to_string()),
        };
        Self {
            engine,
            control,
            facts,
        }
    }
}

impl Target for Live {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn pause(&self) -> Box<dyn Paused + '_> {
        Box::new(self.control.pause_all())
    }

    fn is_ending(&self) -> bool {
        self.control.is_ending()
    }

    fn stop(&self) {
        self.control.end(End::Stopped);
    }

    fn prepare(&self, new: &[ProbeConfig]) -> Result<Registration<'_>, ResolveError> {
        let prepared = self.engine.prepare(new)?;
        Ok(Box::new(move |paused| {
            self.engine.register_prepared(paused, prepared)
        }))
    }

    fn unregister(&self, paused: &dyn Paused, ids: &[ProbeId]) -> Result<usize, ArmError> {
        self.engine.unregister(paused, ids)
    }

    fn set_enabled(
        &self,
        paused: &dyn Paused,
        id: ProbeId,
        enabled: bool,
    ) -> Result<bool, ArmError> {
        self.engine.set_enabled(paused, id, enabled)
    }

    fn set_armed(&self, paused: &dyn Paused, armed: bool) -> Result<(), ArmError> {
        self.engine.set_armed(paused, armed)
    }

    fn is_armed(&self) -> bool {
        self.engine.inventory().is_armed()
    }

    fn prepare_optimising(&self) {
        self.engine.prepare_optimising();
    }

    fn set_optimising(&self, paused: &dyn Paused, wanted: bool) -> Result<(), ArmError> {
        self.engine.set_optimising(paused, wanted)
    }

    fn is_optimising(&self) -> bool {
        self.engine.is_optimising()
    }

    fn statuses(&self) -> Vec<ProbeStatus> {
        self.engine.inventory().statuses()
    }

    fn ids(&self) -> Vec<ProbeId> {
        self.engine.inventory().ids()
    }

    fn statuses_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeStatus> {
        self.engine.inventory().statuses_among(ids, most)
    }

    fn statuses_of(&self, id: ProbeId) -> Vec<ProbeStatus> {
        self.engine.inventory().statuses_of(id)
    }

    fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError> {
        self.engine.inventory().read(at, buf)
    }

    fn ram(&self) -> Vec<Range<Gpa>> {
        self.engine.inventory().ram()
    }

    fn translate(&self, at: Gva) -> Option<Gpa> {
        self.engine.inventory().translate(at)
    }

    fn is_in_detour(&self, at: Gva) -> bool {
        self.engine.is_in_detour(at)
    }

    fn stack_reader(&self, vcpu: &VcpuState) -> Result<StackReader<'_>, NoStacks> {
        self.engine.inventory().stack_reader(vcpu)
    }

    fn symbols(&self) -> &SymbolTable {
        self.engine.kernel().symbols()
    }

    fn types(&self) -> Option<&Btf> {
        self.engine.kernel().types().ok()
    }

    fn slide(&self) -> Option<i64> {
        self.engine.inventory().slide()
    }

    fn clock_ns(&self) -> u64 {
        self.engine.inventory().clock_ns()
    }
}
