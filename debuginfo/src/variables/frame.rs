//! The address of a function's frame, by `.debug_frame`.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, DebugFrameOffset, EndianSlice, LittleEndian,
    UnwindContext, UnwindSection as _,
};

use super::expression::{Sum, register};
use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::Slice;

/// x86-64.
const ADDRESS_BYTES: u8 = 8;

/// The functions with a description of their frames.
pub(super) struct Frames<'a> {
    section: DebugFrame<Slice<'a>>,
    /// The code and the offset in the section, in ascending order.
    functions: Vec<(Range<u64>, usize)>,
    context: UnwindContext<usize>,
}

impl<'a> Frames<'a> {
    /// Lists the functions in `bytes`. Those behind a damaged one have no frame.
    pub(super) fn index(bytes: &'a [u8], budget: &mut Budget) -> Self {
        let mut section = DebugFrame::from(EndianSlice::new(bytes, LittleEndian));
        section.set_address_size(ADDRESS_BYTES);
        let bases = BaseAddresses::default();
        let mut functions = Vec::new();
        let mut entries = section.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            if budget.spend(1).is_err() {
                break;
            }
            let Ok(function) = partial.parse(DebugFrame::cie_from_offset) else {
                continue;
            };
            let start = function.initial_address();
            let end = start.saturating_add(function.len());
            functions.push((start..end, function.offset()));
        }
        functions.sort_by_key(|(code, _)| code.start);
        Self {
            section,
            functions,
            context: UnwindContext::new(),
        }
    }

    /// The frame's address in the code at `address`: the stack pointer in front of the call of the function. `None` if it is no sum of a register and
    /// a number.
    pub(super) fn at(
        &mut self,
        address: u64,
        budget: &mut Budget,
    ) -> Result<Option<Sum>, LookupError> {
        let behind = self
            .functions
            .partition_point(|(code, _)| code.start <= address);
        let Some((code, offset)) = self.functions[..behind].last() else {
            return Ok(None);
        };
        if !code.contains(&address) {
            return Ok(None);
        }
        let bases = BaseAddresses::default();
        let offset = DebugFrameOffset(*offset);
        let found = self
            .section
            .fde_from_offset(&bases, offset, DebugFrame::cie_from_offset);
        let Ok(function) = found else {
            return Ok(None);
        };
        budget.spend(function.entry_len())?;
        let row =
            function.unwind_info_for_address(&self.section, &bases, &mut self.context, address);
        let Ok(row) = row else {
            return Ok(None);
        };
        Ok(match row.cfa() {
            CfaRule::RegisterAndOffset {
                register: number,
                offset,
            } => register(*number).map(|base| Sum::of_register(base, *offset)),
            CfaRule::Expression(_) => None,
        })
    }
}
