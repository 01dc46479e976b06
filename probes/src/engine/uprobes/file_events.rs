//! The kernel's events of files: where the arguments are, and the pages that the kernel is about to add.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};

use address::Gva;
use vmm::kvm_regs;

use crate::kernel::Kernel;
use crate::registry::{FileArguments, FileEvent, argument};

/// The most pages that are remembered. A page is needed while the kernel is between the event and the change of the file.
const MAX_RECENT: usize = 256;

/// A folio that the kernel is about to put into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddedFolio {
    /// The `address_space`.
    pub(crate) pages: Gva,
    pub(crate) folio: Gva,
    /// The number of the first page within the file.
    pub(crate) first: FirstPage,
}

/// The number of a folio's first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstPage {
    Number(u64),
    /// The number that this folio has.
    Of(Gva),
}

/// An event with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileChange {
    /// A program has made the mapping, a `vm_area_struct`.
    Mapped(Gva),
    Added(AddedFolio),
}

/// Reads events.
#[derive(Debug, Default)]
pub(crate) struct FileEvents {
    arguments: OnceLock<Vec<(FileEvent, Option<FileArguments>)>>,
    recent: Mutex<VecDeque<AddedFolio>>,
}

impl FileEvents {
    /// Looks up where the arguments are: the first look takes longer than a vCPU should wait.
    pub(crate) fn prepare(&self, kernel: &Kernel) -> &[(FileEvent, Option<FileArguments>)] {
        self.arguments.get_or_init(|| {
            let all = FileEvent::ALL.into_iter();
            all.map(|event| (event, event.arguments(kernel))).collect()
        })
    }

    /// The change at `event`, of a vCPU with these registers.
    pub(crate) fn change(
        &self,
        kernel: &Kernel,
        event: FileEvent,
        regs: &kvm_regs,
    ) -> Option<FileChange> {
        let all = self.prepare(kernel);
        let (_, arguments) = all.iter().find(|(known, _)| *known == event)?;
        let value = |number| Gva(argument(regs, number));
        Some(match (*arguments)? {
            FileArguments::Mapped { area } => FileChange::Mapped(value(area)),
            FileArguments::Added {
                mapping,
                folio,
                first,
            } => FileChange::Added(AddedFolio {
                pages: value(mapping),
                folio: value(folio),
                first: FirstPage::Number(value(first).0),
            }),
            FileArguments::Moved { mapping, from, to } => FileChange::Added(AddedFolio {
                pages: value(mapping),
                folio: value(to),
                first: FirstPage::Of(value(from)),
            }),
        })
    }

    /// Remembers a folio.
    pub(crate) fn remember(&self, added: AddedFolio) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // The folio had another place before.
        recent.retain(|earlier| earlier.folio != added.folio);
        if recent.len() == MAX_RECENT {
            recent.pop_front();
        }
        recent.push_back(added);
    }

    /// The folios that were added to files of late.
    pub(crate) fn recent(&self) -> Vec<AddedFolio> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().copied().collect()
    }
}
