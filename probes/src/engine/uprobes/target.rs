//! Probes in programs, and the files that have their instructions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use address::{Gva, PAGE_BYTES};
use inspect::{
    FileFunction, FileId, FileMark, FileMarks, FileReader, FileVersion, NoCode, OpenFile, Storage,
};
use introspect::insn::{NotABoundary, check_boundary};
use manifest::{FilePlace, ProgramCode};

use super::code_table::CodeSite;
use super::mark_values::MarkParam;
use crate::registry::{Missed, Probe, Purpose};

/// The most files of a probe at once: a file that replaces another of the same path is another file.
const MAX_FILES: usize = 16;
/// The most notes about files that are not probed.
const MAX_NOTES: u8 = 16;
/// The most functions of a pattern, and the most pages of their code.
const MAX_PLACES: usize = 1000;
/// Behind the name of a function, the name of its part for rare cases, which the compiler has put elsewhere.
const PART: &str = ".cold";
/// The first bytes of a 32-bit program.
const MAGIC_32: [u8; 5] = *b"\x7fELF\x01";
/// The most bytes of a function that are decoded for a boundary, or whose returns are probed.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;

/// A probe in the programs that map a file.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) probe: Arc<Probe>,
    pub(crate) code: ProgramCode,
    /// The files that programs have mapped by the path.
    files: Vec<BoundFile>,
    /// The files that the probe has been in of late: the kernel forgets a file that no program uses, and the tables of its functions may not be
    /// in memory when a program maps the file again.
    earlier: VecDeque<BoundFile>,
    /// The last reason against a file, which a note has said.
    pub(crate) refused: Option<Unbound>,
    /// The notes about refused files that may still follow: a program can map any number of files by the path.
    notes_left: u8,
    pub(crate) searched: Searched,
}

/// How far the files have been searched that programs had mapped before the probe came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Searched {
    Never,
    /// Further searches follow.
    Once,
    Done,
}

/// The searches that are still to be made for new targets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searches {
    pub(crate) left: u32,
    /// The `mm_struct` of each program whose mappings have been about to change at each search so far.
    pub(crate) changing: BTreeSet<Gva>,
}

/// A file with probed instructions.
#[derive(Clone, Debug)]
struct BoundFile {
    file: FileId,
    version: FileVersion,
    places: Arc<[BoundPlace]>,
}

/// A probed instruction of a file.
#[derive(Clone, Debug)]
struct BoundPlace {
    /// The offset in the file, bytes.
    offset: u64,
    /// For a probe at returns: the function, and the part of it that the compiler has put elsewhere.
    parts: Arc<[Range<u64>]>,
    /// The name of the instruction in events, as those of modules: `main+0x0 [/bin/busybox]`, and of a mark `python:gc__start [/usr/bin/python3.11]`.
    symbol: Arc<str>,
    /// The operands of the mark; `None` for an instruction that is no mark.
    operands: Option<Arc<[MarkParam]>>,
}

/// The probed instructions that a file has been found to have.
#[derive(Debug)]
struct FoundPlaces {
    places: Vec<BoundPlace>,
    without_hits: WithoutHits,
}

/// The places of a name that have no hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WithoutHits {
    /// The functions that match the pattern, and that the probe cannot be in.
    pub(crate) left_out: usize,
    /// The marks that the program does not pass unless a tracer raises a counter in the program's memory.
    pub(crate) guarded: usize,
    /// The notes of marks that are damaged, or name an address without code.
    pub(crate) unusable: usize,
}

impl FoundPlaces {
    fn one(place: BoundPlace) -> Self {
        Self {
            places: vec![place],
            without_hits: WithoutHits::default(),
        }
    }
}

