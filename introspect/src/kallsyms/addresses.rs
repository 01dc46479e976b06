//! The addresses that belong to the names: their position in the kernel, and their encoding.

use super::{names::Names, tokens::Tokens, view::View};

/// The kernel is mapped in the last two gigabytes; KASLR stays within this range.
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// The least percentage of neighbours in ascending order.
const MIN_SORTED_PERCENT: usize = 98;
/// The least percentage of neighbours with different addresses; the others are aliases.
const MIN_DISTINCT_PERCENT: usize = 50;
/// The least percentage of kernel addresses; the others are per-CPU offsets.
const MIN_KERNEL_PERCENT: usize = 50;

/// The encoding of a stored address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// 64 bits: the address.
    Absolute,
    /// 32 bits: from 0 up the per-CPU offset; below 0, −1 minus the distance from the base.
    BaseOrPerCpu { base: u64 },
    /// 32 bits, unsigned: the distance from the base.
    Base { base: u64 },
    /// 32 bits, signed: the distance from the entry's own address.
    Itself,
}

impl Encoding {
    const fn width(self) -> usize {
        match self {
            Self::Absolute => 8,
            Self::BaseOrPerCpu { .. } | Self::Base { .. } | Self::Itself => 4,
        }
    }

    fn decode(self, view: &View<'_>, at: usize) -> Option<u64> {
        let offset = || Some(view.u32(at)?.cast_signed());
        Some(match self {
            Self::Absolute => view.u64(at)?,
            Self::BaseOrPerCpu { base } => match u64::try_from(offset()?) {
                Ok(per_cpu) => per_cpu,
                Err(_) => base
                    .wrapping_sub(1)
                    .wrapping_sub(i64::from(offset()?).cast_unsigned()),
            },
            Self::Base { base } => base.wrapping_add(u64::from(view.u32(at)?)),
            Self::Itself => view.address(at).0.wrapping_add_signed(i64::from(offset()?)),
        })
    }
}

/// The addresses of `names` in their order, from the first place and encoding in which they make
/// sense.
pub(super) fn find(view: &View<'_>, tokens: &Tokens, names: &Names) -> Option<Vec<u64>> {
    layouts(view, tokens, names)
        .into_iter()
        .find_map(|(start, encoding)| {
            let stride = encoding.width();
            view.slice(start, names.count * stride)?;
            let decode = |number| encoding.decode(view, start + number * stride);
            let addresses: Vec<u64> = (0..names.count).map(decode).collect::<Option<_>>()?;
            are_plausible(&addresses).then_some(addresses)
        })
}

/// All starts and encodings to try. Encodings with a base come first: offsets from a base also look
/// like offsets to themselves, only a little stretched, but no base stands behind offsets to
/// themselves.
fn layouts(view: &View<'_>, tokens: &Tokens, names: &Names) -> Vec<(usize, Encoding)> {
    let mut layouts = Vec::new();
    let mut with_base = |start: usize, base_at: usize| {
        if let Some(base) = view.u64(base_at).filter(|&base| base >= KERNEL_MAP) {
            layouts.push((start, Encoding::BaseOrPerCpu { base }));
            layouts.push((start, Encoding::Base { base }));
        }
    };
    let narrow = names.count * 4;
    // Up to 6.3: offsets, base, count, each aligned to 8 bytes.
    if let Some(base_at) = (names.count_at & !7).checked_sub(8)
        && let Some(start) = base_at.checked_sub(narrow)
    {
        with_base(start & !7, base_at);
    }
    // From 6.4 on: token index, offsets, base.
    let behind = tokens.index_end.next_multiple_of(8);
    with_base(behind, (behind + narrow).next_multiple_of(8));
    // Without CONFIG_KALLSYMS_BASE_RELATIVE, on either side.
    if let Some(start) = (names.count_at & !7).checked_sub(names.count * 8) {
        layouts.push((start, Encoding::Absolute));
    }
    layouts.push((behind, Encoding::Absolute));
    layouts.push((tokens.index_end.next_multiple_of(4), Encoding::Itself));
    layouts
}

/// Whether `addresses` can belong to a kernel: nearly sorted, mostly different, mostly in the
/// kernel's mapping.
fn are_plausible(addresses: &[u64]) -> bool {
    let pairs = addresses.len().saturating_sub(1);
    let sorted = addresses
        .windows(2)
        .filter(|pair| pair[0] <= pair[1])
        .count();
    let ascending = addresses
        .windows(2)
        .filter(|pair| pair[0] < pair[1])
        .count();
    let kernel = addresses
        .iter()
        .filter(|&&address| address >= KERNEL_MAP)
        .count();
    sorted * 100 >= pairs * MIN_SORTED_PERCENT
        && ascending * 100 >= pairs * MIN_DISTINCT_PERCENT
        && kernel * 100 >= addresses.len() * MIN_KERNEL_PERCENT
}
