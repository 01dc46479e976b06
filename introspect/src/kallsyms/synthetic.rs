//! Writes kallsyms tables like the kernel's build, in each layout that kernels have used.

use address::Gva;

/// The order and the encoding of the tables in a kernel generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Up to 4.19: 64-bit markers, offsets first.
    WideMarkers,
    /// Up to 6.1: offsets, base, count, names, markers, tokens.
    OffsetsFirst,
    /// Without CONFIG_KALLSYMS_BASE_RELATIVE: 64-bit addresses first.
    Absolute,
    /// 6.2 and 6.3: the order by name behind the markers.
    SequenceBeforeTokens,
    /// From 6.4 on: offsets and base behind the tokens.
    OffsetsLast,
    /// From 6.15 on: per-CPU symbols are ordinary symbols.
    UnsignedOffsets,
    /// From 7.0 on: aligned to 4 bytes, offsets to themselves.
    SelfRelative,
}

pub const LAYOUTS: [Layout; 7] = [
    Layout::WideMarkers,
    Layout::OffsetsFirst,
    Layout::Absolute,
    Layout::SequenceBeforeTokens,
    Layout::OffsetsLast,
    Layout::UnsignedOffsets,
    Layout::SelfRelative,
];

/// The address of `_text`.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;

/// A symbol to write: address, type letter, name.
pub type Entry = (u64, char, String);

/// The bytes before and behind the tables, like other read-only data of the kernel.
const SURROUNDINGS_BYTES: usize = 4096 + 40;

/// Names of the letters, digits and underscore that stand for themselves; these come as two-letter
/// tokens.
const PAIRS: [&str; 6] = ["vf", "s_", "__", "ea", "re", "do"];
/// The first token not needed for a letter of a name.
const FIRST_PAIR: u8 = 0x80;

/// Per-CPU symbols, the label of the text, `count` functions, and names of all lengths among them.
pub fn symbols(layout: Layout, count: u64) -> Vec<Entry> {
    let per_cpu = matches!(
        layout,
        Layout::WideMarkers
            | Layout::OffsetsFirst
            | Layout::Absolute
            | Layout::SequenceBeforeTokens
            | Layout::OffsetsLast
    );
    let mut symbols = Vec::new();
    if per_cpu {
        symbols.extend((0..20).map(|n| (n * 0x40, 'A', format!("per_cpu_{n}"))));
    }
    symbols.push((TEXT, 'T', "_text".to_owned()));
    symbols.push((TEXT, 'T', "_stext".to_owned()));
    // The folded length takes a second byte from 6.1 on.
    let longest = if layout == Layout::WideMarkers {
        100
    } else {
        400
    };
    for n in 0..count {
        let tail = "_x7".repeat(usize::try_from(n * 7 % longest).expect("short") / 3);
        symbols.push((TEXT + 0x10 + n * 0x30, 't', format!("vfs_read_{n}{tail}")));
    }
    symbols
}

/// The bytes of a kernel, mapped at `base`, with `symbols` in `layout`.
pub fn kernel(layout: Layout, base: Gva, relative_base: u64, symbols: &[Entry]) -> Vec<u8> {
    let mut image = Image {
        bytes: vec![0x5a; SURROUNDINGS_BYTES],
        align: layout.align(),
    };
    let (names, markers) = fold(symbols);
    let before = matches!(
        layout,
        Layout::WideMarkers
            | Layout::OffsetsFirst
            | Layout::Absolute
            | Layout::SequenceBeforeTokens
    );
    if before {
        image.addresses(layout, base, relative_base, symbols);
    }
    image.table(
        &u32::try_from(symbols.len())
            .expect("few symbols")
            .to_le_bytes(),
    );
    image.table(&names);
    let wide = layout == Layout::WideMarkers;
    image.table(
        &markers
            .iter()
            .flat_map(|&marker| {
                let bytes = (marker as u64).to_le_bytes();
                bytes.into_iter().take(if wide { 8 } else { 4 })
            })
            .collect::<Vec<u8>>(),
    );
    if layout == Layout::SequenceBeforeTokens {
        image.sequence(symbols);
    }
    image.tokens();
    if !before {
        image.addresses(layout, base, relative_base, symbols);
        image.sequence(symbols);
    }
    let end = (image.bytes.len() + SURROUNDINGS_BYTES).next_multiple_of(4096);
    image.bytes.resize(end, 0xa5);
    image.bytes
}

