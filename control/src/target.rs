//! What is controlled, as this crate needs it.

use std::collections::BTreeSet;
use std::sync::Arc;

use introspect::SymbolTable;
use probes::{
    ArmError, At, Engine, NewProbe, Paused, ProbeId, ProbeRecord, ReadError, RegisterError,
    ResolveError,
};
use vmm::{Control, End};

/// What does not change about a machine.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `kvm` or `nested`.
    pub accel: String,
    /// Number of vCPUs.
    pub cpus: u64,
    /// RAM.
    pub memory_bytes: u64,
    /// The kernel's version line.
    pub kernel: Option<String>,
}

/// Registers what has been prepared, while the guest is paused: all of it or nothing. An error says that it cannot be
/// planted, or cannot be meant now that the kernel has said where it runs.
pub type Registration<'t> =
    Box<dyn FnOnce(&dyn Paused) -> Result<Vec<ProbeId>, RegisterError> + 't>;

/// A running guest with its probes. Changes are made by one thread; everything else may be asked by any.
pub trait Target: Send + Sync {
    /// What does not change.
    fn facts(&self) -> &Facts;
    /// Pauses every vCPU, until the answer is dropped.
    fn pause(&self) -> Box<dyn Paused + '_>;
    /// Whether the machine has ended or is about to; nobody may hold a pause then.
    fn is_ending(&self) -> bool;
    /// Ends the machine.
    fn stop(&self);

    /// Looks up what is to be registered. The guest runs on meanwhile: a mistake costs it nothing, and finding places,
    /// and the names that may have been meant, takes long.
    ///
    /// # Errors
    ///
    /// When one cannot be meant.
    fn prepare(&self, new: &[NewProbe]) -> Result<Registration<'_>, ResolveError>;
    /// Removes probes.
    ///
    /// # Errors
    ///
    /// When bytes cannot be put back; then nothing has changed.
    fn unregister(&self, paused: &dyn Paused, ids: &[ProbeId]) -> Result<usize, ArmError>;
    /// Enables or disables a probe; tells whether there is one.
    ///
    /// # Errors
    ///
    /// When bytes cannot be changed; then nothing has changed.
    fn set_enabled(
        &self,
        paused: &dyn Paused,
        id: ProbeId,
        enabled: bool,
    ) -> Result<bool, ArmError>;
    /// Plants all enabled probes, or none.
    ///
    /// # Errors
    ///
    /// When bytes cannot be changed; then nothing has changed.
    fn set_armed(&self, paused: &dyn Paused, armed: bool) -> Result<(), ArmError>;

    /// What was last set with [`set_armed`](Self::set_armed).
    fn is_armed(&self) -> bool;

    /// Finds out what [`set_optimising`](Self::set_optimising) needs to know, while the guest runs.
    fn prepare_optimising(&self);

    /// Lets jumps stand for plants where they can, or takes them all away.
    ///
    /// # Errors
    ///
    /// When bytes cannot be changed; the jumps that are left work on.
    fn set_optimising(&self, paused: &dyn Paused, wanted: bool) -> Result<(), ArmError>;

    /// What was last set with [`set_optimising`](Self::set_optimising), or at the start.
    fn is_optimising(&self) -> bool;
    /// The ids of all probes.
    fn ids(&self) -> Vec<ProbeId>;
    /// All probes.
    fn records(&self) -> Vec<ProbeRecord>;
    /// The first `most` of the probes with these ids.
    fn records_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeRecord>;
    /// The probe called `id`; several for a pattern in a module.
    fn records_of(&self, id: ProbeId) -> Vec<ProbeRecord>;
    /// Reads guest memory without plants.
    ///
    /// # Errors
    ///
    /// When some of it cannot be read.
    fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError>;
    /// The kernel's symbols, at the addresses where they were linked.
    fn symbols(&self) -> &SymbolTable;
    /// How far the kernel has moved, once it has said so.
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
    /// The machine that `control` is of, with its engine.
    #[must_use]
    pub fn new(engine: Arc<Engine>, control: Control, accel: &str, memory_bytes: u64) -> Self {
        let facts = Facts {
            accel: accel.to_owned(),
            cpus: control.cpus() as u64,
            memory_bytes,
            kernel: engine.kernel().banner().map(str::to_owned),
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

    fn prepare(&self, new: &[NewProbe]) -> Result<Registration<'_>, ResolveError> {
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
        self.engine.is_armed()
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

    fn records(&self) -> Vec<ProbeRecord> {
        self.engine.records()
    }

    fn ids(&self) -> Vec<ProbeId> {
        self.engine.ids()
    }

    fn records_among(&self, ids: &BTreeSet<ProbeId>, most: usize) -> Vec<ProbeRecord> {
        self.engine.records_among(ids, most)
    }

    fn records_of(&self, id: ProbeId) -> Vec<ProbeRecord> {
        self.engine.records_of(id)
    }

    fn read(&self, at: At, buf: &mut [u8]) -> Result<(), ReadError> {
        self.engine.read(at, buf)
    }

    fn symbols(&self) -> &SymbolTable {
        self.engine.kernel().symbols()
    }

    fn slide(&self) -> Option<i64> {
        self.engine.slide()
    }

    fn clock_ns(&self) -> u64 {
        self.engine.clock_ns()
    }
}
