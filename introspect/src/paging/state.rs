//! The control registers of address translation.

use address::{Gpa, Gva};

const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
/// Bits 51:12, which hold the table's address; below lie flags or the PCID, above reserved bits.
const CR3_TABLE: u64 = 0x000f_ffff_ffff_f000;

/// A vCPU's registers of address translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagingState {
    /// CR0; only PG is used.
    pub cr0: u64,
    /// CR3, PCID or cache flags and all.
    pub cr3: u64,
    /// CR4; PAE and LA57 are used.
    pub cr4: u64,
    /// EFER; LMA and NXE are used.
    pub efer: u64,
}

impl PagingState {
    /// A vCPU in 64-bit mode with 4-level tables at `cr3` and NX switched on.
    #[must_use]
    pub const fn four_level(cr3: u64) -> Self {
        Self {
            cr0: CR0_PG | 1,
            cr3,
            cr4: CR4_PAE,
            efer: EFER_LMA | (1 << 8) | EFER_NXE,
        }
    }

    /// A vCPU in 64-bit mode with 5-level tables at `cr3` and NX switched on.
    #[must_use]
    pub const fn five_level(cr3: u64) -> Self {
        let mut state = Self::four_level(cr3);
        state.cr4 |= CR4_LA57;
        state
    }

    /// The same registers with another root table, as in another process.
    #[must_use]
    pub const fn with_cr3(self, cr3: u64) -> Self {
        Self { cr3, ..self }
    }

    /// Whether addresses are translated at all.
    #[must_use]
    pub const fn paging_enabled(&self) -> bool {
        self.cr0 & CR0_PG != 0
    }

    /// Whether the tables have the format of 64-bit mode.
    #[must_use]
    pub const fn long_mode(&self) -> bool {
        self.efer & EFER_LMA != 0 && self.cr4 & CR4_PAE != 0
    }

    /// Whether bit 63 of an entry means "not executable" rather than being reserved.
    #[must_use]
    pub const fn no_execute_enabled(&self) -> bool {
        self.efer & EFER_NXE != 0
    }

    /// Whether the tables have five levels.
    #[must_use]
    pub const fn five_levels(&self) -> bool {
        self.cr4 & CR4_LA57 != 0
    }

    /// The address of the root table.
    #[must_use]
    pub const fn root(&self) -> Gpa {
        Gpa(self.cr3 & CR3_TABLE)
    }

    /// Whether `gva` is canonical for the number of levels.
    #[must_use]
    pub const fn is_canonical(&self, gva: Gva) -> bool {
        let sign_bits = if self.five_levels() {
            gva.0 >> 56
        } else {
            gva.0 >> 47
        };
        let all_ones = if self.five_levels() {
            u64::MAX >> 56
        } else {
            u64::MAX >> 47
        };
        sign_bits == 0 || sign_bits == all_ones
    }
}
