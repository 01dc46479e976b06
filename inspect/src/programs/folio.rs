//! The flags and the size of a folio: the pages of a file that the kernel keeps together.

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// The most pages of a folio: a gigabyte.
const MAX_FOLIO_PAGES: u64 = 1 << 18;

/// A flag of folios.
#[derive(Debug)]
pub(super) struct FolioFlag {
    flags: Slot,
    /// The bit of `flags`.
    bit: u64,
}

impl FolioFlag {
    /// The flag with a name of `enum pageflags`.
    pub(super) fn named(btf: &Btf, name: &str) -> Result<Self, NoType> {
        let page = StructType::named(btf, "page")?;
        let flags = btf
            .enum_named("pageflags")
            .and_then(|flags| btf.as_enum(flags));
        let bit = flags.and_then(|flags| flags.value(name));
        let bit = bit.and_then(|bit| 1_u64.checked_shl(u32::try_from(bit).ok()?));
        // Up to 5.15 there are no folios. `flags.f` since 6.18.
        let folio = StructType::named(btf, "folio").unwrap_or(page);
        Ok(Self {
            flags: folio.slot("flags.f").or_else(|_| folio.slot("flags"))?,
            bit: bit.ok_or_else(|| folio.without(name))?,
        })
    }

    /// Whether the folio has the flag.
    pub(super) fn is_set(&self, reads: &Reads<'_>, folio: Gva) -> Result<bool, ReadsError> {
        Ok(reads.number(folio, self.flags)? & self.bit != 0)
    }
}

/// The number of pages of a folio.
#[derive(Debug)]
pub(super) struct FolioLayout {
    /// A folio of several pages.
    head: FolioFlag,
    /// The number of pages; its place in a folio of several pages.
    count: Slot,
}

impl FolioLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let folio = StructType::named(btf, "folio");
        let of_folio = folio.and_then(|folio| {
            // `_nr_pages` since 6.14.
            let pages = folio.slot("_nr_pages");
            pages.or_else(|_| folio.slot("_folio_nr_pages"))
        });
        let count = match of_folio {
            Ok(count) => count,
            // The second page has the number.
            Err(_) => {
                let page = StructType::named(btf, "page")?;
                let count = page.slot("compound_nr")?.shifted(page.size()?);
                count.ok_or_else(|| page.without("compound_nr"))?
            }
        };
        Ok(Self {
            head: FolioFlag::named(btf, "PG_head")?,
            count,
        })
    }

    /// The number of pages of the folio.
    pub(super) fn pages(&self, reads: &Reads<'_>, folio: Gva) -> u64 {
        match self.head.is_set(reads, folio) {
            Ok(true) => reads
                .number(folio, self.count)
                .unwrap_or(1)
                .min(MAX_FOLIO_PAGES),
            Ok(false) | Err(_) => 1,
        }
    }
}
