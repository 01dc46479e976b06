//! Pages of a core file that were read last.
//!
//! A walk of the page tables reads a word of four pages for each address, and most of these pages are the same.

use address::{Gpa, PAGE_BYTES, PAGE_LEN};

/// A power of two: the lowest bits of a page's number select the slot. 4 MiB.
const SLOTS: u64 = 1024;

type Page = Box<[u8; PAGE_LEN]>;

/// A slot for each remainder of page numbers.
#[derive(Debug, Default)]
pub(crate) struct PageCache {
    slots: Vec<Option<(Gpa, Page)>>,
}

impl PageCache {
    /// The page that begins at `page`: a known one, or else the result of `read`.
    pub(crate) fn get<E>(
        &mut self,
        page: Gpa,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<&[u8; PAGE_LEN], E> {
        let number = page.0 / PAGE_BYTES % SLOTS;
        // The remainder of 1024 fits.
        let number = usize::try_from(number).unwrap_or(0);
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, || None);
        }
        let slot = &mut self.slots[number];
        let (known, bytes) = slot.get_or_insert_with(|| (Gpa(u64::MAX), Box::new([0; PAGE_LEN])));
        if *known != page {
            // No page begins there.
            *known = Gpa(u64::MAX);
            read(&mut bytes[..])?;
            *known = page;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(cache: &mut PageCache, page: u64, read: Result<u8, ()>) -> Result<u8, ()> {
        let fill = |bytes: &mut [u8]| read.map(|byte| bytes.fill(byte));
        cache
            .get(Gpa(page * PAGE_BYTES), fill)
            .map(|bytes| bytes[0])
    }

    #[test]
    fn page_is_read_once_until_another_page_takes_its_slot() {
        let mut cache = PageCache::default();
        assert_eq!(first(&mut cache, 3, Ok(1)), Ok(1));
        assert_eq!(first(&mut cache, 3, Err(())), Ok(1));
        assert_eq!(first(&mut cache, 3 + SLOTS, Ok(2)), Ok(2));
        assert_eq!(first(&mut cache, 3, Ok(3)), Ok(3));
    }

    #[test]
    fn failed_read_leaves_no_page() {
        let mut cache = PageCache::default();
        assert_eq!(first(&mut cache, 0, Ok(1)), Ok(1));
        assert_eq!(first(&mut cache, SLOTS, Err(())), Err(()));
        assert_eq!(first(&mut cache, 0, Ok(2)), Ok(2));
    }
}
