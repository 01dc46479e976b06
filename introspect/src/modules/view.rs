//! Reads of guest memory with a common bound.

use std::cell::Cell;

use address::{Gva, PAGE_BYTES};

use super::ModulesError;
use crate::{PagingState, PhysMemory, read_virt};

/// Enough for half a million symbols; a desktop kernel with all modules has a fifth as many.
const MAX_BYTES: usize = 128 << 20;
/// The least cost of a read or a symbol, so that millions of short reads are not for free.
const MIN_COST_BYTES: usize = 256;

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

    /// The `len` bytes at `address`, or fewer if a page is missing.
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

    /// Subtracts `len` bytes, to be read or kept, from the limit of a call.
    pub(super) fn spend(&self, len: usize) -> Result<(), ModulesError> {
        let limit = MAX_BYTES;
        let left = self.left.get().checked_sub(len.max(MIN_COST_BYTES));
        self.left.set(left.ok_or(ModulesError::TooLarge { limit })?);
        Ok(())
    }
}
