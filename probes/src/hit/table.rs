//! What is planted, as the vCPUs look it up: never changed, only replaced.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use introspect::{Gpa, Gva};

use crate::plant::Planter;
use crate::registry::Probe;

/// One planted place, and everybody who wants to know of it.
#[derive(Debug)]
pub(crate) struct Plant {
    /// Address in the kernel's own mapping.
    pub(crate) at: Gva,
    pub(crate) gpa: Gpa,
    /// Calls that are followed return here.
    pub(crate) returns: bool,
    /// In the order of their registration, with the address that each is about.
    pub(crate) probes: Vec<(Arc<Probe>, Gva)>,
    /// The guest's own instruction here; `None` if its bytes are none. Replaced when the guest rewrites it.
    displaced: Arc<ArcSwapOption<Decoded>>,
}

impl Plant {
    pub(crate) fn new(at: Gva, gpa: Gpa) -> Self {
        Self {
            at,
            gpa,
            returns: false,
            probes: Vec::new(),
            displaced: Arc::default(),
        }
    }

    /// The same place, of interest to nobody yet.
    pub(crate) fn emptied(&self) -> Self {
        Self {
            displaced: Arc::clone(&self.displaced),
            ..Self::new(self.at, self.gpa)
        }
    }

    /// Looks at the guest's own bytes again.
    pub(crate) fn refresh(&self, planter: &Planter) {
        self.displaced
            .store(own_instruction(planter, self.gpa, self.at).map(Arc::new));
    }

    /// The instruction that the plant displaced, decoded for the address that it is executed at: its own, but for
    /// the first code of a boot, which runs where it is loaded.
    pub(crate) fn displaced(&self, planter: &Planter, rip: Gva) -> Option<Decoded> {
        if rip == self.at {
            self.displaced.load().as_deref().copied()
        } else {
            own_instruction(planter, self.gpa, rip)
        }
    }
}

/// The guest's own instruction at `gpa`, decoded for `at`. The kernel's text is contiguous in physical memory.
pub(crate) fn own_instruction(planter: &Planter, gpa: Gpa, at: Gva) -> Option<Decoded> {
    let mut bytes = [0; MAX_LENGTH_BYTES];
    if planter.read_own(gpa, &mut bytes).is_err() {
        // At the end of memory.
        let fits = usize::try_from(0x1000 - gpa.page_offset())
            .unwrap_or(0)
            .min(bytes.len());
        planter.read_own(gpa, &mut bytes[..fits]).ok()?;
    }
    decode(&bytes, at).ok()
}

/// All plants.
#[derive(Debug)]
pub(crate) struct Table {
    by_address: HashMap<u64, Arc<Plant>>,
    by_gpa: HashMap<u64, Arc<Plant>>,
    /// For each offset in a page whether any plant has it: most port writes of the guest's own are told apart by it.
    offsets: [u64; 64],
    /// What the debug registers are used for.
    pub(crate) debug: DebugRegisters,
}

/// The use of a debug register.
#[derive(Clone, Debug)]
pub(crate) enum DebugUse {
    /// A place where nothing can be planted.
    Only(Arc<Plant>),
    /// A plant that is withdrawn until it is next executed.
    StandIn(Arc<Plant>),
}

impl DebugUse {
    pub(crate) fn plant(&self) -> &Arc<Plant> {
        match self {
            Self::Only(plant) | Self::StandIn(plant) => plant,
        }
    }
}

/// DR0 to DR3.
pub(crate) type DebugRegisters = [Option<DebugUse>; 4];

impl Default for Table {
    fn default() -> Self {
        Self::new(std::iter::empty(), [const { None }; 4])
    }
}

impl Table {
    pub(crate) fn new(plants: impl Iterator<Item = Arc<Plant>>, debug: DebugRegisters) -> Self {
        let mut table = Self {
            by_address: HashMap::new(),
            by_gpa: HashMap::new(),
            offsets: [0; 64],
            debug,
        };
        for plant in plants {
            let (word, bit) = offset_bit(plant.at);
            table.offsets[word] |= bit;
            table.by_address.insert(plant.at.0, Arc::clone(&plant));
            table.by_gpa.insert(plant.gpa.0, plant);
        }
        table
    }

    pub(crate) fn plants(&self) -> impl Iterator<Item = &Arc<Plant>> {
        self.by_address.values()
    }

    /// Whether a plant may be executed at `rip`, by whatever mapping.
    pub(crate) fn may_hold(&self, rip: Gva) -> bool {
        let (word, bit) = offset_bit(rip);
        self.offsets[word] & bit != 0
    }

    pub(crate) fn at(&self, rip: Gva) -> Option<&Arc<Plant>> {
        self.by_address.get(&rip.0)
    }

    pub(crate) fn at_gpa(&self, gpa: Gpa) -> Option<&Arc<Plant>> {
        self.by_gpa.get(&gpa.0)
    }

    /// The plants whose instruction may have bytes in `len` bytes from `gpa` on.
    pub(crate) fn touched(&self, gpa: Gpa, len: usize) -> impl Iterator<Item = &Arc<Plant>> {
        let first = gpa.0.saturating_sub(MAX_LENGTH_BYTES as u64 - 1);
        (first..gpa.0.saturating_add(len as u64)).filter_map(|at| self.by_gpa.get(&at))
    }
}

fn offset_bit(at: Gva) -> (usize, u64) {
    let offset = at.page_offset();
    (
        usize::try_from(offset / 64).unwrap_or(0),
        1 << (offset % 64),
    )
}
