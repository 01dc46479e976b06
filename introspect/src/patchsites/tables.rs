//! The tables between linker labels, each read whole.

use address::Gva;

use crate::{ImageSource, KernelLayout, SymbolTable};

/// The largest table, of calls for call-depth tracking, takes 1.1 MB in today's kernels.
const MAX_TABLE_BYTES: u64 = 16 << 20;

/// An image and the labels of the tables.
pub(super) struct Tables<'s> {
    source: &'s dyn ImageSource,
    symbols: &'s SymbolTable,
    layout: KernelLayout,
}

/// A table's bytes, and their link address.
pub(super) struct Table {
    address: Gva,
    bytes: Vec<u8>,
}

impl<'s> Tables<'s> {
    /// `None` if `symbols` lack the addresses of the text, without which no entry can be checked.
    pub(super) fn new(source: &'s dyn ImageSource, symbols: &'s SymbolTable) -> Option<Self> {
        let layout = KernelLayout::from_symbols(symbols)?;
        Some(Self {
            source,
            symbols,
            layout,
        })
    }

    pub(super) const fn symbols(&self) -> &SymbolTable {
        self.symbols
    }

    pub(super) fn holds_code(&self, address: Gva) -> bool {
        self.layout.holds_code(address)
    }

    /// The table between two labels; empty if the kernel has no such table, or the table cannot be read.
    pub(super) fn between(&self, start: &str, end: &str) -> Table {
        let empty = Table {
            address: Gva(0),
            bytes: Vec::new(),
        };
        let (Some(address), Some(end)) =
            (self.symbols.address_of(start), self.symbols.address_of(end))
        else {
            return empty;
        };
        let len = end
            .offset_from(address)
            .filter(|&len| len <= MAX_TABLE_BYTES);
        let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
            return empty;
        };
        let mut bytes = vec![0; len];
        match self.source.read_linked(address, &mut bytes) {
            Ok(()) => Table { address, bytes },
            Err(_) => empty,
        }
    }

    /// Up to 15 bytes of code at `address`, fewer at the end of the image.
    pub(super) fn code(&self, address: Gva) -> Vec<u8> {
        let mut bytes = vec![0; 15];
        while !bytes.is_empty() && self.source.read_linked(address, &mut bytes).is_err() {
            bytes.pop();
        }
        bytes
    }

    /// The link-time value of an absolute address in the image.
    pub(super) fn unslid(&self, stored: u64) -> Gva {
        Gva(stored.wrapping_sub(self.source.slide().cast_unsigned()))
    }
}

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The offsets of entries of `stride` bytes each; the last may lack the padding, but has
    /// at least `needed` bytes.
    pub(super) fn entries(&self, stride: usize, needed: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.bytes.len())
            .step_by(stride)
            .filter(move |at| at + needed <= self.bytes.len())
    }

    pub(super) fn u8(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    pub(super) fn u64(&self, at: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The target of the signed 32-bit distance at `at`, relative to the distance's own address.
    pub(super) fn relative(&self, at: usize) -> Option<Gva> {
        let bytes = self.bytes.get(at..at + 4)?;
        let distance = i32::from_le_bytes(bytes.try_into().ok()?);
        Some(Gva(self
            .address
            .0
            .wrapping_add(at as u64)
            .wrapping_add_signed(i64::from(distance))))
    }
}
