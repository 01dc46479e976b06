//! What somebody who mistyped a word may have meant.

/// Words less alike than this are not offered: 1.0 is equality.
const ALIKE: f64 = 0.7;

/// The one of `known` that is most like `word`, if any is like it at all.
pub(crate) fn did_you_mean<'k>(
    word: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let word = word.to_ascii_lowercase();
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(&word, candidate),
                candidate,
            )
        })
        .filter(|&(alike, _)| alike >= ALIKE)
        // The first of several equals, so that the order of `known` decides.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn a_slip_is_seen_through_and_a_guess_is_not_made() {
        let known = ["kernel", "initrd", "cmdline", "memory"];
        assert_eq!(did_you_mean("kernl", known), Some("kernel"));
        assert_eq!(did_you_mean("Initrd", known), Some("initrd"));
        assert_eq!(did_you_mean("comdline", known), Some("cmdline"));
        assert_eq!(did_you_mean("disk", known), None);
        assert_eq!(did_you_mean("", known), None);
    }
}
