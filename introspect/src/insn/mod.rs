//! Instructions: where they begin, what kind they are, and what they do.
//!
//! A probe displaces one instruction of the guest. [`decode()`] says how long it is,
//! [`check_boundary`] refuses a probe that would land inside one, [`branch_into`] and
//! [`indirect_jump`] say whether more than one instruction may be displaced, [`classify`]
//! decides how the guest gets past it, [`emulate()`] does what the instruction would have done,
//! [`relocation`] says whether a copy of it would do as well, [`is_plain`] whether it would wherever it is, and [`next_places`] where the processor can be once the
//! hardware has executed it where it is.
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
mod next;
mod plain;
mod port;
mod relocate;
mod system;

pub use boundary::{Boundaries, NotABoundary, boundaries, check_boundary};
pub use class::{Class, Reason, classify};
pub use cpu::{Access, Cpu, Fault, Features, Gpr, MOST_ACCESSED_BYTES, Segment, Vendor};
pub use decode::{DecodeError, Decoded, MAX_LENGTH_BYTES, decode};
pub use emulate::{Outcome, emulate, emulate_decoded};
pub use flow::{Branch, Step, branch_into, has_indirect_jump, indirect_jump, step};
pub use next::{Next, next_places, tables_after};
pub use plain::{is_plain, is_position_independent};
pub use port::{PortAccess, port_access};
pub use relocate::{CpuidWords, Immovable, Needs, Relocation, relocation};
pub use system::{
    CastShadow, DescriptorTable, Msr, SegmentRegister, Segments, System, SystemChanges,
};
