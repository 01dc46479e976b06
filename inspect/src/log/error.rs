//! Why the log could not be read.

use address::Gva;
use thiserror::Error;

use crate::NotReadable;
use crate::structs::NoType;

/// Why the log could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// The kernel has no BTF.
    #[error("the kernel has no type information (BTF), and the log is found by its types")]
    NoTypes,
    /// The types lack a part of the ring.
    #[error(transparent)]
    NoType(#[from] NoType),
    /// The ring has no name in the symbol table.
    #[error(
        "the kernel's symbol table has no `prb`, the ring of the log: kernels before 5.10 have another log"
    )]
    NoRing,
    /// A part of the ring is not in memory.
    #[error("cannot read the {what} of the log")]
    Unreadable {
        /// The part.
        what: &'static str,
        /// The failed read.
        source: NotReadable,
    },
    /// The types give elements a size that no kernel's have.
    #[error(
        "the {what} of the log take {len} bytes by the kernel's types, more than those of any log"
    )]
    LargeElements {
        /// The array.
        what: &'static str,
        /// The array's size in bytes.
        len: usize,
    },
    /// The ring's size is larger than that of any log.
    #[error("the log's ring at {at} has 2^{bits} {what}, and at most 2^{limit} are read")]
    TooLarge {
        /// The address of the `struct printk_ringbuffer`.
        at: Gva,
        /// The counted objects.
        what: &'static str,
        /// The logarithm of their number.
        bits: u64,
        /// The logarithm of the limit.
        limit: u32,
    },
}
