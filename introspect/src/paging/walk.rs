//! The page walk.

use address::{Gpa, Gva};
use thiserror::Error;

use super::entry::Entry;
use super::level::{Level, PageSize};
use super::state::PagingState;
use crate::{PhysMemory, Unreadable};

/// With paging off a linear address is the physical address, 32 bits wide.
const UNPAGED_LIMIT: u64 = 1 << 32;

/// The physical address of a virtual address, and the permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The guest-physical address of the requested byte.
    pub gpa: Gpa,
    /// The size of the page; 4 KiB with paging off.
    pub page_size: PageSize,
    /// All levels allow writes (CR0.WP and the keys aside).
    pub writable: bool,
    /// All levels allow access from user mode.
    pub user: bool,
    /// No level forbids execution.
    pub executable: bool,
    /// The accessed bit is set at every level: the processor has used the translation.
    pub accessed: bool,
    /// The leaf's dirty bit is set.
    pub dirty: bool,
    /// The leaf is global: the translation survives a change of CR3.
    pub global: bool,
    /// The protection key of the page, 0 to 15; 0 with paging off.
    pub key: u8,
}

impl Translation {
    /// Bytes from [`gpa`](Self::gpa) to the end of the page, at least 1.
    #[must_use]
    pub const fn bytes_left_in_page(&self) -> u64 {
        let size = self.page_size.bytes();
        size - (self.gpa.0 & (size - 1))
    }

    /// The translation of `to`, from this translation of `from`; `None` if `to` is in another page.
    #[must_use]
    pub const fn moved(self, from: Gva, to: Gva) -> Option<Self> {
        let within = self.page_size.bytes() - 1;
        if from.0 & !within != to.0 & !within {
            return None;
        }
        Some(Self {
            gpa: Gpa(self.gpa.0 & !within | to.0 & within),
            ..self
        })
    }
}

/// Why an address has no translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WalkFault {
    /// The address is not canonical for the number of levels; with paging off, the address is above
    /// 4 GiB.
    #[error("{gva} is not a canonical address")]
    NonCanonical {
        /// The address to translate.
        gva: Gva,
    },
    /// An entry's present bit is clear.
    #[error("{gva} is not mapped: its {level} entry is not present")]
    NotPresent {
        /// The address to translate.
        gva: Gva,
        /// The last level of the walk.
        level: Level,
    },
    /// An entry has a reserved bit set.
    #[error("{gva} is not mapped: its {level} entry {entry:#x} has reserved bits set")]
    Reserved {
        /// The address to translate.
        gva: Gva,
        /// The last level of the walk.
        level: Level,
        /// The entry as found.
        entry: u64,
    },
    /// A table lies outside memory.
    #[error("{gva} cannot be translated: its {level} table lies outside memory")]
    Unreadable {
        /// The address to translate.
        gva: Gva,
        /// The level of the unreadable table.
        level: Level,
        /// The failed read.
        source: Unreadable,
    },
    /// Paging is on, but with the tables of 32-bit protected mode.
    #[error("{gva} cannot be translated: 32-bit page tables are not supported")]
    LegacyTables {
        /// The address to translate.
        gva: Gva,
    },
}

/// Translates `gva` as a vCPU with the registers in `state` would, but without touching accessed or
/// dirty bits.
///
/// At most five reads. With paging off, an address below 4 GiB translates to the same physical
/// address.
///
/// # Errors
///
/// See [`WalkFault`].
pub fn walk<M: PhysMemory + ?Sized>(
    memory: &M,
    state: &PagingState,
    gva: Gva,
) -> Result<Translation, WalkFault> {
    walk_noting(memory, state, gva, |_| ())
}

/// [`walk`], which also calls `directory` with the page directory on the way, if the walk reaches one.
pub(super) fn walk_noting<M: PhysMemory + ?Sized>(
    memory: &M,
    state: &PagingState,
    gva: Gva,
    directory: impl FnOnce(Descent),
) -> Result<Translation, WalkFault> {
    if !state.paging_enabled() {
        return unpaged(gva);
    }
    if !state.long_mode() {
        return Err(WalkFault::LegacyTables { gva });
    }
    if !state.is_canonical(gva) {
        return Err(WalkFault::NonCanonical { gva });
    }
    Descent::from_root(state).walk(memory, state, gva, directory)
}

