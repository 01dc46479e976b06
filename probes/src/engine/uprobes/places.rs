//! The instructions of a file that a probe is at: an offset, functions by their names, or marks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use address::{Gva, PAGE_BYTES};
use inspect::{
    FileFunction, FileId, FileMark, FileMarks, FileReader, MarkCounter, NoCode, OpenFile,
};
use introspect::insn::{NotABoundary, check_boundary};
use manifest::{FilePlace, ProgramCode};

use super::mark_values::MarkParam;

/// The most files of a probe at once: a file that replaces another of the same path is another file.
pub(super) const MAX_FILES: usize = 16;
/// The most functions and marks of a name, and the most pages of their code.
pub(super) const MAX_PLACES: usize = 1000;
/// Behind the name of a function, the name of its part for rare cases, which the compiler has put elsewhere.
const PART: &str = ".cold";
/// The first bytes of a 32-bit program.
const MAGIC_32: [u8; 5] = *b"\x7fELF\x01";
/// The most bytes of a function that are decoded for a boundary, or whose returns are probed.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;

/// A probed instruction of a file.
#[derive(Clone, Debug)]
pub(super) struct BoundPlace {
    /// The offset in the file, bytes.
    pub(super) offset: u64,
    /// For a probe at returns: the function, and the part of it that the compiler has put elsewhere.
    pub(super) parts: Arc<[Range<u64>]>,
    /// The name of the instruction in events, as those of modules: `main+0x0 [/bin/busybox]`, and of a mark `python:gc__start [/usr/bin/python3.11]`.
    pub(super) symbol: Arc<str>,
    /// The operands of the mark; `None` for an instruction that is no mark.
    pub(super) operands: Option<Arc<[MarkParam]>>,
}

/// The probed instructions that a file has been found to have.
#[derive(Debug)]
pub(super) struct FoundPlaces {
    pub(super) places: Vec<BoundPlace>,
    /// The counters of the marks, by mark.
    pub(super) counters: Vec<Vec<MarkCounter>>,
    pub(super) without_hits: WithoutHits,
}

/// The places of a name that have no hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WithoutHits {
    /// The functions that match the pattern, and that the probe cannot be in.
    pub(crate) left_out: usize,
    /// The marks that the program passes only while a counter in its memory is raised, and whose counter instructions may read in unknown ways.
    pub(crate) guarded: usize,
    /// The pages of code that have not been in memory, and may have instructions that read the counters of marks.
    pub(crate) absent: u64,
    /// The pages of code beyond the limit of the search.
    pub(crate) unsearched: u64,
    /// The notes of marks that are damaged, or name an address without code.
    pub(crate) unusable: usize,
}

impl WithoutHits {
    /// Whether a program may pass a place of the names without a hit, or not pass it although it is probed.
    pub(crate) const fn may_hide_passes(&self) -> bool {
        self.guarded > 0 || self.absent > 0 || self.unsearched > 0 || self.unusable > 0
    }
}

impl FoundPlaces {
    fn one(place: BoundPlace) -> Self {
        Self {
            places: vec![place],
            counters: Vec::new(),
            without_hits: WithoutHits::default(),
        }
    }
}

impl BoundPlace {
    /// The numbers of the pages with the instruction, or with the function whose returns are probed.
    pub(super) fn pages(&self) -> BTreeSet<u64> {
        let own = self.offset / PAGE_BYTES;
        let pages_of = |part: &Range<u64>| part.start / PAGE_BYTES..part.end.div_ceil(PAGE_BYTES);
        let of_parts = self.parts.iter().flat_map(pages_of);
        of_parts.chain([own]).collect()
    }
}

