//! Guest memory: the RAM, and the KVM slots it is cut into.

mod ram;
mod slots;

pub(crate) use ram::Ram;
pub use ram::RamError;
pub(crate) use slots::Slots;
pub use slots::{PageRange, SlotError};