impl BoundPlace {
    /// The numbers of the pages with the instruction, or with the function whose returns are probed.
    fn pages(&self) -> BTreeSet<u64> {
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

/// The probed instructions of pages, by file and number.
pub(crate) type WantedPages = BTreeMap<(FileId, u64), Vec<CodeSite>>;

impl Target {
    pub(crate) fn new(probe: &Arc<Probe>, code: &ProgramCode) -> Self {
        Self {
            probe: Arc::clone(probe),
            code: code.clone(),
            files: Vec::new(),
            earlier: VecDeque::new(),
            refused: None,
            notes_left: MAX_NOTES,
            searched: Searched::Never,
        }
    }

    /// The files are those of `before`, the same probe.
    pub(crate) fn with_files_of(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => Self {
                files: before.files.clone(),
                earlier: before.earlier.clone(),
                refused: before.refused.clone(),
                notes_left: before.notes_left,
                searched: before.searched,
                ..self
            },
            None => self,
        }
    }

    /// Whether the probe is in the file, by its path, and the file or its contents are not known yet.
    pub(crate) fn wants(&self, file: &OpenFile) -> bool {
        let mut bound = self.files.iter().filter(|bound| bound.file == file.id);
        match bound.next() {
            Some(bound) => bound.version != file.version,
            None => file.path == self.code.path,
        }
    }

    /// The offset of the first instruction in the first of the files.
    pub(crate) fn offset(&self) -> Option<u64> {
        let places = &self.files.first()?.places;
        places.first().map(|place| place.offset)
    }

    /// Takes one of the notes about refused files.
    pub(crate) fn may_note(&mut self) -> bool {
        let left = self.notes_left.checked_sub(1);
        self.notes_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether a probed instruction of `file` is in one of `pages`.
    pub(crate) fn has_page_in(&self, file: &FileId, pages: &[Range<u64>]) -> bool {
        let mut bound = self.files.iter().filter(|bound| bound.file == *file);
        bound.any(|bound| {
            let mut numbers = bound.places.iter().flat_map(BoundPlace::pages);
            numbers.any(|number| pages.iter().any(|pages| pages.contains(&number)))
        })
    }

    /// Forgets the files that are gone.
    pub(crate) fn forget_gone(&mut self, reader: &FileReader<'_>) {
        self.files.retain(|bound| reader.exists(&bound.file));
    }

    /// Puts the probe into `file`. Returns the places of its names without hits, if they have been looked for.
    pub(crate) fn bind(
        &mut self,
        reader: &FileReader<'_>,
        file: &OpenFile,
    ) -> Result<WithoutHits, Unbound> {
        self.forget_gone(reader);
        match file.storage {
            Storage::PageCache => (),
            Storage::Overlay => return Err(Unbound::Storage("in an overlay file system")),
            Storage::HugePages => return Err(Unbound::Storage("in huge pages")),
            Storage::Persistent => return Err(Unbound::Storage("in persistent memory (DAX)")),
            Storage::Fuse => return Err(Unbound::Storage("in a file system of FUSE")),
        }
        let is_it = |it: &&BoundFile| it.file.is_same_file(&file.id) && it.version == file.version;
        let (places, without_hits) = match self.earlier.iter().find(is_it) {
            Some(earlier) => (Arc::clone(&earlier.places), WithoutHits::default()),
            None => {
                let found = self.find(reader, file)?;
                (found.places.into(), found.without_hits)
            }
        };
        // With other contents, the instruction is elsewhere.
        self.files.retain(|bound| bound.file != file.id);
        if self.files.len() == MAX_FILES {
            // A file that was removed keeps its number until its memory is used again.
            let unused = self.files.iter().position(|it| !reader.has_pages(&it.file));
            self.files.remove(unused.ok_or(Unbound::TooMany)?);
            // A program that has not used the removed file so far may do so yet.
            self.probe.counters.miss(Missed::Unprotected);
        }
        let bound = BoundFile {
            file: file.id,
            version: file.version,
            places,
        };
        self.earlier.retain(|it| !it.file.is_same_file(&file.id));
        self.earlier.truncate(MAX_FILES - 1);
        self.earlier.push_front(bound.clone());
        self.files.push(bound);
        Ok(without_hits)
    }

    /// The probed instructions of the file.
    fn find(&self, reader: &FileReader<'_>, file: &OpenFile) -> Result<FoundPlaces, Unbound> {
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
                        without_hits: WithoutHits {
                            left_out,
                            ..WithoutHits::default()
                        },
                    }),
                }
            }
            FilePlace::Marks(names) => {
                let found = reader.marks(&file.id, &names.provider, &names.name)?;
                let FileMarks { marks, unusable } = found;
                if marks.len() > MAX_PLACES {
                    return Err(Unbound::TooManyMarks);
                }
                let without_hits = WithoutHits {
                    left_out: 0,
                    guarded: marks.iter().filter(|mark| mark.has_semaphore).count(),
                    unusable,
                };
                let place = |mark: FileMark| BoundPlace {
                    offset: mark.offset,
                    parts: Arc::default(),
                    symbol: format!("{}:{} [{path}]", mark.provider, mark.name).into(),
                    operands: Some(MarkParam::all_of(&mark.operands)),
                };
                Ok(FoundPlaces {
                    places: marks.into_iter().map(place).collect(),
                    without_hits,
                })
            }
        }
    }

    /// Whether the calls of functions are followed to their returns.
    fn follows(&self) -> bool {
        matches!(self.probe.purpose, Purpose::Return(_))
    }

    /// Whether the function is part of another, which nothing calls.
    fn is_part(&self, function: &FileFunction) -> bool {
        self.follows() && function.name.contains(PART)
    }

    /// Whether the probe can be at a function that matches its pattern.
    fn can_be_at(&self, function: &FileFunction) -> bool {
        !self.follows() || range_of(function).is_ok()
    }

    /// The parts of all functions that the compiler has put elsewhere, for a probe at returns.
    fn all_parts(&self, reader: &FileReader<'_>, file: &OpenFile) -> Vec<FileFunction> {
        let pattern = format!("*{PART}*");
        match self.follows() {
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
        if !self.follows() {
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

    /// Adds the pages with the instructions in the files that `is_wanted` names.
    pub(crate) fn add_wanted(&self, is_wanted: impl Fn(&FileId) -> bool, wanted: &mut WantedPages) {
        for BoundFile { file, places, .. } in self.files.iter().filter(|it| is_wanted(&it.file)) {
            for place in places.iter() {
                for number in place.pages() {
                    let sites = wanted.entry((*file, number)).or_default();
                    sites.push(CodeSite {
                        probe: Arc::clone(&self.probe),
                        offset: place.offset,
                        parts: Arc::clone(&place.parts),
                        symbol: Arc::clone(&place.symbol),
                        operands: place.operands.clone(),
                    });
                }
            }
        }
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
