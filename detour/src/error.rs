//! The reasons for a missing copy or detour.

use text::GuestError;

use crate::place::MAX_PAGES;
use crate::processor::NotKept;

/// The reason for a missing copy or detour.
#[derive(Debug, thiserror::Error)]
pub enum DetourError {
    /// The kernel's page tables have no free entry.
    #[error("no entry of the kernel's page tables is free near its text")]
    NoPlace,
    /// The kernel's page tables cannot be followed.
    #[error("the kernel's text is not mapped")]
    NotMapped,
    /// The region has the maximum number of pages, and all are full.
    #[error(
        "the detour region is full: a guest has at most {} pages of 2 MiB for detours",
        MAX_PAGES
    )]
    Full,
    /// Probes, or their filters, have changed at the site again and again.
    #[error(
        "as many detours as one place may have were made here, and they stay until the guest ends"
    )]
    TooManyHere,
    /// The original is too far away to jump back to.
    #[error("the region is too far from the instruction")]
    TooFar,
    /// The kernel does not reveal an address that the detour needs.
    #[error(transparent)]
    NotKept(NotKept),
    /// The jump in the kernel's handler of `int3` would change the next instruction of a vCPU.
    #[error(
        "a vCPU may be between the instructions where the kernel's handler of int3 is to be led on"
    )]
    HandlerInUse,
    /// The guest has changed its page tables.
    #[error("the guest has changed an entry of its page tables that leads to the detour region")]
    Lost,
    /// Another kernel runs now.
    #[error("the kernel that the detour region was made for has handed over to another one")]
    HandedOver,
    /// An error of the machine.
    #[error(transparent)]
    Guest(#[from] GuestError),
}
