//! Code of programs, as users write it: `/usr/bin/x:main`, `/usr/bin/x:main+0x4`, `/usr/bin/x:main*`, `/usr/bin/x:0x1180`,
//! `/usr/bin/x:provider:name`.

use std::fmt;

use super::piece::{Piece, check, check_characters, parse_address, parse_offset};
use super::{ProbeKind, SpecError, SpecProblem};

/// An instruction in a file that programs map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramCode {
    /// The path of the file in the guest, as `/proc/PID/maps` shows it.
    pub path: String,
    /// The place in the file.
    pub place: FilePlace,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FilePlace {
    /// An offset in a function of the file.
    Symbol {
        /// The function.
        name: String,
        /// The offset from the function's address, bytes.
        offset: u64,
    },
    /// The functions of the file with a name of this pattern.
    Glob(String),
    /// An offset in the file, bytes.
    Offset(u64),
    /// The marks of the file: places that its authors have marked, for SystemTap and other tracers (USDT).
    Marks(Box<MarkNames>),
}

/// The names of marks, each of which may be a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MarkNames {
    /// The part of the program.
    pub provider: String,
    /// The mark.
    pub name: String,
}

impl fmt::Display for ProgramCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path, self.place)
    }
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol { name, offset: 0 } | Self::Glob(name) => f.write_str(name),
            Self::Symbol { name, offset } => write!(f, "{name}+{offset:#x}"),
            Self::Offset(offset) => write!(f, "{offset:#x}"),
            Self::Marks(names) => write!(f, "{names}"),
        }
    }
}

impl fmt::Display for MarkNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.provider, self.name)
    }
}

/// Parses `PATH:SYMBOL`, `PATH:SYMBOL+OFFSET`, `PATH:PATTERN` and `PATH:0xOFFSET`. A path may have colons, a symbol has none. A probe at returns
/// names functions.
pub(super) fn parse(kind: ProbeKind, text: Piece<'_>) -> Result<ProgramCode, SpecError> {
    if kind == ProbeKind::Usdt {
        return parse_marks(text);
    }
    let (path, place) = match text.split_last(':') {
        Some((path, place)) if !place.text.is_empty() => (path, place),
        _ => return Err(text.is(SpecProblem::NoPlaceInFile)),
    };
    check_path(path)?;
    let in_file = parse_place(place)?;
    match in_file {
        FilePlace::Symbol { offset: 1.., .. } if kind.is_return() => {
            return Err(place.is(SpecProblem::OffsetOfReturn));
        }
        FilePlace::Offset(_) if kind.is_return() => {
            return Err(place.is(SpecProblem::FileOffsetOfReturn));
        }
        _ => (),
    }
    Ok(ProgramCode {
        path: path.text.to_owned(),
        place: in_file,
    })
}

/// Parses `PATH:PROVIDER:NAME`. A path may have colons, the names have none.
fn parse_marks(text: Piece<'_>) -> Result<ProgramCode, SpecError> {
    let parts = text.split_last(':').and_then(|(before, name)| {
        let (path, provider) = before.split_last(':')?;
        Some((path, provider, name))
    });
    let Some((path, provider, name)) = parts else {
        return Err(text.is(SpecProblem::NoMark));
    };
    for piece in [provider, name] {
        if piece.text.is_empty() {
            return Err(text.is(SpecProblem::NoMark));
        }
        check(piece, |c| {
            c.is_ascii_alphanumeric() || "_.$-*?[]!^".contains(c)
        })?;
    }
    check_path(path)?;
    Ok(ProgramCode {
        path: path.text.to_owned(),
        place: FilePlace::Marks(Box::new(MarkNames {
            provider: provider.text.to_owned(),
            name: name.text.to_owned(),
        })),
    })
}

/// Checks that the kernel can show the path: absolute, and without parts that a look-up removes.
fn check_path(path: Piece<'_>) -> Result<(), SpecError> {
    let is_plain =
        |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
    let parts = path.text.strip_prefix('/');
    match parts.is_some_and(|parts| parts.split('/').all(is_plain)) {
        true => Ok(()),
        false => Err(path.is(SpecProblem::BadPath(path.text.to_owned()))),
    }
}

fn parse_place(place: Piece<'_>) -> Result<FilePlace, SpecError> {
    let (name, offset) = match place.split('+') {
        Some((name, offset)) => (name, Some(offset)),
        None => (place, None),
    };
    if name.text.is_empty() {
        return Err(name.is(SpecProblem::NoPlaceInFile));
    }
    if name.text.starts_with(|first: char| first.is_ascii_digit()) {
        return match offset {
            Some(offset) => Err(offset.is(SpecProblem::OffsetFromAddress)),
            None => Ok(FilePlace::Offset(parse_address(name)?.0)),
        };
    }
    if name.text.contains(['*', '?', '[']) {
        check_characters(name, true)?;
        return match offset {
            Some(offset) => Err(offset.is(SpecProblem::OffsetFromPattern)),
            None => Ok(FilePlace::Glob(name.text.to_owned())),
        };
    }
    check_characters(name, false)?;
    Ok(FilePlace::Symbol {
        name: name.text.to_owned(),
        offset: offset.map_or(Ok(0), parse_offset)?,
    })
}
