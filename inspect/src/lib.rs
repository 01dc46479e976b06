//! Answers to questions about a running or dumped kernel, from the kernel's memory, symbols and types.
//!
//! Every answer comes from reads through a [`KernelView`]. A view does not know whether the memory belongs to a running guest or to a
//! file. A running guest may change memory between two reads, and a hostile guest may write anything: every walk is bounded, and an
//! address without memory is an error of one answer.

#![forbid(unsafe_code)]

pub mod expression;
#[cfg(test)]
mod fixture;
pub mod types;
pub mod value;
mod view;

pub use view::{KernelMemory, KernelView, NotReadable};
