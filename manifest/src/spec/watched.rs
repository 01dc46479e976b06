//! Watched data, as users write it: `jiffies`, `init_task.flags:r`, `panic_timeout:4`, `0xffffffff82a0c0a8:64:rw`, `sch_htb:htb_hysteresis:4`,
//! `struct task_struct.flags@pid:1`, `0xffff888004a2b3c0:8:hw`.

use std::fmt;

use address::Gva;

use super::piece::{Piece, check_characters, parse_address, parse_offset};
use super::{SpecError, SpecProblem};

/// The most bytes of a watchpoint.
pub const MAX_WATCHED_BYTES: u16 = 4096;

/// The accesses that are hits of a watchpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WatchedAccess {
    /// Writes.
    #[default]
    Writes,
    /// Reads, those of an instruction that also writes included.
    Reads,
    /// Reads and writes. An instruction that reads and writes the bytes is one hit.
    Both,
    /// Writes, which a debug register of the processor sees: no page is protected.
    HardwareWrites,
}

impl WatchedAccess {
    const ALL: [Self; 4] = [Self::Writes, Self::Reads, Self::Both, Self::HardwareWrites];

    /// The notation.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Writes => "w",
            Self::Reads => "r",
            Self::Both => "rw",
            Self::HardwareWrites => "hw",
        }
    }

    /// Whether reads are hits.
    #[must_use]
    pub const fn has_reads(self) -> bool {
        matches!(self, Self::Reads | Self::Both)
    }

    /// Whether writes are hits.
    #[must_use]
    pub const fn has_writes(self) -> bool {
        matches!(self, Self::Writes | Self::Both | Self::HardwareWrites)
    }

    /// Whether a debug register sees the accesses.
    #[must_use]
    pub const fn is_in_register(self) -> bool {
        matches!(self, Self::HardwareWrites)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.keyword() == text)
    }
}

/// The bytes of a watchpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchedData {
    /// The first byte.
    pub base: DataBase,
    /// The number of bytes, 1 to [`MAX_WATCHED_BYTES`]. `None`: the length of the variable or member, by its type.
    pub bytes: Option<u16>,
    /// The accesses that are hits.
    pub access: WatchedAccess,
}

/// The address of watched data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataBase {
    /// A variable of the kernel, or a member of a variable; or a variable of a module.
    Variable {
        /// The variable's name. Behind a dot, the path of a member; the names of some variables have dots themselves.
        name: String,
        /// The offset from the variable or member, bytes.
        offset: u64,
    },
    /// A run-time address of the guest's kernel.
    Address(Gva),
    /// A member of the kernel's `struct task_struct` of a process's first thread.
    TaskMember {
        /// The path of the member.
        path: String,
        /// The process's number, in the initial PID namespace.
        pid: u32,
    },
}

/// The largest number of a process, less than the kernel's `PID_MAX_LIMIT`.
const MAX_PID: u32 = (4 << 20) - 1;
/// In front of the member of a task.
const TASK: &str = "struct task_struct.";
/// Behind the member of a task, in front of the process's number.
const OF_PROCESS: &str = "@pid:";

impl fmt::Display for WatchedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            DataBase::Variable { name, offset: 0 } => f.write_str(name)?,
            DataBase::Variable { name, offset } => write!(f, "{name}+{offset:#x}")?,
            DataBase::Address(address) => write!(f, "{address}")?,
            DataBase::TaskMember { path, pid } => write!(f, "{TASK}{path}{OF_PROCESS}{pid}")?,
        }
        if let Some(bytes) = self.bytes {
            write!(f, ":{bytes}")?;
        }
        match self.access {
            WatchedAccess::Writes => Ok(()),
            other => write!(f, ":{}", other.keyword()),
        }
    }
}

