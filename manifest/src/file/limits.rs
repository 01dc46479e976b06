//! The limits of a manifest. The work for a manifest grows with its size, and another person may have written the manifest.

use std::ops::Range;

use super::error::Problem;

/// The maximum size of the file.
pub(super) const BYTES: u64 = 16 << 20;
/// The maximum number of `[[probe]]` tables: one for each function of a stock kernel, and some more. Each probe is compared with each
/// expectation.
pub(super) const PROBES: usize = 1 << 16;
/// The maximum number of patterns among the probes. Each is compared with each function of the kernel.
pub(super) const PATTERNS: usize = 1 << 8;
/// The maximum number of `[[expect]]` tables. Each looks at each event.
pub(super) const EXPECTATIONS: usize = 1 << 10;
/// The maximum number of probes in all expectations. A table of `order` has several.
pub(super) const EXPECTED_PROBES: usize = 1 << 10;
/// The maximum number of `[[inject]]` tables. Each is compared with each function of the kernel if it is a pattern.
pub(super) const INJECTIONS: usize = 1 << 8;

/// The `elements` if there are at most `most`. Otherwise notes the problem at the first element beyond the limit, and returns none: the
/// manifest is refused, so no time is spent on the elements.
pub(super) fn at_most<T>(
    most: usize,
    what: &'static str,
    elements: Vec<(T, Range<usize>)>,
    problems: &mut Vec<Problem>,
) -> Vec<(T, Range<usize>)> {
    check(most, what, elements.iter().map(|(_, span)| span), problems);
    match elements.len() > most {
        true => Vec::new(),
        false => elements,
    }
}

/// Notes a problem if there are more than `most` of `what`; `places` are their positions in the text.
pub(super) fn check<'s>(
    most: usize,
    what: &'static str,
    places: impl Iterator<Item = &'s Range<usize>>,
    problems: &mut Vec<Problem>,
) {
    let mut beyond = places.skip(most);
    if let Some(first) = beyond.next() {
        problems.push(Problem::TooMany {
            what,
            most,
            number: most + 1 + beyond.count(),
            span: first.clone().into(),
        });
    }
}
