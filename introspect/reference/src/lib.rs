//! Processors for tests and fuzz targets of the instruction emulator.
//!
//! * [`Machine`]: a processor and memory made of arrays, which the emulator works on.
//! * [`Native`]: the host's processor, which runs the same instruction.
//! * [`generate`], [`Random`]: instructions, and states in which the host's processor can run them.
//! * [`compare`]: both processors on the same case.

pub mod compare;
mod faults;
pub mod generate;
mod machine;
mod native;
mod random;

pub use faults::HostFault;
pub use machine::{Machine, Region, assembled};
pub use native::{After, End, Native};
pub use random::Random;
