//! Watched data, as users write it: `jiffies`, `init_task.flags`, `panic_timeout:4`, `0xffffffff82a0c0a8:8:w`.

use std::fmt;

use address::Gva;

use super::piece::{Piece, check_characters, parse_address, parse_offset};
use super::{SpecError, SpecProblem};

/// The lengths of watched data, bytes.
const LENGTHS: [(&str, u8); 4] = [("1", 1), ("2", 2), ("4", 4), ("8", 8)];
/// The access that is watched: each write.
const WRITES: &str = "w";

/// The bytes of a watchpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchedData {
    /// The first byte.
    pub base: DataBase,
    /// The number of bytes: 1, 2, 4 or 8. `None`: the length of the variable or member, by its type.
    pub bytes: Option<u8>,
}

/// The address of watched data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataBase {
    /// A variable of the kernel, or a member of a variable.
    Variable {
        /// The variable's name. Behind a dot, the path of a member; the names of some variables have dots themselves.
        name: String,
        /// The offset from the variable or member, bytes.
        offset: u64,
    },
    /// A run-time address of the guest's kernel.
    Address(Gva),
}

impl fmt::Display for WatchedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            DataBase::Variable { name, offset: 0 } => f.write_str(name)?,
            DataBase::Variable { name, offset } => write!(f, "{name}+{offset:#x}")?,
            DataBase::Address(address) => write!(f, "{address}")?,
        }
        match self.bytes {
            Some(bytes) => write!(f, ":{bytes}"),
            None => Ok(()),
        }
    }
}

/// Parses `BASE`, `BASE:LENGTH` and `BASE:LENGTH:w`.
pub(super) fn parse(place: Piece<'_>) -> Result<WatchedData, SpecError> {
    let (base, length) = match place.split(':') {
        Some((base, behind)) => (base, Some(behind)),
        None => (place, None),
    };
    let bytes = length.map(parse_length).transpose()?;
    let base = parse_base(base)?;
    if bytes.is_none() && matches!(base, DataBase::Address(_)) {
        return Err(place.is(SpecProblem::NoLength));
    }
    Ok(WatchedData { base, bytes })
}

fn parse_base(base: Piece<'_>) -> Result<DataBase, SpecError> {
    let (name, offset) = match base.split('+') {
        Some((name, offset)) => (name, Some(offset)),
        None => (base, None),
    };
    if name.text.is_empty() {
        return Err(name.is(SpecProblem::NoLocation));
    }
    if name.text.starts_with(|first: char| first.is_ascii_digit()) {
        let address = parse_address(name)?;
        return match offset {
            Some(offset) => Err(offset.is(SpecProblem::OffsetFromAddress)),
            None => Ok(DataBase::Address(address)),
        };
    }
    check_characters(name, false)?;
    Ok(DataBase::Variable {
        name: name.text.to_owned(),
        offset: offset.map_or(Ok(0), parse_offset)?,
    })
}

/// Parses `LENGTH` and `LENGTH:w`.
fn parse_length(text: Piece<'_>) -> Result<u8, SpecError> {
    let (length, access) = match text.split(':') {
        Some((length, access)) => (length, Some(access)),
        None => (text, None),
    };
    let known = LENGTHS.iter().find(|(known, _)| *known == length.text);
    let Some((_, bytes)) = known else {
        return Err(length.is(SpecProblem::BadLength(length.text.to_owned())));
    };
    match access {
        Some(access) if access.text != WRITES => {
            Err(access.is(SpecProblem::OnlyWrites(access.text.to_owned())))
        }
        _ => Ok(*bytes),
    }
}
