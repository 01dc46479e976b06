//! Mechanism: bytes in guest memory. Which bytes, and why, is the engine's business.
//!
//! A *plant* is one byte of guest memory that hyprobe has replaced. Every page with a plant has the guest's own bytes
//! kept beside it and is read-only for the guest, so that whatever the guest writes there is merged: it changes the
//! guest's own bytes, and the plants stay on top. Where a probe is optimised, a *jump* lies over its plant, or in front
//! of it.

mod alone;
mod page;
mod planter;
mod spot;
#[cfg(test)]
mod tests;

pub(crate) use page::Jump;
pub(crate) use planter::{PlantError, Planter, Written};
pub(crate) use spot::Spot;

/// The byte that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantByte {
    /// `out dx, al`: exits wherever ring 0 can do port I/O, whatever DX holds, since KVM answers no port itself.
    Port,
    /// `int3`: exits where KVM intercepts #BP.
    Int3,
}

impl PlantByte {
    /// The opcode.
    #[must_use]
    pub const fn value(self) -> u8 {
        match self {
            Self::Port => 0xee,
            Self::Int3 => 0xcc,
        }
    }
}
