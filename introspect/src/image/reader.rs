//! Pointers, texts and arrays of the kernel's static data.

use address::Gva;

use super::ImageSource;
use crate::SymbolTable;

const POINTER_BYTES: u64 = 8;
/// The kernel's tables of events have a few thousand entries.
const MAX_POINTERS: u64 = 1 << 16;
/// Names and types are shorter.
const MAX_TEXT_BYTES: usize = 128;

/// Reads an image by link-time addresses.
#[derive(Clone, Copy)]
pub(crate) struct ImageReader<'s> {
    source: &'s dyn ImageSource,
}

impl<'s> ImageReader<'s> {
    pub(crate) const fn new(source: &'s dyn ImageSource) -> Self {
        Self { source }
    }

    /// The bytes at `at`.
    pub(crate) fn bytes<const LEN: usize>(&self, at: Gva) -> Option<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.source.read_linked(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The number of `len` bytes at `at`, up to 8.
    pub(crate) fn number(&self, at: Gva, len: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let field = bytes.get_mut(..usize::try_from(len).ok()?)?;
        self.source.read_linked(at, field).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// The link-time address stored at `at`.
    pub(crate) fn pointer(&self, at: Gva) -> Option<Gva> {
        let stored = u64::from_le_bytes(self.bytes(at)?);
        Some(Gva(stored.wrapping_sub(self.source.slide().cast_unsigned())))
    }

    /// The pointer with the number `number` in the array at `array`.
    pub(crate) fn element(&self, array: Gva, number: u64) -> Option<Gva> {
        self.pointer(array.wrapping_add(number.wrapping_mul(POINTER_BYTES)))
    }

    /// The readable pointers of the table between two labels of the linker.
    pub(crate) fn table(
        &self,
        symbols: &SymbolTable,
        start: &str,
        stop: &str,
    ) -> impl Iterator<Item = Gva> + use<'s> {
        let start = symbols.address_of(start);
        let stop = symbols.address_of(stop);
        let bytes = start
            .zip(stop)
            .and_then(|(start, stop)| stop.offset_from(start));
        let start = start.unwrap_or(Gva(0));
        let number = (bytes.unwrap_or(0) / POINTER_BYTES).min(MAX_POINTERS);
        let reader = *self;
        (0..number).filter_map(move |at| reader.element(start, at))
    }

    /// The text at `at`, up to its zero.
    pub(crate) fn text(&self, at: Gva) -> Option<String> {
        let mut bytes = vec![0; MAX_TEXT_BYTES];
        // A text may be at the very end of the image.
        while self.source.read_linked(at, &mut bytes).is_err() {
            bytes.truncate(bytes.len() / 2);
            if bytes.is_empty() {
                return None;
            }
        }
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }
}
