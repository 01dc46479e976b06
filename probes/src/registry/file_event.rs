//! The kernel events of files: a program maps a file, and pages come into the memory of a file.

use introspect::Signature;
use introspect::signature::ValuePlace;
use vmm::kvm_regs;

use crate::kernel::Kernel;

/// An event of the kernel with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEvent {
    /// A program has made a mapping. The kernel holds the lock of the program's mappings, so no thread can use the mapping yet. The kernel also calls
    /// the function behind a change of a mapping's rights: the engine knows the file by then.
    Mapped,
    /// A page is about to be added to a file.
    Added(Adder),
    /// A page of a file is about to be moved to other memory.
    Moved(Mover),
}

/// A function that adds a page to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adder {
    /// Since 5.16.
    Folio,
    /// Before 5.16.
    Page,
    /// In tmpfs, and of shared memory.
    Shmem,
}

/// A function that moves a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mover {
    /// Since 6.11; [`Mover::Folio`] calls the function.
    InnerFolio,
    Folio,
    /// Before 5.16.
    Page,
}

/// The arguments of a function that an event needs, as indices of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileArguments {
    Mapped { area: u8 },
    Added { mapping: u8, folio: u8, first: u8 },
    Moved { mapping: u8, from: u8, to: u8 },
}

impl FileEvent {
    pub(crate) const ALL: [Self; 7] = [
        Self::Mapped,
        Self::Added(Adder::Folio),
        Self::Added(Adder::Page),
        Self::Added(Adder::Shmem),
        Self::Moved(Mover::InnerFolio),
        Self::Moved(Mover::Folio),
        Self::Moved(Mover::Page),
    ];

    /// The events without which a probe would miss hits: of each group, one at least.
    pub(crate) fn needed(kernel: &Kernel) -> [&'static [Self]; 4] {
        // Since 6.11, a file system may call the inner function alone.
        let moved: &[Self] = match kernel.symbols().address_of("folio_mc_copy") {
            Some(_) => &[Self::Moved(Mover::InnerFolio)],
            None => &[
                Self::Moved(Mover::InnerFolio),
                Self::Moved(Mover::Folio),
                Self::Moved(Mover::Page),
            ],
        };
        [
            &[Self::Mapped],
            &[Self::Added(Adder::Folio), Self::Added(Adder::Page)],
            &[Self::Added(Adder::Shmem)],
            moved,
        ]
    }

    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::Mapped => "perf_event_mmap",
            Self::Added(Adder::Folio) => "__filemap_add_folio",
            Self::Added(Adder::Page) => "__add_to_page_cache_locked",
            Self::Added(Adder::Shmem) => "shmem_add_to_page_cache",
            Self::Moved(Mover::InnerFolio) => "__folio_migrate_mapping",
            Self::Moved(Mover::Folio) => "folio_migrate_mapping",
            Self::Moved(Mover::Page) => "migrate_page_move_mapping",
        }
    }

    /// Where the arguments are, by the kernel's types; `None` if the types do not say.
    pub(crate) fn arguments(self, kernel: &Kernel) -> Option<FileArguments> {
        let register = |names: &[&str]| {
            let signature = kernel.signature(self.function()).ok()?;
            register_of(&signature, names)
        };
        Some(match self {
            // The only argument. The types of 5.10 do not have the function.
            Self::Mapped => FileArguments::Mapped { area: 0 },
            Self::Added(_) => FileArguments::Added {
                mapping: register(&["mapping"])?,
                folio: register(&["folio", "page"])?,
                first: register(&["index", "offset"])?,
            },
            Self::Moved(_) => FileArguments::Moved {
                mapping: register(&["mapping"])?,
                from: register(&["folio", "page"])?,
                to: register(&["newfolio", "newpage"])?,
            },
        })
    }
}

/// The register with the first parameter of any of the names.
fn register_of(signature: &Signature, names: &[&str]) -> Option<u8> {
    let mut params = signature.params.iter();
    let param = params.find(|param| names.contains(&&*param.name))?;
    match param.place {
        ValuePlace::Register(number) => Some(number),
        _ => None,
    }
}

/// The value of the argument register `number`.
pub(crate) fn argument(regs: &kvm_regs, number: u8) -> u64 {
    let registers = [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9];
    registers.get(usize::from(number)).copied().unwrap_or(0)
}
