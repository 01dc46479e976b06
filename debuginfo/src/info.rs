//! A file with debug information, and the lines of an address.

use std::path::Path;

use address::Gva;
use introspect::signature::Variable;
use introspect::{BuildId, SymbolOffset, SymbolTable};

use crate::contents::Contents;
use crate::elf::FileKind;
use crate::error::{InlinedError, LineError, LookupError, OpenError};
use crate::scopes::SourcePlace;
use crate::unit_cache::UnitCache;
use crate::{inlined, line_addresses, variables};

/// More inlined functions at one address are left out, as only a damaged file has.
const MAX_FRAMES: usize = 1024;

/// A line of a source file, with the function around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    /// The function; `None` in code of an assembler.
    pub function: Option<String>,
    /// The path of the source file, relative to the directory of the kernel's sources.
    pub file: Option<String>,
    /// The line, from 1 on; 0 if the compiler names none.
    pub line: u64,
}

/// A file with debug information.
#[derive(Debug)]
pub struct DebugInfo {
    contents: Contents,
    decoded: UnitCache,
}

impl DebugInfo {
    /// Reads the regular file at `path`. The sections with debug information stay in memory.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self::of_contents(Contents::read(path, FileKind::Kernel)?))
    }

    /// Reads the regular file at `path`, which belongs to a module and may be compressed by xz or zstd. Paths of sources in `kernel_sources`, the
    /// directories of the kernel's, are relative to these.
    ///
    /// The addresses are made up: those of [`symbols`](Self::symbols) in this file alone.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_module(path: &Path, kernel_sources: &[String]) -> Result<Self, OpenError> {
        let mut contents = Contents::read(path, FileKind::Module)?;
        contents.list.prefer_roots(kernel_sources);
        Ok(Self::of_contents(contents))
    }

    fn of_contents(contents: Contents) -> Self {
        let decoded = UnitCache::new(&contents);
        Self { contents, decoded }
    }

    /// The directories of the sources, to which the paths of lines are relative.
    #[must_use]
    pub fn source_directories(&self) -> &[String] {
        &self.contents.list.roots
    }

    /// The size of the sections in memory, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.contents.parts.bytes
    }

    /// The build-id of the kernel or the module that the file belongs to.
    #[must_use]
    pub const fn build_id(&self) -> Option<&BuildId> {
        self.contents.parts.build_id.as_ref()
    }

    /// The symbols of code in the file's symbol table; empty if the file has none.
    #[must_use]
    pub const fn symbols(&self) -> &SymbolTable {
        &self.contents.parts.symbols
    }

    /// The function of a module with the code at `address`; `None` for code that a processor does not execute there, because the kernel copies it over
    /// other code, and for the file of a kernel.
    #[must_use]
    pub fn module_function_at(&self, address: Gva) -> Option<SymbolOffset> {
        let sections = &self.contents.parts.executed;
        let section = sections
            .iter()
            .find(|section| section.contains(&address.0))?;
        let symbols = self.symbols();
        let found = symbols.resolve(address).or_else(|| {
            // The table does not know the end of its last symbol.
            let symbol = symbols.iter().last()?;
            let offset = address.offset_from(symbol.address)?;
            Some(SymbolOffset { symbol, offset })
        })?;
        section.contains(&found.symbol.address.0).then_some(found)
    }

    /// The lines of the code at the link-time address `address`: that of the innermost inlined function first, then those of the calls
    /// around, the last in the function that has the code. Empty if the file does not know the address.
    ///
    /// # Errors
    ///
    /// If the debug information of the unit is damaged.
    pub fn lines_at(&mut self, address: Gva) -> Result<Vec<SourceFrame>, LookupError> {
        let holds = |index: &usize| self.contents.list.units[*index].holds(address.0);
        let Some(index) = (0..self.contents.list.units.len()).find(holds) else {
            return Ok(Vec::new());
        };
        let unit = self.decoded.unit(index, &self.contents)?;
        let frames = unit.at(address.0, &mut self.contents.budget())?;
        let frames = frames.into_iter().map(|frame| SourceFrame {
            function: frame.function.map(str::to_owned),
            file: frame.path.map(|path| self.contents.shown(path)),
            line: frame.line,
        });
        let known = |frame: &SourceFrame| frame.function.is_some() || frame.file.is_some();
        Ok(frames.filter(known).take(MAX_FRAMES).collect())
    }

    /// The places at which the code of line `line` begins, in ascending order of their addresses. `file` is the end of a path, in whole
    /// components. Each function that has code of the line, and each inlined copy, has one place: the lowest beginning of a statement; if
    /// no statement begins there, the lowest instruction of the line; if the line only calls inlined functions, the first of a copy.
    ///
    /// # Errors
    ///
    /// See [`LineError`].
    pub fn places_of_line(&self, file: &str, line: u64) -> Result<Vec<SourcePlace>, LineError> {
        line_addresses::find(&self.contents, file, line)
    }

    /// The places of the inlined copies of `function`, in ascending order of their addresses.
    ///
    /// # Errors
    ///
    /// See [`InlinedError`].
    pub fn inlined_copies(&self, function: &str) -> Result<Vec<SourcePlace>, InlinedError> {
        inlined::find(&self.contents, function)
    }

    /// The variables at each of `places`: the parameters of the function or inlined copy, and then those variables of its blocks around the
    /// place that have a value there.
    ///
    /// # Errors
    ///
    /// If the debug information is damaged.
    pub fn variables(&self, places: &[SourcePlace]) -> Result<Vec<Vec<Variable>>, LookupError> {
        variables::find(&self.contents, places)
    }
}
