//! The 256 tokens of the names.

use std::ops::Range;

use regex::bytes::Regex;

use super::view::View;

/// The tokens of the ten digits, which every kernel's symbols use and which therefore stand for
/// themselves.
const DIGITS: &str = r"(?-u)0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
const FIRST_DIGIT: usize = b'0' as usize;
/// A token stands for at most a whole name.
const MAX_TOKEN_BYTES: usize = 512;
/// The largest distance from the last token to the index, for the sake of alignment.
const MAX_PADDING: usize = 64;
/// The most runs of the digits to examine; other tables of the alphabet make a handful.
const MAX_OCCURRENCES: usize = 4096;
/// The most token tables with a matching index to follow up. A kernel has one.
const MAX_TABLES: usize = 8;

/// A token table and the index.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The start of the table; the markers end shortly before.
    pub(super) start: usize,
    /// The end of the index; in newer kernels the addresses begin there.
    pub(super) index_end: usize,
    texts: Vec<Range<usize>>,
}

impl Tokens {
    /// The text of `token`.
    pub(super) fn text<'v>(&self, view: &View<'v>, token: u8) -> &'v [u8] {
        let text = self.texts.get(usize::from(token)).cloned();
        text.and_then(|text| view.bytes.get(text))
            .unwrap_or_default()
    }
}

/// All token tables in `view`.
pub(super) fn find(view: &View<'_>) -> Vec<Tokens> {
    let Ok(digits) = Regex::new(DIGITS) else {
        return Vec::new();
    };
    let occurrences = digits.find_iter(view.bytes).take(MAX_OCCURRENCES);
    occurrences
        .filter_map(|found| at_digits(view, found.start()))
        .take(MAX_TABLES)
        .collect()
}

/// The table with the token `0` at `digits`, proven by the index behind the table.
fn at_digits(view: &View<'_>, digits: usize) -> Option<Tokens> {
    let mut end = digits;
    let mut starts = Vec::with_capacity(256 - FIRST_DIGIT);
    for _ in FIRST_DIGIT..256 {
        starts.push(end - digits);
        let longest = &view.bytes[end..view.bytes.len().min(end + MAX_TOKEN_BYTES)];
        end += longest.iter().position(|&byte| byte == 0)? + 1;
    }
    (end..end + MAX_PADDING).find_map(|index| with_index(view, digits, &starts, index))
}

fn with_index(view: &View<'_>, digits: usize, starts: &[usize], index: usize) -> Option<Tokens> {
    let entry = |token: usize| view.u16(index + 2 * token).map(usize::from);
    let first_digit = entry(FIRST_DIGIT)?;
    for (token, start) in (FIRST_DIGIT..).zip(starts) {
        if entry(token)? != first_digit + start {
            return None;
        }
    }
    let table = digits.checked_sub(first_digit)?;
    let mut texts = Vec::with_capacity(256);
    for token in 0..256 {
        let start = entry(token)?;
        let end = if token == 255 { None } else { entry(token + 1) };
        let text = table + start;
        let len = match end {
            // The next token begins behind the token's NUL.
            Some(end) => end.checked_sub(start + 1)?,
            None => view.bytes[text..]
                .iter()
                .take(MAX_TOKEN_BYTES)
                .position(|&byte| byte == 0)?,
        };
        let terminated = view.u8(text + len)? == 0;
        if !terminated || len > MAX_TOKEN_BYTES || (token == 0 && start != 0) {
            return None;
        }
        texts.push(text..text + len);
    }
    Some(Tokens {
        start: table,
        index_end: index + 512,
        texts,
    })
}
