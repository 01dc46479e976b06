//! Reads that are bounded all together.

use std::cell::Cell;

use super::ModulesError;
use crate::{Gva, PagingState, PhysMemory, read_virt};

/// Half a million symbols; the kernel of a desktop with all its modules has a fifth of that.
const MAX_BYTES: usize = 128 << 20;
/// What a read or a symbol costs at least, so that millions of short ones are not for free.
const MIN_COST_BYTES: usize = 256;
const PAGE_BYTES: u64 = 4096;

/// Guest memory through the guest's page tables.
pub(super) struct View<'m> {
    memory: &'m dyn PhysMemory,
    paging: &'m PagingState,
    left: Cell<usize>,
}

impl<'m> View<'m> {
    pub(super) fn new(memory: &'m dyn PhysMemory, paging: &'m PagingState) -> Self {
        Self {
            memory,
            paging,
            left: Cell::new(MAX_BYTES),
        }
    }

    /// The `len` bytes at `address`, which the caller has bounded.
    pub(super) fn bytes(
        &self,
        what: &'static str,
        address: Gva,
        len: usize,
    ) -> Result<Vec<u8>, ModulesError> {
        self.spend(len)?;
        let mut bytes = vec![0; len];
        self.fill(what, address, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes at `address`, `len` of them or as many as there are before a page that is missing.
    pub(super) fn bytes_up_to(
        &self,
        what: &'static str,
        address: Gva,
        len: usize,
    ) -> Result<Vec<u8>, ModulesError> {
        self.spend(len)?;
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = address.wrapping_add(bytes.len() as u64);
            let in_page = usize::try_from(PAGE_BYTES - at.page_offset()).unwrap_or(len);
            let start = bytes.len();
            bytes.resize(start + in_page.min(len - start), 0);
            match self.fill(what, at, &mut bytes[start..]) {
                Ok(()) => {}
                Err(error) if start == 0 => return Err(error),
                Err(_) => {
                    bytes.truncate(start);
                    break;
                }
            }
        }
        Ok(bytes)
    }

    fn fill(&self, what: &'static str, address: Gva, buf: &mut [u8]) -> Result<(), ModulesError> {
        read_virt(self.memory, self.paging, address, buf).map_err(|source| {
            ModulesError::Unreadable {
                what,
                address,
                source,
            }
        })
    }

    /// Takes `len` bytes that are about to be read, or kept, from what one call may take.
    pub(super) fn spend(&self, len: usize) -> Result<(), ModulesError> {
        let limit = MAX_BYTES;
        let left = self.left.get().checked_sub(len.max(MIN_COST_BYTES));
        self.left.set(left.ok_or(ModulesError::TooLarge { limit })?);
        Ok(())
    }
}
