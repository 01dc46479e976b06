//! Instructions: their boundaries, their classes and their emulation.
//!
//! A probe displaces one instruction of the guest. [`decode()`] returns the instruction's length,
//! and [`check_boundary`] refuses a probe inside an instruction. [`branch_into`] and
//! [`indirect_jump`] say whether a probe may displace more than one instruction. [`classify`]
//! decides how the guest steps over the instruction, and [`emulate()`] emulates the instruction.
//! [`relocation`] says whether a copy of the instruction has the same effect, and [`is_plain`]
//! whether a copy has the same effect at any address. [`next_places`] returns the places where the
//! processor can be after the hardware has executed the original instruction. [`ends_with_call`]
//! says whether an address may be a return address. [`relative_address`] and [`relative_use`]
//! describe a RIP-relative operand in memory. [`read_operands`] returns the memory that an
//! instruction reads, and [`operand_read`] says whether the instruction also writes the memory.
//!
//! The emulator is exact or absent. If the emulator cannot match the hardware exactly (a value that
//! the manuals leave undefined and processors disagree on, an exception, a locked access), the
//! emulator returns [`Outcome::Unsupported`], with nothing changed. The caller then lets the
//! hardware run the instruction.
//!
//! The emulator does not model two parts of control-flow enforcement (CET): emulated calls and
//! returns do not touch a shadow stack, and emulated indirect branches and `endbr64` do not move
//! the tracker of indirect branches. If a guest is offered CET, the caller must step these
//! instructions.

mod boundary;
mod call;
mod class;
mod cpu;
mod decode;
mod emulate;
mod flow;
mod next;
mod operands;
mod plain;
mod port;
mod reason;
mod relative;
mod relocate;
mod system;

pub use boundary::{Boundaries, NotABoundary, boundaries, check_boundary};
pub use call::{MAX_CALL_BYTES, ends_with_call};
pub use class::{Class, classify};
pub use cpu::{Access, Cpu, Fault, Features, Gpr, MOST_ACCESSED_BYTES, Segment, Vendor};
pub use decode::{DecodeError, Decoded, MAX_LENGTH_BYTES, decode};
pub use emulate::{Outcome, emulate, emulate_decoded};
pub use flow::{Branch, Step, branch_into, has_indirect_jump, indirect_jump, step};
pub use next::{Next, next_places, tables_after};
pub use operands::{OperandRead, is_repeated, operand_read, read_operands, writes_memory};
pub use plain::{is_plain, is_position_independent};
pub use port::{PortAccess, port_access};
pub use reason::Reason;
pub use relative::{MemoryUse, relative_address, relative_use};
pub use relocate::{CpuidWords, Immovable, Needs, Relocation, relocation};
pub use system::{
    CastShadow, DescriptorTable, Msr, SegmentRegister, Segments, System, SystemChanges,
};