/// A table in the middle of a walk, and the permissions of the entries above.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descent {
    table: Gpa,
    level: Level,
    writable: bool,
    user: bool,
    executable: bool,
    accessed: bool,
}

impl Descent {
    fn from_root(state: &PagingState) -> Self {
        Self {
            table: state.root(),
            level: if state.five_levels() {
                Level::Pml5
            } else {
                Level::Pml4
            },
            writable: true,
            user: true,
            executable: true,
            accessed: true,
        }
    }

    /// The rest of the walk to `gva`, from this table on. Calls `directory` with the page directory on the way.
    pub(super) fn walk<M: PhysMemory + ?Sized>(
        mut self,
        memory: &M,
        state: &PagingState,
        gva: Gva,
        directory: impl FnOnce(Self),
    ) -> Result<Translation, WalkFault> {
        let mut directory = Some(directory);
        loop {
            let level = self.level;
            if level == Level::Pd
                && let Some(directory) = directory.take()
            {
                directory(self);
            }
            let slot = self
                .table
                .wrapping_add(((gva.0 >> level.shift()) & 0x1ff) * 8);
            let raw = memory
                .read_u64(slot)
                .map_err(|source| WalkFault::Unreadable { gva, level, source })?;
            let entry = Entry(raw);
            if !entry.present() {
                return Err(WalkFault::NotPresent { gva, level });
            }
            if entry.reserved(level, state.no_execute_enabled()) {
                return Err(WalkFault::Reserved {
                    gva,
                    level,
                    entry: raw,
                });
            }
            self.writable &= entry.writable();
            self.user &= entry.user();
            self.executable &= !entry.no_execute();
            self.accessed &= entry.accessed();
            match (entry.leaf(level), level.below()) {
                (None, Some(below)) => {
                    self.table = entry.table();
                    self.level = below;
                }
                (size, _) => {
                    let page_size = size.unwrap_or(PageSize::Size4K);
                    return Ok(Translation {
                        gpa: entry
                            .frame(page_size)
                            .wrapping_add(gva.0 & (page_size.bytes() - 1)),
                        page_size,
                        writable: self.writable,
                        user: self.user,
                        executable: self.executable,
                        accessed: self.accessed,
                        dirty: entry.dirty(),
                        global: entry.global(),
                        key: entry.key(),
                    });
                }
            }
        }
    }
}

/// An entry of the paging structures, and the entry's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt {
    /// The entry's guest-physical address.
    pub gpa: Gpa,
    /// The entry's value, unchecked.
    pub value: u64,
}

/// The entry of `level` for `gva`, present or not. At most five reads.
///
/// # Errors
///
/// See [`WalkFault`]; a page mapped above `level` gives [`WalkFault::NotPresent`] with the level of
/// that page.
pub fn entry_at<M: PhysMemory + ?Sized>(
    memory: &M,
    state: &PagingState,
    gva: Gva,
    level: Level,
) -> Result<EntryAt, WalkFault> {
    if !state.paging_enabled() || !state.long_mode() {
        return Err(WalkFault::LegacyTables { gva });
    }
    if !state.is_canonical(gva) {
        return Err(WalkFault::NonCanonical { gva });
    }
    let mut at = if state.five_levels() {
        Level::Pml5
    } else {
        Level::Pml4
    };
    let mut table = state.root();
    loop {
        let gpa = table.wrapping_add(((gva.0 >> at.shift()) & 0x1ff) * 8);
        let value = memory
            .read_u64(gpa)
            .map_err(|source| WalkFault::Unreadable {
                gva,
                level: at,
                source,
            })?;
        if at == level {
            return Ok(EntryAt { gpa, value });
        }
        let entry = Entry(value);
        match at.below() {
            Some(below) if entry.present() && entry.leaf(at).is_none() => {
                table = entry.table();
                at = below;
            }
            _ => return Err(WalkFault::NotPresent { gva, level: at }),
        }
    }
}

fn unpaged(gva: Gva) -> Result<Translation, WalkFault> {
    if gva.0 >= UNPAGED_LIMIT {
        return Err(WalkFault::NonCanonical { gva });
    }
    Ok(Translation {
        gpa: Gpa(gva.0),
        page_size: PageSize::Size4K,
        writable: true,
        user: true,
        executable: true,
        accessed: true,
        dirty: true,
        global: false,
        key: 0,
    })
}
