//! Plants: bytes in guest memory. The engine decides which bytes to plant, and why.
//!
//! A *plant* is one byte of guest memory that hyprobe has replaced. Every page with a plant has a copy of its original bytes, and is
//! read-only for the guest. A guest write to the page is merged: the write changes the original bytes, and the plants stay on top. Where a
//! probe is optimised, a *jump* lies over the plant, or in front of it.

mod alone;
mod loose_stops;
mod page;
mod page_copies;
mod planter;
mod rewritten_jumps;
mod spot;
#[cfg(test)]
mod tests;

pub use alone::ShownAlone;
pub use page::Jump;
pub use page_copies::PageCopies;
pub use planter::{Own, PlantError, Planter, Written};
pub use rewritten_jumps::RewrittenJumps;
pub use spot::Spot;

/// The byte of a plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantByte {
    /// `out dx, al`: exits wherever ring 0 can do port I/O, with any value of DX, since KVM answers no port.
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