impl Layout {
    const fn align(self) -> usize {
        if matches!(self, Self::SelfRelative) {
            4
        } else {
            8
        }
    }
}

/// The names in tokens, each behind a length, and the offset of every 256th name.
fn fold(symbols: &[Entry]) -> (Vec<u8>, Vec<usize>) {
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (number, (_, kind, name)) in symbols.iter().enumerate() {
        if number % 256 == 0 {
            markers.push(names.len());
        }
        let mut folded = vec![u8::try_from(*kind).expect("ASCII")];
        let mut rest = name.as_str();
        while let Some(first) = rest.bytes().next() {
            let pair = (FIRST_PAIR..)
                .zip(PAIRS)
                .find(|(_, pair)| rest.starts_with(pair));
            let (token, len) = pair.map_or((first, 1), |(token, pair)| (token, pair.len()));
            folded.push(token);
            rest = &rest[len..];
        }
        let len = folded.len();
        if len < 128 {
            names.push(u8::try_from(len).expect("short"));
        } else {
            names.push(u8::try_from(len & 0x7f).expect("seven bits") | 0x80);
            names.push(u8::try_from(len >> 7).expect("short"));
        }
        names.extend(folded);
    }
    (names, markers)
}

struct Image {
    bytes: Vec<u8>,
    align: usize,
}

impl Image {
    fn align(&mut self) {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(self.align), 0);
    }

    fn table(&mut self, bytes: &[u8]) {
        self.align();
        self.bytes.extend_from_slice(bytes);
    }

    fn addresses(&mut self, layout: Layout, base: Gva, relative_base: u64, symbols: &[Entry]) {
        self.align();
        for &(address, ..) in symbols {
            let here = base.0 + self.bytes.len() as u64;
            let from_base = address.wrapping_sub(relative_base);
            let offset = match layout {
                Layout::Absolute => {
                    self.bytes.extend(address.to_le_bytes());
                    continue;
                }
                Layout::SelfRelative => address.wrapping_sub(here),
                Layout::UnsignedOffsets => from_base,
                // Per-CPU offsets as they are, others below zero.
                _ if address >> 63 == 0 => address,
                _ => u64::MAX - from_base,
            };
            self.bytes.extend(offset.to_le_bytes().into_iter().take(4));
        }
        if !matches!(layout, Layout::Absolute | Layout::SelfRelative) {
            self.table(&relative_base.to_le_bytes());
        }
    }

    fn sequence(&mut self, symbols: &[Entry]) {
        let mut order: Vec<usize> = (0..symbols.len()).collect();
        order.sort_by_key(|&number| &symbols[number].2);
        let bytes = |number: usize| (number as u64).to_be_bytes().into_iter().skip(5);
        self.table(&order.into_iter().flat_map(bytes).collect::<Vec<u8>>());
    }

    fn tokens(&mut self) {
        let mut table = Vec::new();
        let mut index = Vec::new();
        for token in 0..=u8::MAX {
            index.extend(
                u16::try_from(table.len())
                    .expect("a short table")
                    .to_le_bytes(),
            );
            let pair = token
                .checked_sub(FIRST_PAIR)
                .and_then(|pair| PAIRS.get(usize::from(pair)));
            match pair {
                Some(pair) => table.extend(pair.bytes()),
                None if token.is_ascii_graphic() => table.push(token),
                // Tokens not needed by a small kernel.
                None => table.extend(format!("unused{token}").bytes()),
            }
            table.push(0);
        }
        self.table(&table);
        self.table(&index);
    }
}
