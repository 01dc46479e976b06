//! The words of watched data: an instruction has a hit for each word that it accesses.

/// The most bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;

/// The most words of `len` bytes.
pub(crate) const fn words(len: usize) -> usize {
    len.div_ceil(WORD_BYTES) + 1
}
