//! Instructions: where they begin, what kind they are, and what they do.
//!
//! A probe displaces one instruction of the guest. [`decode()`] says how long it is,
//! [`check_boundary`] refuses a probe that would land inside one, [`branch_into`] and
//! [`indirect_jump`] say whether more than one instruction may be displaced, [`classify`]
//! decides how the guest gets past it, and [`emulate()`] does what the instruction would have
//! done, so that the guest neither sees a trap flag nor needs a second exit. Where it cannot, [`relocation`]
//! says whether a copy of the instruction would do as well.
//!
//! The emulator is exact or absent: what it cannot do exactly as the hardware would (a value
//! the manuals leave undefined and processors disagree on, an exception, a locked access) it
//! reports as [`Outcome::Unsupported`], with nothing changed, and the caller lets the hardware
//! do it.
//!
//! Two things of control-flow enforcement (CET) are not modelled: emulated calls and returns
//! do not touch a shadow stack, and emulated indirect branches and `endbr64` do not move the
//! tracker of indirect branches. A guest that is offered CET must have these stepped.

mod boundary;
mod class;
mod cpu;
mod decode;
mod emulate;
mod flow;
mod port;
mod relocate;

pub use boundary::{Boundaries, NotABoundary, boundaries, check_boundary};
pub use class::{Class, Hazard, Reason, classify};
pub use cpu::{Access, Cpu, Fault, Features, Gpr, Segment};
pub use decode::{DecodeError, Decoded, MAX_LENGTH_BYTES, decode};
pub use emulate::{Outcome, emulate, emulate_decoded};
pub use flow::{Branch, branch_into, has_indirect_jump, indirect_jump};
pub use port::{PortAccess, port_access};
pub use relocate::{CpuidWords, Immovable, Needs, Relocation, relocation};
