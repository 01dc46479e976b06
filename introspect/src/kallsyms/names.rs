//! The compressed names, and the markers: the offset of every 256th name.

use super::{budget::Budget, tokens::Tokens, view::View};

/// More symbols than any kernel has.
const MAX_SYMBOLS: usize = 1 << 20;
const NAMES_PER_MARKER: usize = 256;
/// The size of an entry in the table of symbols by name.
const BYTES_IN_SEQUENCE: usize = 3;
/// The longest name in tokens; the length field takes one or two more bytes.
const MAX_NAME_TOKENS: usize = 512;
/// The most bytes of the names behind the last marker.
const MAX_TAIL_BYTES: usize = NAMES_PER_MARKER * MAX_NAME_TOKENS;
/// The bound on zeroes between two tables.
const MAX_PADDING: usize = 8;
/// The longest unfolded name; a token beyond the limit is left out. The kernel's limit is 512.
const MAX_NAME_BYTES: usize = 1024;
/// All names unfolded, of which a kernel has 6 MB.
const MAX_UNFOLDED_BYTES: usize = 128 << 20;

/// The names' place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// The number of names.
    pub(super) count: usize,
    /// The offset of the count; in older kernels the addresses lie before the count.
    pub(super) count_at: usize,
    /// The offset of the first name.
    pub(super) start: usize,
}

/// The start and the end of the tokens of the name at `at`. Lengths from 128 on take two bytes
/// (since 6.1).
fn name_at(view: &View<'_>, at: usize) -> Option<(usize, usize)> {
    let low = usize::from(view.u8(at)?);
    let (start, len) = if low & 0x80 == 0 {
        (at + 1, low)
    } else {
        (at + 2, (low & 0x7f) | usize::from(view.u8(at + 1)?) << 7)
    };
    (1..=MAX_NAME_TOKENS)
        .contains(&len)
        .then_some((start, start + len))
}

/// The names encoded with `tokens`.
pub(super) fn find(view: &View<'_>, tokens: &Tokens, budget: &mut Budget) -> Option<Names> {
    // Markers were as wide as a pointer before 4.20.
    let adjacent = [4, 8].into_iter().find_map(|width| {
        let markers = Markers::ending_at(view, tokens.start, width)?;
        markers.names(view, budget)
    });
    adjacent.or_else(|| behind_sequence(view, tokens, budget))
}

/// The names of a kernel with the symbols' order by name, three bytes for each, between the markers
/// and the tokens: 6.2 and 6.3, and 6.1 with fixes.
fn behind_sequence(view: &View<'_>, tokens: &Tokens, budget: &mut Budget) -> Option<Names> {
    let latest = tokens
        .start
        .checked_sub(BYTES_IN_SEQUENCE * NAMES_PER_MARKER)?
        & !3;
    let earliest = tokens.start.saturating_sub(BYTES_IN_SEQUENCE * MAX_SYMBOLS);
    for end in (earliest.max(8)..=latest).rev().step_by(4) {
        budget.step()?;
        let Some(markers) = Markers::ending_at(view, end, 4) else {
            continue;
        };
        let between = tokens.start - end;
        let plausible = |count: usize| {
            let sequence = count * BYTES_IN_SEQUENCE;
            (sequence..sequence + MAX_PADDING).contains(&between)
        };
        let names = markers
            .names(view, budget)
            .filter(|names| plausible(names.count));
        if names.is_some() {
            return names;
        }
    }
    None
}

/// The offset of every 256th name from the first.
#[derive(Debug)]
struct Markers {
    start: usize,
    offsets: Vec<usize>,
}

impl Markers {
    /// Reads backwards from `end` to the first marker, which is 0; the others ascend.
    fn ending_at(view: &View<'_>, end: usize, width: usize) -> Option<Self> {
        let read = |at: usize| match width {
            4 => view.u32(at).map(|value| value as usize),
            _ => view.u64(at).and_then(|value| usize::try_from(value).ok()),
        };
        let mut at = end.checked_sub(width)?;
        if width == 4 && read(at)? == 0 {
            at = at.checked_sub(width)?;
        }
        let mut offsets = vec![read(at)?];
        while let Some(&later) = offsets.last().filter(|&&offset| offset != 0) {
            at = at.checked_sub(width)?;
            let offset = read(at)?;
            let plausible =
                (2 * NAMES_PER_MARKER..=MAX_TAIL_BYTES).contains(&later.checked_sub(offset)?);
            if !plausible || offsets.len() > MAX_SYMBOLS / NAMES_PER_MARKER {
                return None;
            }
            offsets.push(offset);
        }
        offsets.reverse();
        Some(Self { start: at, offsets })
    }

