//! The uses of the processor's four debug registers.

use std::sync::Arc;

use address::{Gpa, Gva};
use events::ProbeId;
use vmm::{BreakpointBytes, HardwareBreakpoint};

use crate::plant::Plant;

/// The use of a debug register.
#[derive(Clone, Debug)]
pub(crate) enum DebugUse {
    /// A site without a plant, because none is possible there.
    Only(Arc<Plant>),
    /// A plant withdrawn until the next execution.
    StandIn(Arc<Plant>),
    /// Watched data.
    Data(DataRegister),
}

/// The debug register of the watchpoints at a word.
#[derive(Clone, Debug)]
pub(crate) struct DataRegister {
    pub(crate) at: Gva,
    pub(crate) bytes: BreakpointBytes,
    /// The guest-physical address of the word.
    pub(crate) gpa: Gpa,
    /// In the order of registration.
    pub(crate) watchpoints: Vec<ProbeId>,
}

impl DataRegister {
    /// Whether the register has the same bytes.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        (self.at, self.bytes, self.gpa) == (other.at, other.bytes, other.gpa)
    }

    /// Whether the registers have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let end = |register: &Self| register.at.0.saturating_add(register.bytes.count());
        self.at.0 < end(other) && other.at.0 < end(self)
    }
}

impl DebugUse {
    /// The plant of an instruction.
    pub(crate) fn plant(&self) -> Option<&Arc<Plant>> {
        match self {
            Self::Only(plant) | Self::StandIn(plant) => Some(plant),
            Self::Data(_) => None,
        }
    }

    /// Whether the register has the same watched word.
    fn is_of_same_data(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Data(one), Self::Data(other)) if one.is_of_same(other))
    }

    /// The condition of the register.
    pub(crate) fn condition(&self) -> HardwareBreakpoint {
        match self {
            Self::Only(plant) | Self::StandIn(plant) => HardwareBreakpoint::Execute(plant.at),
            Self::Data(data) => HardwareBreakpoint::Write(data.at, data.bytes),
        }
    }
}

/// DR0 to DR3.
pub(crate) type DebugRegisters = [Option<DebugUse>; 4];

/// Gives `uses`, at most four, registers in their order. Watched data that has had a register `before` keeps the register: a
/// vCPU that runs alone has the former ones in force. Those of instructions are in order of age.
pub(crate) fn assign_registers(
    uses: impl IntoIterator<Item = DebugUse>,
    before: &DebugRegisters,
) -> DebugRegisters {
    let mut first: Vec<DebugUse> = uses.into_iter().collect();
    let mut registers = before.each_ref().map(|used| {
        let used = used.as_ref()?;
        let kept = first.iter().position(|other| other.is_of_same_data(used))?;
        Some(first.remove(kept))
    });
    let mut others = first.into_iter();
    for register in registers.iter_mut().filter(|register| register.is_none()) {
        *register = others.next();
    }
    registers
}
