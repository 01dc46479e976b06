//! Probes in programs, and the files that have their instructions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use address::{Gva, PAGE_BYTES};
use inspect::{FileId, FileReader, FileVersion, NoCode, OpenFile, Storage};
use introspect::insn::{NotABoundary, check_boundary};
use manifest::{FilePlace, ProgramCode};

use super::code_table::CodeSite;
use crate::registry::Probe;

/// The most files of a probe at once: a file that replaces another of the same path is another file.
const MAX_FILES: usize = 16;
/// The first bytes of a 32-bit program.
const MAGIC_32: [u8; 5] = *b"\x7fELF\x01";
/// The most bytes that are decoded for a boundary.
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
}

/// A file with the probed instruction.
#[derive(Clone, Copy, Debug)]
struct BoundFile {
    file: FileId,
    version: FileVersion,
    /// The offset of the instruction, bytes.
    offset: u64,
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
}

impl Unbound {
    /// Whether programs may execute the probed instruction nevertheless. A function that was not found may be in a table that is not in memory.
    pub(crate) const fn may_execute(&self) -> bool {
        match self {
            Self::Storage(_) | Self::Not64Bit | Self::TooMany => true,
            Self::Code(why) => !matches!(why, NoCode::Outside { .. }),
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
        }
    }

    /// The files are those of `before`, the same probe.
    pub(crate) fn with_files_of(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => Self {
                files: before.files.clone(),
                earlier: before.earlier.clone(),
                refused: before.refused.clone(),
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

    /// The offset of the instruction in the first of the files.
    pub(crate) fn offset(&self) -> Option<u64> {
        self.files.first().map(|bound| bound.offset)
    }

    /// Forgets the files that are gone.
    pub(crate) fn forget_gone(&mut self, reader: &FileReader<'_>) {
        self.files.retain(|bound| reader.exists(&bound.file));
    }

    /// Puts the probe into `file`.
    pub(crate) fn bind(&mut self, reader: &FileReader<'_>, file: &OpenFile) -> Result<(), Unbound> {
        self.forget_gone(reader);
        // With other contents, the instruction is elsewhere.
        self.files.retain(|bound| bound.file != file.id);
        match file.storage {
            Storage::PageCache => (),
            Storage::Overlay => return Err(Unbound::Storage("in an overlay file system")),
            Storage::HugePages => return Err(Unbound::Storage("in huge pages")),
            Storage::Persistent => return Err(Unbound::Storage("in persistent memory (DAX)")),
            Storage::Fuse => return Err(Unbound::Storage("in a file system of FUSE")),
        }
        if self.files.len() == MAX_FILES {
            // A file that was removed keeps its number until its memory is used again.
            let unused = self.files.iter().position(|it| !reader.has_pages(&it.file));
            self.files.remove(unused.ok_or(Unbound::TooMany)?);
        }
        let is_it = |it: &&BoundFile| it.file.is_same_file(&file.id) && it.version == file.version;
        let offset = match self.earlier.iter().find(is_it) {
            Some(earlier) => earlier.offset,
            None => self.find(reader, file)?,
        };
        let bound = BoundFile {
            file: file.id,
            version: file.version,
            offset,
        };
        self.earlier.retain(|it| !it.file.is_same_file(&file.id));
        self.earlier.truncate(MAX_FILES - 1);
        self.earlier.push_front(bound);
        self.files.push(bound);
        Ok(())
    }

    /// The offset of the instruction in the file.
    fn find(&self, reader: &FileReader<'_>, file: &OpenFile) -> Result<u64, Unbound> {
        let mut magic = [0; 5];
        if reader.read(&file.id, 0, &mut magic).is_some() && magic == MAGIC_32 {
            return Err(Unbound::Not64Bit);
        }
        match &self.code.place {
            FilePlace::Offset(offset) => Ok(*offset),
            FilePlace::Symbol { name, offset } => {
                let start = reader.function(&file.id, name, 0)?;
                let at = reader.function(&file.id, name, *offset)?;
                check(reader, &file.id, start, *offset)?;
                Ok(at)
            }
        }
    }

    /// Adds the pages with the instruction.
    pub(crate) fn add_wanted(&self, wanted: &mut WantedPages) {
        for BoundFile { file, offset, .. } in &self.files {
            let sites = wanted.entry((*file, offset / PAGE_BYTES)).or_default();
            sites.push(CodeSite {
                probe: Arc::clone(&self.probe),
                offset: *offset,
                symbol: self.symbol().into(),
            });
        }
    }

    /// The name of the instruction in events, as those of modules: `main+0x0 [/bin/busybox]`.
    fn symbol(&self) -> String {
        let path = &self.code.path;
        match &self.code.place {
            FilePlace::Symbol { name, offset } => format!("{name}+{offset:#x} [{path}]"),
            FilePlace::Offset(offset) => format!("{offset:#x} [{path}]"),
        }
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
