//! Stock Debian kernels, probed by the command, nested: the probes' counts equal the guest's own counts.
//!
//! Built with the feature `test-nested`, which promises QEMU and a network or a filled image cache.

#![cfg(feature = "test-nested")]

mod boot;
mod clocks;
mod confined;
mod counts;
mod cpus;
mod detours;
mod ends;
mod judged;
mod kaslr;
mod many;
mod modules;
mod own_kprobes;
mod remote;
mod returns;
mod syscalls;
mod tracepoints;
mod turns;
mod typed;
mod warns;
