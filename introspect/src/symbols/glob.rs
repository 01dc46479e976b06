//! Shell patterns over symbol names.

/// Whether `pattern` matches all of `name`. `*` matches any run of characters, `?` any character,
/// `[a-z_]` a character of a set and `[!…]` or `[^…]` a character outside a set; a `[` without a
/// `]` matches a `[`.
///
/// Takes at most the product of the two lengths in steps.
#[must_use]
pub fn glob_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The positions to continue from after a mismatch: behind the last star, one character further.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, n));
            continue;
        }
        let step = match (pattern.get(p), name.get(n)) {
            (None, None) => return true,
            (Some(_), Some(&byte)) => one(&pattern[p..], byte),
            _ => None,
        };
        match (step, retry) {
            (Some(len), _) => {
                p += len;
                n += 1;
            }
            (None, Some((after_star, from))) if from < name.len() => {
                p = after_star;
                n = from + 1;
                retry = Some((after_star, n));
            }
            _ => return false,
        }
    }
}

/// Matches a byte against the head of `pattern`; returns the length of the matching head.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    let (&head, rest) = pattern.split_first()?;
    match head {
        b'?' => Some(1),
        b'[' => match set(rest, byte) {
            Some((true, len)) => Some(1 + len),
            Some((false, _)) => None,
            None => (byte == b'[').then_some(1),
        },
        _ => (head == byte).then_some(1),
    }
}

/// Whether `byte` is in the set with `text` behind the `[`, and the length of the set's text
/// including the `]`.
fn set(text: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let first = usize::from(negated);
    // A `]` right at the beginning is a member.
    let close = first + 1 + text.get(first + 1..)?.iter().position(|&c| c == b']')?;
    let members = &text[first..close];
    let mut found = false;
    let mut at = 0;
    while let Some(&low) = members.get(at) {
        match (members.get(at + 1), members.get(at + 2)) {
            (Some(b'-'), Some(&high)) => {
                found |= (low..=high).contains(&byte);
                at += 3;
            }
            _ => {
                found |= low == byte;
                at += 1;
            }
        }
    }
    Some((found != negated, close + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("vfs_read", "vfs_read", true),
            ("vfs_read", "vfs_readv", false),
            ("vfs_*", "vfs_read", true),
            ("*_read", "vfs_read", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("v*s*d", "vfs_read", true),
            ("v*s*x", "vfs_read", false),
            ("vfs_?ead", "vfs_read", true),
            ("vfs_[a-r]ead", "vfs_read", true),
            ("vfs_[!a-r]ead", "vfs_read", false),
            ("vfs_[^x]ead", "vfs_read", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("[", "[", true),
            ("*[0-9]", "openat2", true),
            ("a**b", "ab", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(
                glob_matches(pattern, name),
                expected,
                "{pattern} against {name}"
            );
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let name = "a".repeat(2000);
        assert!(!glob_matches(&format!("{}b", "a*".repeat(500)), &name));
    }
}
