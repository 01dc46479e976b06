//! Introspection of a guest by reading guest memory.
//!
//! Everything here works on bytes: a live guest's memory or a memory dump ([`memory`]), through the
//! guest's own page tables ([`paging`]), and the kernel's file ([`image`]). From the bytes come the
//! names of addresses ([`symbols`], filled by [`kallsyms`]), the kernel's patch sites
//! ([`patchsites`]), the layout of kernel types ([`btf`]), the arguments of functions
//! ([`signature`]), of system calls ([`syscalls`]) and of tracepoints ([`tracepoints`]), the loaded
//! modules ([`modules`]), a
//! processor's current task ([`tasks`]), the kernel's breakpoint handler ([`int3`]), the changes of
//! the kernel's own probes to the text ([`kprobes`]), the KASLR slide ([`kaslr`]), the effects of
//! an instruction ([`insn`]), the kernel's stacks ([`orc`]), and the addresses where a jump can serve as a probe ([`optimise`]).
//!
//! A guest is hostile: no guest bytes make the crate panic, loop, or allocate without bound.

#![forbid(unsafe_code)]

pub mod btf;
pub mod idt;
pub mod image;
pub mod insn;
pub mod int3;
pub mod kallsyms;
pub mod kaslr;
pub mod kprobes;
pub mod memory;
pub mod modules;
pub mod operand;
pub mod optimise;
pub mod orc;
pub mod paging;
pub mod patchsites;
mod percpu;
pub mod signature;
pub mod symbols;
pub mod syscalls;
pub mod tasks;
pub mod tracepoints;

pub use btf::{Btf, BtfError};
pub use idt::{Gate, Idt, InterruptFrame};
pub use image::{
    BuildId, GuestImage, ImageError, ImageSource, KernelImage, KernelLayout, NotInImage,
};
pub use int3::KernelInt3;
pub use kprobes::OptimisedLayout;
pub use memory::{FlatMemory, PhysMemory, Unreadable};
pub use modules::{
    Module, ModuleEvent, ModuleRegion, ModuleState, ModuleTypes, ModuleTypesError, ModuleUsage,
    Modules, ModulesError, RegionKind,
};
pub use paging::{
    EntryAt, Level, PagingState, Translation, WalkFault, Walks, entry_at, read_virt, walk,
};
pub use patchsites::{PatchKind, PatchSite, PatchSites, PatchTime};
pub use percpu::PerCpu;
pub use signature::Signature;
pub use symbols::{
    Symbol, SymbolOffset, SymbolTable, SymbolTableBuilder, glob_matches, nearest_names,
};
pub use syscalls::Syscalls;
pub use tasks::TaskLayout;
pub use tracepoints::Tracepoints;
