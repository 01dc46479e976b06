//! Facts about all code, gathered once, so that a verdict on an address needs only look-ups.

use std::ops::Range;

use address::Gva;

use super::arrivals::Arrivals;
use super::exceptions::Exceptions;
use super::sweep::{Surroundings, Sweep};
use super::tables::stored_addresses;
use super::unfit::{Unfit, thunks, unfit};
use crate::patchsites::patched_targets;
use crate::{KernelImage, KernelLayout, SymbolTable};

/// The most bytes of a function to decode.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

/// The facts about all of a kernel's code, gathered once. Immutable; at link-time addresses.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// In order; they do not overlap.
    pub(super) functions: Vec<Range<Gva>>,
    pub(super) arrivals: Arrivals,
    /// `None` if no table is found: the instructions with possible faults are then unknown.
    pub(super) exceptions: Option<Exceptions>,
    /// In order.
    pub(super) undecodable: Vec<Gva>,
    /// In order.
    pub(super) counted_from: Vec<Gva>,
    pub(super) unfit: Vec<(Range<Gva>, Unfit)>,
}

impl Survey {
    /// Decodes every function of `image`; `symbols` are the image's symbols at link-time addresses.
    /// The survey takes a second or less for a stock kernel, and occupies some megabytes.
    #[must_use]
    pub fn of_kernel(image: &KernelImage, symbols: &SymbolTable) -> Self {
        let code = code_of(image, symbols);
        let functions = functions(symbols, &code);
        let thunks = thunks(symbols);
        let around = Surroundings {
            source: image,
            code: &code,
            thunks: &thunks,
            functions: &functions,
        };
        let mut sweep = Sweep::default();
        for function in &functions {
            sweep.function(&around, function, bytes_of(image, function));
        }
        let Sweep {
            arrivals: branches,
            undecodable,
            mut counted_from,
        } = sweep;
        counted_from.sort_unstable();
        let exceptions = Exceptions::read(image, symbols);
        let fixups = exceptions.iter().flat_map(|table| &table.fixups).copied();
        let stored = image.segments().iter().flat_map(|segment| {
            let bytes = image.bytes_at(segment.virt, segment.file_size);
            stored_addresses(bytes.unwrap_or_default(), &code)
        });
        let patched = patched_targets(image, symbols);
        let arrivals = branches.into_iter().chain(fixups).chain(stored);
        Self {
            arrivals: arrivals.chain(patched).collect(),
            functions,
            exceptions,
            undecodable,
            counted_from,
            unfit: unfit(symbols),
        }
    }
}

/// The ranges with possible code: without labels, all ranges held by the file.
fn code_of(image: &KernelImage, symbols: &SymbolTable) -> Vec<Range<Gva>> {
    match KernelLayout::from_symbols(symbols) {
        Some(layout) => std::iter::once(layout.text).chain(layout.init).collect(),
        None => {
            let segments = image.segments().iter();
            let held = segments
                .map(|segment| segment.virt..segment.virt.wrapping_add(segment.file_size as u64));
            held.collect()
        }
    }
}

/// The ranges between neighbouring symbols of code.
fn functions(symbols: &SymbolTable, code: &[Range<Gva>]) -> Vec<Range<Gva>> {
    let mut functions: Vec<Range<Gva>> = Vec::new();
    for symbol in symbols.iter().filter(|symbol| symbol.is_text()) {
        let Some(range) = code.iter().find(|range| range.contains(&symbol.address)) else {
            continue;
        };
        let is_alias = |last: &Range<Gva>| last.contains(&symbol.address);
        if functions.last().is_some_and(is_alias) {
            continue;
        }
        functions.extend(symbol.end().map(|end| symbol.address..end.min(range.end)));
    }
    functions
}

/// The file's bytes of a function, up to the limit; empty if the file does not hold all bytes.
fn bytes_of<'i>(image: &'i KernelImage, function: &Range<Gva>) -> &'i [u8] {
    let len = function.end.0 - function.start.0;
    usize::try_from(len.min(MAX_FUNCTION_BYTES))
        .ok()
        .and_then(|len| image.bytes_at(function.start, len))
        .unwrap_or_default()
}