/// Why a file is not probed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unbound {
    #[error("its pages are not in a page cache of its own: it is {0}")]
    Storage(&'static str),
    #[error("it is a 32-bit program")]
    Not64Bit,
    #[error(transparent)]
    Code(#[from] NoCode),
    #[error(transparent)]
    Boundary(#[from] NotABoundary),
    #[error("more than {MAX_FILES} files of this path are in use")]
    TooMany,
    #[error(
        "it has {0} functions with such names, and a probe can be at {MAX_PLACES}: use a narrower pattern"
    )]
    TooManyFunctions(usize),
    #[error("it does not say how long the function `{0}` is, so its returns cannot be found")]
    NoEnd(String),
    #[error(
        "the function `{name}` has {bytes} bytes, and a probe at returns is in functions of at most {MAX_FUNCTION_BYTES}"
    )]
    TooLong { name: String, bytes: u64 },
    #[error(
        "it does not say how long any of its {0} functions with such names is, so their returns cannot be found"
    )]
    NoFunctionWithEnd(usize),
    #[error(
        "its places with such names are on {0} pages, and a probe can be on {MAX_PLACES}: use a narrower pattern"
    )]
    TooManyPages(usize),
    #[error(
        "it has more than {MAX_PLACES} marks with such names, and a probe can be at {MAX_PLACES}: use a narrower pattern"
    )]
    TooManyMarks,
}

impl Unbound {
    /// Whether programs may execute the probed instruction nevertheless. A function that was not found may be in a table that is not in memory.
    pub(crate) const fn may_execute(&self) -> bool {
        match self {
            Self::Storage(_)
            | Self::Not64Bit
            | Self::TooMany
            | Self::TooManyFunctions(_)
            | Self::NoEnd(_)
            | Self::TooLong { .. }
            | Self::NoFunctionWithEnd(_)
            | Self::TooManyPages(_)
            | Self::TooManyMarks => true,
            // The notes that have been read name all marks.
            Self::Code(why) => !matches!(why, NoCode::Outside { .. } | NoCode::NoMark(_)),
            Self::Boundary(_) => false,
        }
    }
}

/// The place of a probe in a file, as the probe names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedPlace<'p> {
    pub(super) code: &'p ProgramCode,
    /// Whether the calls of functions are followed.
    pub(super) follows: bool,
}

