//! What can be known of a guest by looking at its memory.
//!
//! Everything here works on bytes: a live guest's memory or a dump of one ([`memory`]), through the
//! guest's own page tables ([`paging`]), and the kernel's file ([`image`]). From those come the
//! names of addresses ([`symbols`], filled by [`kallsyms`]), the places the kernel patches itself
//! ([`patchsites`]), how its types are laid out ([`btf`]), which modules it has loaded
//! ([`modules`]), which task a processor runs (`tasks`), how it handles breakpoints ([`int3`]), what its own probes do to its text ([`kprobes`]), how far it has moved
//! ([`kaslr`]), what an instruction does ([`insn`]), and where a jump can stand for a probe ([`optimise`]).
//!
//! A guest is hostile: no bytes of it make this crate panic, loop, or allocate without bound.

#![forbid(unsafe_code)]

mod addr;
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
pub mod optimise;
pub mod paging;
pub mod patchsites;
mod percpu;
pub mod symbols;
mod tasks;

pub use addr::{Gpa, Gva};
pub use btf::{Btf, BtfError};
pub use idt::{Gate, Idt, InterruptFrame};
pub use image::{GuestImage, ImageError, ImageSource, KernelImage, KernelLayout, NotInImage};
pub use int3::KernelInt3;
pub use kprobes::OptimisedLayout;
pub use memory::{FlatMemory, PhysMemory, Unreadable};
pub use modules::{
    Module, ModuleEvent, ModuleRegion, ModuleState, Modules, ModulesError, RegionKind,
};
pub use paging::{EntryAt, Level, PagingState, Translation, WalkFault, entry_at, read_virt, walk};
pub use patchsites::{PatchKind, PatchSite, PatchSites, PatchTime};
pub use percpu::PerCpu;
pub use symbols::{Symbol, SymbolOffset, SymbolTable, SymbolTableBuilder, glob_matches};
pub use tasks::TaskLayout;
