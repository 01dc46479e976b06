//! Suggestions for mistyped words.

/// The minimum similarity of a suggestion; equal words have 1.0.
const ALIKE: f64 = 0.7;

/// The word of `known` most similar to `word`, if similar enough.
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
        // Of equally similar words the first, so that the order of `known` decides.
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
