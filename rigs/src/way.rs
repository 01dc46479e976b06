//! The ways in which a plant exits.

use manifest::Stealth;
use text::PlantByte;

/// The way in which a plant exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The vCPU executes the byte.
    Byte(PlantByte),
    /// No byte changes: the vCPU cannot fetch instructions from the page.
    HiddenPage,
}

impl Way {
    /// The word in the names of cases.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Byte(PlantByte::Port) => "port",
            Self::Byte(PlantByte::Int3) => "int3",
            Self::HiddenPage => "hidden",
        }
    }

    /// The reason why a case cannot be run.
    pub(crate) fn not_delivered(self) -> String {
        let planted = match self {
            Self::Byte(PlantByte::Port) => "port writes",
            Self::Byte(PlantByte::Int3) => "int3",
            Self::HiddenPage => "fetches from hidden pages",
        };
        format!("this KVM does not hand {planted} of ring 0 to the host")
    }

    /// The byte of the plants; `None` leaves the choice to the engine.
    pub(crate) const fn byte(self) -> Option<PlantByte> {
        match self {
            Self::Byte(byte) => Some(byte),
            Self::HiddenPage => None,
        }
    }

    /// The level of the run.
    pub(crate) const fn stealth(self) -> Stealth {
        match self {
            Self::Byte(_) => Stealth::Writes,
            Self::HiddenPage => Stealth::Reads,
        }
    }
}
