//! The paths of source files.
//!
//! A unit names its sources relative to the directory of the compiler. Paths are made absolute by text alone: the sources need not be on
//! this host.

use gimli::{AttributeValue, LineProgramHeader, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::{Slice, damaged, offset_of};

/// Longer paths are cut: PATH_MAX of Linux.
const MAX_BYTES: usize = 4096;

/// The path of the unit's main source.
pub(crate) fn of_unit(
    unit: UnitRef<'_, Slice<'_>>,
    budget: &mut Budget,
) -> Result<Option<String>, LookupError> {
    let Some(name) = unit.name else {
        return Ok(None);
    };
    let parts = [unit.comp_dir, None, Some(name)];
    joined(parts, budget).map(Some)
}

/// The path of the file `index` of a line program; `None` if the program has no such file.
pub(crate) fn of_file<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    header: &LineProgramHeader<Slice<'a>>,
    index: u64,
    budget: &mut Budget,
) -> Result<Option<String>, LookupError> {
    let Some(file) = header.file(index) else {
        return Ok(None);
    };
    let directory = match file.directory(header) {
        Some(directory) => Some(string(unit, directory)?),
        None => None,
    };
    let name = string(unit, file.path_name())?;
    joined([unit.comp_dir, directory, Some(name)], budget).map(Some)
}

/// The name of the file `index`, without directories unless the compiler has put them there.
pub(crate) fn string<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    value: AttributeValue<Slice<'a>>,
) -> Result<Slice<'a>, LookupError> {
    unit.attr_string(value).map_err(damaged(offset_of(unit)))
}

fn joined(parts: [Option<Slice<'_>>; 3], budget: &mut Budget) -> Result<String, LookupError> {
    let mut path = String::new();
    for part in parts.into_iter().flatten() {
        budget.spend_string(part.len())?;
        let bytes = part.slice();
        let part = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_BYTES)]);
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&part);
    }
    Ok(normalised(&path))
}

/// The path without `.`, `..` and empty components.
fn normalised(path: &str) -> String {
    let mut components: Vec<&str> = Vec::new();
    let is_absolute = path.starts_with('/');
    for component in path.split('/') {
        match component {
            "" | "." => (),
            ".." if components.last().is_some_and(|last| *last != "..") => {
                components.pop();
            }
            ".." if is_absolute => (),
            other => components.push(other),
        }
    }
    let root = if is_absolute { "/" } else { "" };
    format!("{root}{}", components.join("/"))
}

/// The directory of `path`, with the slash.
pub(crate) fn directory(path: &str) -> &str {
    path.rfind('/').map_or("", |slash| &path[..=slash])
}

/// The part of the directory `one` in which `path` is, too.
pub(crate) fn common_directory<'a>(one: &'a str, path: &str) -> &'a str {
    let same = one
        .bytes()
        .zip(path.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    // The bytes up to a slash are whole characters.
    let end = one.as_bytes()[..same]
        .iter()
        .rposition(|byte| *byte == b'/');
    end.map_or("", |slash| &one[..=slash])
}

/// Whether the last components of `path` are those of `suffix`.
pub(crate) fn ends_in(path: &str, suffix: &str) -> bool {
    let suffix = suffix.strip_prefix("./").unwrap_or(suffix);
    match path.strip_suffix(suffix) {
        Some(rest) => rest.is_empty() || rest.ends_with('/') || suffix.starts_with('/'),
        None => false,
    }
}

/// The last component.
pub(crate) fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_dots_and_detours() {
        for (path, expected) in [
            (
                "/build/linux/debian/build/../../fs/./open.c",
                "/build/linux/fs/open.c",
            ),
            ("./calls.c", "calls.c"),
            ("/../a", "/a"),
            ("../a/b", "../a/b"),
            ("a//b/..", "a"),
        ] {
            assert_eq!(normalised(path), expected);
        }
    }

    #[test]
    fn common_directory_ends_at_a_slash() {
        assert_eq!(
            common_directory("/b/linux/", "/b/linux/fs/open.c"),
            "/b/linux/"
        );
        assert_eq!(common_directory("/b/linux/", "/b/linus/a.c"), "/b/");
        assert_eq!(common_directory("/é/", "/è/a.c"), "/");
        assert_eq!(common_directory("x/", "y.c"), "");
        assert_eq!(directory("a.c"), "");
    }

    #[test]
    fn suffix_has_whole_components() {
        assert!(ends_in("/b/fs/read_write.c", "read_write.c"));
        assert!(ends_in("/b/fs/read_write.c", "./fs/read_write.c"));
        assert!(ends_in("/b/fs/read_write.c", "/b/fs/read_write.c"));
        assert!(ends_in("a.c", "a.c"));
        assert!(!ends_in("/b/fs/read_write.c", "write.c"));
    }
}