impl NamedPlace<'_> {
    /// The probed instructions of the file.
    pub(super) fn find(
        &self,
        reader: &FileReader<'_>,
        file: &OpenFile,
    ) -> Result<FoundPlaces, Unbound> {
        let mut magic = [0; 5];
        if reader.read(&file.id, 0, &mut magic).is_some() && magic == MAGIC_32 {
            return Err(Unbound::Not64Bit);
        }
        let path = &self.code.path;
        match &self.code.place {
            FilePlace::Offset(offset) => Ok(FoundPlaces::one(BoundPlace {
                offset: *offset,
                parts: Arc::default(),
                symbol: format!("{offset:#x} [{path}]").into(),
                operands: None,
            })),
            FilePlace::Symbol { name, offset } => {
                let function = reader.function(&file.id, name)?;
                let at = function.at(*offset)?;
                check(reader, &file.id, function.offset, *offset)?;
                Ok(FoundPlaces::one(BoundPlace {
                    offset: at,
                    parts: self.parts_of(&function, &self.all_parts(reader, file))?,
                    symbol: format!("{name}+{offset:#x} [{path}]").into(),
                    operands: None,
                }))
            }
            FilePlace::Glob(pattern) => {
                let found = reader.functions(&file.id, pattern)?;
                let parts = self.all_parts(reader, file);
                let (mut places, mut pages, mut left_out) = (Vec::new(), BTreeSet::new(), 0);
                for function in found.into_iter().filter(|it| !self.is_part(it)) {
                    if !self.can_be_at(&function) {
                        left_out += 1;
                        continue;
                    }
                    let place = BoundPlace {
                        offset: function.offset,
                        parts: self.parts_of(&function, &parts)?,
                        symbol: format!("{}+0x0 [{path}]", function.name).into(),
                        operands: None,
                    };
                    pages.extend(place.pages());
                    places.push(place);
                }
                match places.len() {
                    0 if left_out == 0 => Err(NoCode::NoMatch(pattern.clone()).into()),
                    0 => Err(Unbound::NoFunctionWithEnd(left_out)),
                    functions if functions > MAX_PLACES => {
                        Err(Unbound::TooManyFunctions(functions))
                    }
                    _ if pages.len() > MAX_PLACES => Err(Unbound::TooManyPages(pages.len())),
                    _ => Ok(FoundPlaces {
                        places,
                        counters: Vec::new(),
                        without_hits: WithoutHits {
                            left_out,
                            ..WithoutHits::default()
                        },
                    }),
                }
            }
            FilePlace::Marks(names) => {
                let found = reader.marks(&file.id, &names.provider, &names.name)?;
                match found.marks.len() > MAX_PLACES {
                    true => Err(Unbound::TooManyMarks),
                    false => Ok(self.marks(found)),
                }
            }
        }
    }

    /// The places of the marks, and their counters.
    fn marks(&self, found: FileMarks) -> FoundPlaces {
        let FileMarks { marks, unusable } = found;
        let counters = marks.iter().map(|mark| mark.counters.clone());
        let counters = counters.filter(|counters| !counters.is_empty()).collect();
        let place = |mark: FileMark| BoundPlace {
            offset: mark.offset,
            parts: Arc::default(),
            symbol: format!("{}:{} [{}]", mark.provider, mark.name, self.code.path).into(),
            operands: Some(MarkParam::all_of(&mark.operands)),
        };
        FoundPlaces {
            places: marks.into_iter().map(place).collect(),
            counters,
            without_hits: WithoutHits {
                unusable,
                ..WithoutHits::default()
            },
        }
    }

    /// Whether the function is part of another, which nothing calls.
    fn is_part(&self, function: &FileFunction) -> bool {
        self.follows && function.name.contains(PART)
    }

    /// Whether the probe can be at a function that matches its pattern.
    fn can_be_at(&self, function: &FileFunction) -> bool {
        !self.follows || range_of(function).is_ok()
    }

    /// The parts of all functions that the compiler has put elsewhere, for a probe at returns.
    fn all_parts(&self, reader: &FileReader<'_>, file: &OpenFile) -> Vec<FileFunction> {
        let pattern = format!("*{PART}*");
        match self.follows {
            true => reader.functions(&file.id, &pattern).unwrap_or_default(),
            false => Vec::new(),
        }
    }

    /// The parts of the function among `all`, itself included, for a probe at returns. Functions of one name share their parts.
    fn parts_of(
        &self,
        function: &FileFunction,
        all: &[FileFunction],
    ) -> Result<Arc<[Range<u64>]>, Unbound> {
        if !self.follows {
            return Ok(Arc::default());
        }
        let is_its = |part: &&FileFunction| {
            let rest = part.name.strip_prefix(&function.name);
            let rest = rest.and_then(|rest| rest.strip_prefix(PART));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let parts = [range_of(function)?].into_iter();
        let elsewhere = all.iter().filter(is_its).filter_map(|it| range_of(it).ok());
        Ok(parts.chain(elsewhere).collect())
    }
}

/// The bytes of the function, offsets in the file.
fn range_of(function: &FileFunction) -> Result<Range<u64>, Unbound> {
    let (name, bytes) = (function.name.clone(), function.bytes);
    match function.offset.checked_add(bytes) {
        _ if bytes == 0 => Err(Unbound::NoEnd(name)),
        Some(end) if bytes <= MAX_FUNCTION_BYTES => Ok(function.offset..end),
        _ => Err(Unbound::TooLong { name, bytes }),
    }
}

/// Checks that an instruction begins `offset` bytes behind the function at `start` of the file, if the function is in memory.
fn check(
    reader: &FileReader<'_>,
    file: &FileId,
    start: u64,
    offset: u64,
) -> Result<(), NotABoundary> {
    const LONGEST: u64 = 15;
    let len = offset.saturating_add(LONGEST);
    let Ok(bytes) = usize::try_from(len.min(MAX_FUNCTION_BYTES)) else {
        return Ok(());
    };
    let mut code = vec![0; bytes];
    if len > MAX_FUNCTION_BYTES || reader.read(file, start, &mut code).is_none() {
        return Ok(());
    }
    check_boundary(&code, Gva(start), offset).map(drop)
}
