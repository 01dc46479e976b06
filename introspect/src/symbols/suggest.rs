//! Names similar to a mistyped name.

use super::rank;

/// The compared length of a name: the head of a longer name decides.
const MAX_COMPARED: usize = 96;
/// The edits for a substring hit; every `CHARACTERS_PER_EDIT` characters around the substring count
/// as one more edit.
const SUBSTRING_EDITS: usize = 1;
const CHARACTERS_PER_EDIT: usize = 6;

/// At most `n` of `names` similar to a mistyped `wanted`, the likeliest first.
#[must_use]
pub fn nearest_names<'a>(
    wanted: &str,
    names: impl Iterator<Item = &'a str>,
    n: usize,
) -> Vec<String> {
    nearest(wanted, names.map(|name| (name, false)), n)
}

/// The `n` most similar of `names`, without duplicates. Each name comes with a flag for text, and
/// text wins among equals. Looks at each name once; the work per name is bounded by the lengths.
pub(super) fn nearest<'a>(
    wanted: &str,
    names: impl Iterator<Item = (&'a str, bool)>,
    n: usize,
) -> Vec<String> {
    let wanted = head(wanted);
    if wanted.is_empty() || n == 0 {
        return Vec::new();
    }
    let limit = 1 + wanted.len() / 4;
    let mut rows = Rows::default();
    let mut found: Vec<(usize, bool, &str)> = Vec::new();
    for (name, text) in names.filter(|(name, _)| !rank::is_machine_made(name)) {
        let edits = rows.distance(wanted, head(name), limit);
        let part = substring_edits(wanted, name);
        if let Some(score) = edits.into_iter().chain(part).min() {
            found.push((score, !text, name));
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|(_, _, name)| *name);
    let mut best: Vec<String> = Vec::new();
    for (_, _, name) in found {
        if best.len() == n {
            break;
        }
        if !best.iter().any(|known| known == name) {
            best.push(name.to_owned());
        }
    }
    best
}

fn head(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(MAX_COMPARED)]
}

/// The score of a name containing `wanted`, or `None`. Very short pieces occur in every name.
fn substring_edits(wanted: &[u8], name: &str) -> Option<usize> {
    let around = name.len().checked_sub(wanted.len())?;
    if wanted.len() < 3
        || !name
            .as_bytes()
            .windows(wanted.len())
            .any(|window| window == wanted)
    {
        return None;
    }
    Some(SUBSTRING_EDITS + around / CHARACTERS_PER_EDIT)
}

/// Three rows of the edit-distance table, kept between names.
#[derive(Default)]
struct Rows {
    before: Vec<usize>,
    above: Vec<usize>,
    current: Vec<usize>,
}

impl Rows {
    /// The number of insertions, deletions, substitutions and swaps of neighbours from `a` to `b`,
    /// letter case aside; `None` if more than `limit`.
    fn distance(&mut self, a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
        if a.len().abs_diff(b.len()) > limit {
            return None;
        }
        self.above.clear();
        self.above.extend(0..=b.len());
        self.before.clone_from(&self.above);
        for i in 1..=a.len() {
            self.current.clear();
            self.current.push(i);
            let mut least = i;
            for j in 1..=b.len() {
                let same = a[i - 1].eq_ignore_ascii_case(&b[j - 1]);
                let mut cost = (self.above[j - 1] + usize::from(!same))
                    .min(self.above[j] + 1)
                    .min(self.current[j - 1] + 1);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped {
                    cost = cost.min(self.before[j - 2] + 1);
                }
                least = least.min(cost);
                self.current.push(cost);
            }
            if least > limit {
                return None;
            }
            std::mem::swap(&mut self.before, &mut self.above);
            std::mem::swap(&mut self.above, &mut self.current);
        }
        self.above.last().copied().filter(|&edits| edits <= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
        Rows::default().distance(a.as_bytes(), b.as_bytes(), limit)
    }

    #[test]
    fn distances() {
        assert_eq!(distance("vfs_read", "vfs_read", 3), Some(0));
        assert_eq!(distance("vfs_raed", "vfs_read", 3), Some(1));
        assert_eq!(distance("vfs_rad", "vfs_read", 3), Some(1));
        assert_eq!(distance("vfsread", "VFS_read", 3), Some(1));
        assert_eq!(distance("kitten", "sitting", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("abc", "abcdefgh", 3), None);
    }

    #[test]
    fn the_likeliest_comes_first_and_only_once() {
        let names = [
            "vfs_read",
            "vfs_read",
            "vfs_readv",
            "do_sys_openat2",
            "vfs_write",
            "ksys_read",
        ];
        let names = || names.iter().map(|name| (*name, true));
        assert_eq!(nearest("vfs_raed", names(), 1), ["vfs_read"]);
        assert_eq!(
            nearest("vfs_rea", names(), 9)[..2],
            ["vfs_read", "vfs_readv"]
        );
        assert_eq!(nearest("openat2", names(), 3), ["do_sys_openat2"]);
        assert!(nearest("", names(), 3).is_empty());
        assert!(nearest("xyzzy", names(), 3).is_empty());
        assert!(nearest("vfs_read", names(), 0).is_empty());
    }

    #[test]
    fn text_wins_among_equals() {
        let names = [("abcd1", false), ("abcd2", true)];
        assert_eq!(nearest("abcd", names.into_iter(), 1), ["abcd2"]);
    }
}
