//! Candidate addresses for the region in the kernel's address space.

use std::ops::Range;

use address::Gva;

/// The size mapped by one entry of a page directory.
pub(super) const REGION_BYTES: u64 = 2 << 20;
/// The maximum number of pages of each kind.
pub(super) const MAX_PAGES: usize = 32;
const GIB: u64 = 1 << 30;
/// The start of modules in kernels built without KASLR; with KASLR, the image has the whole gigabyte.
const OLD_MODULES: u64 = 0xffff_ffff_a000_0000;

/// The range above the fixed mappings, without the last entry: addresses in the last entry are the kernel's error values.
const EARLY: Range<u64> = 0xffff_ffff_ff80_0000..0xffff_ffff_ffe0_0000;

/// Addresses not used or cleared by any kernel since 4.20, from the first instruction on: "6 MB reserved space" in the page
/// directory of the fixed mappings (`level2_fixmap_pgt`), which all processes share.
pub(super) fn early() -> impl Iterator<Item = Gva> {
    let step = usize::try_from(REGION_BYTES).unwrap_or(usize::MAX);
    EARLY.step_by(step).map(Gva)
}

/// The addresses that may be free, in the order of trial, all in the image's gigabyte. The image's page directory maps the
/// gigabyte, so all processes share the entries. Addresses above the image come first, then addresses below. One entry is left
/// out on either side of the image.
pub(super) fn candidates(image: &Range<Gva>) -> impl Iterator<Item = Gva> + use<> {
    let gigabyte = image.start.0 & !(GIB - 1);
    // The last entry is spared to avoid an overflow at the end of the address space.
    let end = gigabyte.saturating_add(GIB - REGION_BYTES);
    let end = if image.end.0 <= OLD_MODULES && OLD_MODULES < end {
        OLD_MODULES
    } else {
        end
    };
    let above = image.end.0.saturating_add(2 * REGION_BYTES - 1) & !(REGION_BYTES - 1);
    let below = (image.start.0 & !(REGION_BYTES - 1)).saturating_sub(REGION_BYTES);
    let step = usize::try_from(REGION_BYTES).unwrap_or(usize::MAX);
    (above..end)
        .step_by(step)
        .chain(
            (gigabyte..below)
                .rev()
                .step_by(step)
                .map(|last| last & !(REGION_BYTES - 1)),
        )
        .map(Gva)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: u64, end: u64) -> Vec<u64> {
        candidates(&(Gva(start)..Gva(end))).map(|at| at.0).collect()
    }

    #[test]
    fn the_image_and_its_neighbours_are_left_out() {
        let found = of(0xffff_ffff_8100_0000, 0xffff_ffff_82e1_2345);
        assert_eq!(found[0], 0xffff_ffff_8320_0000);
        assert_eq!(found.last(), Some(&0xffff_ffff_8000_0000));
        assert!(found.iter().all(|at| at % REGION_BYTES == 0));
        assert!(!found.contains(&0xffff_ffff_80e0_0000) && found.contains(&0xffff_ffff_80c0_0000));
        let in_modules = |at: &&u64| **at >= OLD_MODULES;
        assert_eq!(found.iter().find(in_modules), None);
    }

    #[test]
    fn an_image_high_up_has_its_gigabyte_to_itself() {
        let found = of(0xffff_ffff_b500_0000, 0xffff_ffff_b6e0_0000);
        assert_eq!(found[0], 0xffff_ffff_b700_0000);
        assert!(found.contains(&0xffff_ffff_bfc0_0000));
        assert!(
            found
                .iter()
                .all(|at| (0xffff_ffff_8000_0000..0xffff_ffff_c000_0000).contains(at))
        );
    }

    #[test]
    fn the_ends_of_the_address_space_are_no_trouble() {
        assert!(of(0x10_0000, 0x20_0000).contains(&0x40_0000));
        assert_eq!(of(u64::MAX - 1, u64::MAX).len(), 512 - 2);
    }
}
