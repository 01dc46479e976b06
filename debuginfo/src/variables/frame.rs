//! The address of a function's frame, by `.debug_frame`.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DebugFrame, DebugFrameOffset,
    EndianSlice, LittleEndian, UnwindContext, UnwindSection as _,
};

use super::expression::{Sum, register};
use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::Slice;

/// x86-64.
const ADDRESS_BYTES: u8 = 8;
/// The instructions of a common entry are executed for each address. Compilers write some 20 bytes.
const MAX_COMMON_BYTES: usize = 4096;

/// What the descriptions of many functions have in common.
type Common<'a> = CommonInformationEntry<Slice<'a>>;

/// The functions with a description of their frames.
pub(super) struct Frames<'a> {
    section: DebugFrame<Slice<'a>>,
    /// By their offsets in the section; `None` for one that is not used.
    common: HashMap<usize, Option<Common<'a>>>,
    /// The code and the offset in the section, in ascending order.
    functions: Vec<(Range<u64>, usize)>,
    context: UnwindContext<usize>,
}

impl<'a> Frames<'a> {
    /// Lists the functions in `bytes`. Functions behind a damaged entry have no frame.
    pub(super) fn index(bytes: &'a [u8], budget: &mut Budget) -> Result<Self, LookupError> {
        let mut section = DebugFrame::from(EndianSlice::new(bytes, LittleEndian));
        section.set_address_size(ADDRESS_BYTES);
        let bases = BaseAddresses::default();
        let (mut common, mut functions) = (HashMap::new(), Vec::new());
        let mut entries = section.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            budget.spend(1)?;
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let DebugFrameOffset(offset) = partial.cie_offset();
            let known = common.entry(offset).or_insert_with(|| {
                // gimli looks for the end of a string in the entry, which has no other bound than the entry's length.
                let is_short = length_at(bytes, offset).is_some_and(|len| len <= MAX_COMMON_BYTES);
                let found =
                    is_short.then(|| section.cie_from_offset(&bases, DebugFrameOffset(offset)));
                found.and_then(Result::ok)
            });
            budget.spend(1)?;
            let Some(known) = known else {
                continue;
            };
            let Ok(function) = partial.parse(|_, _, _| Ok(known.clone())) else {
                continue;
            };
            let start = function.initial_address();
            let end = start.saturating_add(function.len());
            functions.push((start..end, function.offset()));
        }
        functions.sort_by_key(|(code, _)| code.start);
        Ok(Self {
            section,
            common,
            functions,
            context: UnwindContext::new(),
        })
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
        let common = &self.common;
        let found = self.section.fde_from_offset(&bases, offset, |_, _, of| {
            let known = common.get(&of.0).and_then(Option::as_ref);
            known.cloned().ok_or(gimli::Error::NotCieId(of.0 as u64))
        });
        let Ok(function) = found else {
            return Ok(None);
        };
        budget.spend(function.entry_len() + function.cie().entry_len())?;
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

/// The length of the entry at `offset`, without the length itself. An entry of the 64-bit form is longer than any that is used.
fn length_at(bytes: &[u8], offset: usize) -> Option<usize> {
    let length = bytes.get(offset..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*length)).ok()
}