    /// Tries each possible start of the names, so that the last marker's names end before the
    /// markers.
    fn names(&self, view: &View<'_>, budget: &mut Budget) -> Option<Names> {
        let last = *self.offsets.last()?;
        let most = self.offsets.len() * NAMES_PER_MARKER;
        let plausible = |count: usize| count <= most && count + NAMES_PER_MARKER > most;
        let latest = self.start.checked_sub(last)? & !3;
        for start in (latest.saturating_sub(MAX_TAIL_BYTES).max(8)..=latest)
            .rev()
            .step_by(4)
        {
            // Zeros look like the only marker of few names, and a kernel may have megabytes of zeros.
            budget.step()?;
            // The count is aligned like the other tables: right before the names, or with padding.
            for count_at in [start - 4, start - 8] {
                let count = view.u32(count_at)? as usize;
                let padded = count_at + 4 == start || view.u32(count_at + 4)? == 0;
                if plausible(count) && padded {
                    let names = Names {
                        count,
                        count_at,
                        start,
                    };
                    match self.ends(view, &names, budget) {
                        Walk::Fits => return Some(names),
                        Walk::Differs => {}
                        Walk::OutOfBudget => return None,
                    }
                }
            }
        }
        None
    }

    /// Walks the names, comparing every 256th offset with the marker and the end with the markers'
    /// beginning.
    fn ends(&self, view: &View<'_>, names: &Names, budget: &mut Budget) -> Walk {
        let mut at = names.start;
        for number in 0..names.count {
            if budget.step().is_none() {
                return Walk::OutOfBudget;
            }
            let expected = self.offsets.get(number / NAMES_PER_MARKER).copied();
            if number % NAMES_PER_MARKER == 0 && expected != Some(at - names.start) {
                return Walk::Differs;
            }
            match name_at(view, at) {
                Some((_, end)) => at = end,
                None => return Walk::Differs,
            }
        }
        let padding = self
            .start
            .checked_sub(at)
            .and_then(|len| view.slice(at, len));
        match padding {
            Some(zeroes) if zeroes.len() < MAX_PADDING && zeroes.iter().all(|&byte| byte == 0) => {
                Walk::Fits
            }
            _ => Walk::Differs,
        }
    }
}

enum Walk {
    Fits,
    Differs,
    OutOfBudget,
}

impl Names {
    /// Unfolds the names in order and passes to `take` the number, the type letter and the name of
    /// each. Leaves out tokens beyond the length limit, and names with bytes other than printable
    /// ASCII.
    pub(super) fn each(
        &self,
        view: &View<'_>,
        tokens: &Tokens,
        mut take: impl FnMut(usize, char, &str),
    ) {
        let mut at = self.start;
        let mut left = MAX_UNFOLDED_BYTES;
        let mut name = Vec::with_capacity(MAX_NAME_BYTES);
        for number in 0..self.count {
            let Some((start, end)) = name_at(view, at) else {
                return;
            };
            let Some(folded) = view.bytes.get(start..end) else {
                return;
            };
            at = end;
            name.clear();
            for &token in folded {
                let text = tokens.text(view, token);
                if name.len() + text.len() <= MAX_NAME_BYTES {
                    name.extend_from_slice(text);
                }
            }
            left = match left.checked_sub(name.len()) {
                Some(left) => left,
                None => return,
            };
            let is_text = name.iter().all(u8::is_ascii_graphic);
            if let (true, Ok(text)) = (is_text, std::str::from_utf8(&name))
                && let Some((kind, rest)) = text.split_at_checked(1)
                && let Some(kind) = kind.chars().next()
            {
                take(number, kind, rest);
            }
        }
    }
}