/// Parses `BASE`, `BASE:LENGTH`, `BASE:ACCESS` and `BASE:LENGTH:ACCESS`. With `MODULE:` in front, the name of the module is returned, too.
pub(super) fn parse(place: Piece<'_>) -> Result<(Option<Piece<'_>>, WatchedData), SpecError> {
    if place.text.starts_with("struct ") {
        return Ok((None, parse_in_task(place)?));
    }
    let (module, data) = match place.split(':') {
        Some((module, data)) if is_module(module) && !is_behind_base(data) => (Some(module), data),
        _ => (None, place),
    };
    let (base, behind) = match data.split(':') {
        Some((base, behind)) => (base, Some(behind)),
        None => (data, None),
    };
    let (bytes, access) = behind.map_or(Ok((None, WatchedAccess::default())), parse_length)?;
    let base = parse_base(base)?;
    match (&base, bytes) {
        (DataBase::Address(_), None) => return Err(place.is(SpecProblem::NoLength)),
        // The types of modules have no variables.
        (DataBase::Variable { .. }, None) if module.is_some() => {
            return Err(data.is(SpecProblem::NoLengthInModule));
        }
        _ => (),
    }
    let data = WatchedData {
        base,
        bytes,
        access,
    };
    Ok((module, data))
}

/// Whether the first piece may be a module: the names of some begin with a digit, and addresses do.
fn is_module(text: Piece<'_>) -> bool {
    parse_address(text).is_err()
}

/// Whether `text` is what follows a variable or an address: a length or an access. The name of a variable does not begin with a digit. Nothing follows an
/// access, so `r:4` is a variable of a module.
fn is_behind_base(text: Piece<'_>) -> bool {
    let first = text.split(':').map(|(first, _)| first.text);
    first.is_none_or(|first| !first.starts_with(is_in_name))
}

/// Whether a name may begin with the character.
fn is_in_name(first: char) -> bool {
    first.is_ascii_alphabetic() || first == '_'
}

/// Parses `struct task_struct.PATH@pid:NUMBER`, and a length and an access behind it.
fn parse_in_task(place: Piece<'_>) -> Result<WatchedData, SpecError> {
    let of_other = || place.is(SpecProblem::MemberOfOther);
    let (member, process) = place.split('@').ok_or_else(of_other)?;
    let path = member.text.strip_prefix(TASK).ok_or_else(of_other)?;
    let path = Piece {
        text: path,
        start: member.start + TASK.len(),
    };
    if path.text.is_empty() {
        return Err(path.is(SpecProblem::NoLocation));
    }
    check_characters(path, false)?;
    let (kind, number) = process.split(':').ok_or_else(of_other)?;
    if kind.text != "pid" {
        return Err(of_other());
    }
    let (number, behind) = match number.split(':') {
        Some((number, behind)) => (number, Some(behind)),
        None => (number, None),
    };
    // `u32::from_str` would accept a sign.
    let is_number = number.text.bytes().all(|byte| byte.is_ascii_digit());
    // The idle tasks have the number 0.
    let pid = number.text.parse().ok();
    let pid = pid.filter(|pid| is_number && (1..=MAX_PID).contains(pid));
    let bad = || number.is(SpecProblem::BadProcess(number.text.to_owned()));
    let (bytes, access) = behind.map_or(Ok((None, WatchedAccess::default())), parse_length)?;
    let base = DataBase::TaskMember {
        path: path.text.to_owned(),
        pid: pid.ok_or_else(bad)?,
    };
    Ok(WatchedData {
        base,
        bytes,
        access,
    })
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

/// Parses `LENGTH`, `ACCESS` and `LENGTH:ACCESS`.
fn parse_length(text: Piece<'_>) -> Result<(Option<u16>, WatchedAccess), SpecError> {
    if let Some(access) = WatchedAccess::parse(text.text) {
        return Ok((None, access));
    }
    let (length, access) = match text.split(':') {
        Some((length, access)) => (length, Some(access)),
        None => (text, None),
    };
    let is_number = length
        .text
        .starts_with(|first: char| first.is_ascii_digit());
    let bytes = length.text.parse().ok().filter(|_| is_number);
    let bytes = bytes.filter(|bytes| (1..=MAX_WATCHED_BYTES).contains(bytes));
    let Some(bytes) = bytes else {
        return Err(length.is(SpecProblem::BadLength(length.text.to_owned())));
    };
    let access = match access {
        Some(access) => match WatchedAccess::parse(access.text) {
            Some(known) => known,
            None => return Err(access.is(SpecProblem::BadAccess(access.text.to_owned()))),
        },
        None => WatchedAccess::default(),
    };
    Ok((Some(bytes), access))
}
