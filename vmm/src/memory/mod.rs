//! Guest memory: the RAM, the detour memory, and the KVM slots of both.

mod detour;
mod ram;
mod slots;

pub(crate) use detour::detour_place;
pub use detour::{DetourMapError, DetourMemory, DetourSize};
pub(crate) use ram::Ram;
pub use ram::RamError;
pub(crate) use slots::Slots;
pub use slots::{PageRange, SlotError};
