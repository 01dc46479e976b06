//! The distance of the running kernel from the link-time addresses.

use address::Gva;
use thiserror::Error;

use crate::SymbolTable;

/// The function stored in MSR_LSTAR by 64-bit kernels.
const SYSCALL_ENTRY: &str = "entry_SYSCALL_64";
/// The kernel is mapped with 2 MiB pages, so the slide is a multiple of 2 MiB
/// (CONFIG_PHYSICAL_ALIGN).
const ALIGN_BYTES: i64 = 2 << 20;
/// KASLR keeps the kernel within the mapping of a gigabyte (KERNEL_IMAGE_SIZE).
const MAX_SLIDE_BYTES: i64 = 1 << 30;

/// Why no slide follows from MSR_LSTAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlideError {
    /// The symbol table does not have the system-call entry.
    #[error("the symbol table has no {SYSCALL_ENTRY}")]
    NoEntrySymbol,
    /// The difference is impossible with KASLR: MSR_LSTAR points elsewhere, or the symbols belong
    /// to another kernel.
    #[error("MSR_LSTAR holds {lstar}, which is not {SYSCALL_ENTRY} ({linked}) moved by KASLR")]
    Implausible {
        /// The value of the register.
        lstar: Gva,
        /// The entry's address in the symbol table.
        linked: Gva,
    },
}

/// The slide of a kernel with `lstar` in MSR_LSTAR: run-time address less link-time address, in
/// bytes, as the argument of [`SymbolTable::rebased`].
///
/// # Errors
///
/// If `symbols` lack the entry, or the difference is impossible with KASLR.
pub fn kaslr_slide(lstar: Gva, symbols: &SymbolTable) -> Result<i64, SlideError> {
    let linked = symbols
        .address_of(SYSCALL_ENTRY)
        .ok_or(SlideError::NoEntrySymbol)?;
    let slide = lstar.0.wrapping_sub(linked.0).cast_signed();
    // `nokaslr` gives 0; a slide down is possible in principle, since the link base need not be the
    // lowest.
    if slide % ALIGN_BYTES != 0 || slide.unsigned_abs() >= MAX_SLIDE_BYTES.unsigned_abs() {
        return Err(SlideError::Implausible { lstar, linked });
    }
    Ok(slide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolTableBuilder;

    const LINKED: Gva = Gva(0xffff_ffff_81c0_0080);

    fn table() -> SymbolTable {
        let mut builder = SymbolTableBuilder::new();
        builder.push(LINKED, 'T', SYSCALL_ENTRY);
        builder.build()
    }

    #[test]
    fn a_slide_is_a_multiple_of_two_mebibytes_within_a_gigabyte() {
        for slide in [0, 2 << 20, 0x1460_0000, -(2 << 20)] {
            let lstar = Gva(LINKED.0.wrapping_add_signed(slide));
            assert_eq!(kaslr_slide(lstar, &table()), Ok(slide));
        }
    }

    #[test]
    fn implausible_lstar_and_missing_symbol_are_refused() {
        for lstar in [
            Gva(0),
            Gva(u64::MAX),
            LINKED.wrapping_add(0x1000),
            LINKED.wrapping_add(1 << 30),
        ] {
            let refused = Err(SlideError::Implausible {
                lstar,
                linked: LINKED,
            });
            assert_eq!(kaslr_slide(lstar, &table()), refused);
        }
        assert_eq!(
            kaslr_slide(LINKED, &SymbolTable::default()),
            Err(SlideError::NoEntrySymbol)
        );
    }
}
