//! Why a core file cannot be read.

use std::io;

use address::{Gpa, Gva};
use introspect::kallsyms::KallsymsError;
use thiserror::Error;

/// A failed read of a core file.
#[derive(Debug, Error)]
#[error("cannot read {len} bytes at byte {offset} of the file")]
pub struct DumpReadError {
    /// The place in the file.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
    /// The cause.
    pub source: io::Error,
}

/// Why a file is no dump with a kernel.
#[derive(Debug, Error)]
pub enum OpenDumpError {
    /// The system call.
    #[error(transparent)]
    Read(#[from] DumpReadError),
    /// Another kind of file.
    #[error("not an ELF core file of a 64-bit x86 machine")]
    NotACore,
    /// The headers describe more than the file has.
    #[error(
        "the file has {bytes} bytes, and its headers describe {described}: the dump is not complete"
    )]
    Truncated {
        /// The size of the file.
        bytes: u64,
        /// The end of the last part by the headers.
        described: u64,
    },
    /// More or larger parts than dumps have.
    #[error("the file has {count} {what}, more than the {limit} that hyprobe reads")]
    TooMany {
        /// The parts.
        what: &'static str,
        /// The number of parts.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// The notes contradict themselves.
    #[error("the notes of the file are damaged at their byte {at}")]
    Notes {
        /// The byte.
        at: usize,
    },
    /// The note of a vCPU is too short.
    #[error("the note with the registers of vCPU {vcpu} is too short")]
    Registers {
        /// The number of the vCPU.
        vcpu: usize,
    },
    /// The dumped kernel is not where hyprobe can find it.
    #[error("the dump has no segment for the kernel's text")]
    NoText,
    /// The kernel's place is unknown.
    #[error("the dump's note VMCOREINFO has no `KERNELOFFSET`")]
    NoOffset,
    /// The kernel's memory holds no symbols.
    #[error("cannot find the kernel's symbols in the dump")]
    Symbols(#[from] KallsymsError),
    /// The symbols contradict the segment of the text.
    #[error(
        "the kernel's symbols place `_text` at {symbol}, and the dump has the kernel's text at {segment}"
    )]
    OtherKernel {
        /// The symbol's address.
        symbol: Gva,
        /// The segment's address.
        segment: Gva,
    },
    /// The kernel's page tables do not map the kernel.
    #[error("the kernel's page tables do not map its text at {at} to {gpa}")]
    PageTables {
        /// The address of the text.
        at: Gva,
        /// The guest-physical address of the text.
        gpa: Gpa,
    },
    /// The symbols lack the page tables.
    #[error("the kernel's symbol table has no `{0}`")]
    NoSymbol(&'static str),
}

impl OpenDumpError {
    /// Advice for the user.
    #[must_use]
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::NotACore => Some("`hyprobe dump FILE` writes such a file"),
            Self::Truncated { .. } => Some("take the dump again, and copy it with all its bytes"),
            Self::NoText | Self::NoOffset => {
                Some("the kernel had not reported its running address yet: take the dump later")
            }
            _ => None,
        }
    }
}
