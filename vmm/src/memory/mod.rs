//! Guest memory: the RAM, the detour memory, and the KVM slots of both.

mod detour;
mod error;
mod page_range;
mod protected;
mod ram;
mod slots;

pub(crate) use detour::detour_place;
pub use detour::{DetourMemory, DetourSize};
pub use error::{DetourMapError, ProtectError, RamError, SlotError};
pub use page_range::PageRange;
pub(crate) use protected::ProtectedPages;
pub use protected::Protection;
pub(crate) use ram::Ram;
pub(crate) use slots::Slots;
