//! The size of a folio: the pages of a file that the kernel keeps together.

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::Reads;
use crate::structs::{NoType, StructType};

/// The most pages of a folio: a gigabyte.
const MAX_FOLIO_PAGES: u64 = 1 << 18;

/// The number of pages of a folio.
#[derive(Debug)]
pub(super) struct FolioLayout {
    flags: Slot,
    /// The bit of `flags` for a folio of several pages.
    head: u64,
    /// The number of pages; its place in a folio of several pages.
    count: Slot,
}

impl FolioLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let page = StructType::named(btf, "page")?;
        let head = btf
            .enum_named("pageflags")
            .and_then(|flags| btf.as_enum(flags));
        let head = head.and_then(|flags| flags.value("PG_head"));
        let head = head.and_then(|bit| 1_u64.checked_shl(u32::try_from(bit).ok()?));
        let folio = StructType::named(btf, "folio");
        let of_folio = folio.and_then(|folio| {
            // `_nr_pages` since 6.14.
            let pages = folio
                .slot("_nr_pages")
                .or_else(|_| folio.slot("_folio_nr_pages"))?;
            // `flags.f` since 6.18.
            let flags = folio.slot("flags.f").or_else(|_| folio.slot("flags"))?;
            Ok((flags, pages))
        });
        let (flags, pages) = match of_folio {
            Ok(slots) => slots,
            // The second page has the number.
            Err(_) => {
                let pages = page.slot("compound_nr")?.shifted(page.size()?);
                (
                    page.slot("flags")?,
                    pages.ok_or_else(|| page.without("compound_nr"))?,
                )
            }
        };
        Ok(Self {
            flags,
            head: head.ok_or_else(|| page.without("PG_head"))?,
            count: pages,
        })
    }

    /// The number of pages of the folio.
    pub(super) fn pages(&self, reads: &Reads<'_>, folio: Gva) -> u64 {
        let flags = reads.number(folio, self.flags).unwrap_or(0);
        match flags & self.head {
            0 => 1,
            _ => reads
                .number(folio, self.count)
                .unwrap_or(1)
                .min(MAX_FOLIO_PAGES),
        }
    }
}
