//! The stack of a program: from its registers, by the rules in the files that it has mapped.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;
use introspect::orc::SavedRegisters;
use thiserror::Error;

use super::address_space::{AddressSpace, PROGRAM_END, SpaceLayout};
use super::direct_map::DirectMap;
use super::elf::Bytes;
use super::files::{FileKey, ProgramFiles};
use super::frame::{FoundBy, ProgramFrame, ProgramStack, StackEnd};
use super::frame_pointer::{FramePointers, Within, is_behind_call};
use super::loaded_file::{LoadedFile, MappedFile, Opened};
use super::mapping::{Mapping, MappingLayout};
use super::memory::{Image, InCache, Resident};
use super::page_cache::{CachedFile, PageArray, PageCacheLayout};
use super::path::PathLayout;
use super::registers::{IP, ProgramRegisters, SP};
use super::unwind::{Caller, NoCaller, Rules};
use crate::KernelView;
use crate::reads::Reads;
use crate::structs::{NoType, StructType};

/// The most frames of a stack.
const MAX_FRAMES: usize = 128;
/// `THREAD_SIZE`.
const STACK_BYTES: u64 = 16 << 10;

/// The kernel's map of physical memory is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the kernel's map of physical memory cannot be found")]
pub(crate) struct NoDirectMap;

/// What the kernel's types say about programs. Made while the kernel runs.
#[derive(Debug)]
pub(crate) struct ProgramStacks {
    /// `task_struct.mm` and `task_struct.stack`.
    memory: Slot,
    stack: Slot,
    /// The byte, the shift and the mask of `task_struct.in_execve`; absent in kernels without it.
    in_exec: Option<(usize, u8, u8)>,
    space: SpaceLayout,
    mappings: MappingLayout,
    cache: PageCacheLayout,
    paths: PathLayout,
}

/// A reader of programs' stacks. The machine is paused, or the program is that of a stopped vCPU: its other threads may run, and what they
/// unmap meanwhile may be missing or wrong.
pub(crate) struct ProgramStackReader<'v> {
    layout: &'v ProgramStacks,
    reads: Reads<'v>,
    map: DirectMap,
    pages: PageArray,
    files: &'v ProgramFiles,
    limit: usize,
    /// The paths in this answer, by the `struct file`.
    paths: RefCell<HashMap<Gva, Option<Arc<str>>>>,
    /// The files without names in this answer, by the `address_space`.
    nameless: RefCell<HashSet<Gva>>,
}

impl std::fmt::Debug for ProgramStackReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramStackReader").finish_non_exhaustive()
    }
}

impl ProgramStacks {
    /// Takes the places of members from the kernel's types.
    ///
    /// # Errors
    ///
    /// If the types do not describe programs.
    pub(crate) fn new(types: &Btf) -> Result<Self, NoType> {
        let task = StructType::named(types, "task_struct")?;
        Ok(Self {
            memory: task.slot("mm")?,
            stack: task.slot("stack")?,
            in_exec: task.bits("in_execve").ok(),
            space: SpaceLayout::new(types)?,
            mappings: MappingLayout::new(types)?,
            cache: PageCacheLayout::new(types)?,
            paths: PathLayout::new(types)?,
        })
    }

    /// A reader of the programs in `view`, which reads `limit` bytes at the most, each read counted with 256 bytes more than it has. Files are looked
    /// for in `files`, and kept there.
    ///
    /// # Errors
    ///
    /// If the kernel's map of physical memory cannot be found.
    pub(crate) fn reader<'v>(
        &'v self,
        view: &'v KernelView<'v>,
        files: &'v ProgramFiles,
        limit: usize,
    ) -> Result<ProgramStackReader<'v>, NoDirectMap> {
        let map = DirectMap::find(view).ok_or(NoDirectMap)?;
        Ok(ProgramStackReader {
            layout: self,
            reads: Reads::new(view, limit),
            map,
            pages: PageArray::find(view, map).ok_or(NoDirectMap)?,
            files,
            limit,
            paths: RefCell::default(),
            nameless: RefCell::default(),
        })
    }
}

impl ProgramStackReader<'_> {
    /// The stack of the program of the task with the `task_struct` at `task`, from `registers` on.
    #[must_use]
    pub(crate) fn stack(&self, task: Gva, registers: &ProgramRegisters) -> ProgramStack {
        let mut stack = ProgramStack::default();
        let unwound = match self.program(task) {
            _ if !registers.is_long => Err(StackEnd::NotLong),
            _ if self.is_in_exec(task) => Err(StackEnd::InExec),
            Some(program) => program.unwind(*registers, &mut stack.frames),
            None => Err(StackEnd::NoProgram),
        };
        // Without budget, a failed read looks like memory that the guest does not have.
        stack.incomplete = unwound.err().map(|end| match self.reads.left() {
            0 => StackEnd::TooMuch(self.limit),
            _ => end,
        });
        stack
    }

    /// The stack of the program of the task with the `task_struct` at `task`, from the registers that the kernel has `saved` on.
    #[must_use]
    pub(crate) fn stack_behind(&self, task: Gva, saved: SavedRegisters) -> ProgramStack {
        let ended = |end| ProgramStack {
            incomplete: Some(end),
            ..ProgramStack::default()
        };
        // While a processor changes to another task, its stack is the next task's already.
        let stack = self.reads.pointer(task, self.layout.stack).ok().flatten();
        let at = match (saved, stack) {
            (SavedRegisters::All(at), Some(stack)) if at.0.wrapping_sub(stack.0) < STACK_BYTES => {
                at
            }
            _ => return ended(StackEnd::NotSaved),
        };
        let mut bytes = vec![0; ProgramRegisters::SAVED_BYTES];
        match self.reads.fill(at, &mut bytes) {
            Ok(()) => self.stack(task, &ProgramRegisters::saved(&bytes)),
            Err(_) => ended(StackEnd::NoRegisters(at)),
        }
    }

    /// Whether the task is between the address space of its former program and the registers of its next.
    fn is_in_exec(&self, task: Gva) -> bool {
        let Some((at, shift, mask)) = self.layout.in_exec else {
            return false;
        };
        let mut byte = [0];
        let read = self.reads.fill(task.wrapping_add(at as u64), &mut byte);
        read.is_ok() && byte[0] >> shift & mask != 0
    }

    /// What the reader may still read, bytes.
    #[must_use]
    pub(crate) fn left(&self) -> usize {
        self.reads.left()
    }

    fn program(&self, task: Gva) -> Option<Program<'_>> {
        let memory = self.reads.pointer(task, self.layout.memory).ok()??;
        let space = self
            .layout
            .space
            .space(&self.reads, self.map, memory)
            .ok()?;
        Some(Program {
            reader: self,
            memory,
            space,
        })
    }

    fn cached(&self, mapping: Gva) -> CachedFile<'_> {
        CachedFile::new(
            &self.layout.cache,
            &self.reads,
            self.map,
            self.pages,
            mapping,
        )
    }
}

/// A program.
struct Program<'r> {
    reader: &'r ProgramStackReader<'r>,
    /// The `mm_struct`.
    memory: Gva,
    space: AddressSpace<'r>,
}

/// The program's memory, and for pages that its page tables lack, what is in the page cache of the file. Right only for ranges that
/// the program does not write.
struct Code<'p>(&'p Program<'p>);

impl Bytes for Code<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        let program = self.0;
        if program.space.read(Gva(at), buf).is_some() {
            return Some(());
        }
        let mapping = program.mapping(Gva(at))?;
        let (file, offset) = mapping.file?;
        let len = buf.len() as u64;
        if mapping.end.0 - at < len {
            return None;
        }
        let pages = program.pages(file)?;
        program
            .reader
            .cached(pages)
            .read(offset.checked_add(at - mapping.start.0)?, buf)
    }
}

impl Program<'_> {
    /// Adds the functions on the stack from `registers` on to `frames`.
    fn unwind(
        &self,
        mut registers: ProgramRegisters,
        frames: &mut Vec<ProgramFrame>,
    ) -> Result<(), StackEnd> {
        let (mut interrupted, mut found_by) = (true, FoundBy::Registers);
        // A return to 0 is the end of a stack, a jump to 0 is a fault.
        while let Some(ip) = registers.values[IP].filter(|ip| *ip != 0 || frames.is_empty()) {
            if frames.len() >= MAX_FRAMES {
                return Err(StackEnd::TooMany(MAX_FRAMES));
            }
            // The byte before a return address is in the call.
            let selector = ip.wrapping_sub(u64::from(!interrupted));
            let opened = self.opened(Gva(selector));
            frames.push(self.frame(Gva(ip), selector, opened.as_ref().ok(), found_by));
            let by_rule = opened.and_then(|opened| {
                let caller = self.caller_by_rule(&opened, &registers, selector);
                caller.map_err(|why| StackEnd::NoCaller { at: Gva(ip), why })
            });
            let caller = match by_rule {
                Ok(None) => return Ok(()),
                Ok(Some(caller)) => {
                    if found_by == FoundBy::FramePointer {
                        self.check_return(&caller)?;
                    } else {
                        found_by = FoundBy::Rule;
                    }
                    caller
                }
                Err(end) if end.is_without_rules() => {
                    found_by = FoundBy::FramePointer;
                    let is_code = !matches!(end, StackEnd::NotMapped(_));
                    self.caller_by_frame_pointer(&registers, interrupted, is_code)
                        .ok_or(end)?
                }
                Err(end) => return Err(end),
            };
            let sp = |registers: &ProgramRegisters| registers.values[SP].unwrap_or(0);
            // A signal may have its own stack.
            if sp(&caller.registers) <= sp(&registers) && !caller.interrupted {
                return Err(StackEnd::WrongDirection(Gva(ip)));
            }
            registers = caller.registers;
            interrupted = caller.interrupted;
        }
        Ok(())
    }

    fn caller_by_rule(
        &self,
        opened: &Opened,
        registers: &ProgramRegisters,
        selector: u64,
    ) -> Result<Option<Caller>, NoCaller> {
        let rules = Rules {
            code: &Code(self),
            stack: &Resident(&self.space),
            table: opened.rules().ok_or(NoCaller::NoRule)?,
            charge: &|cost| self.reader.reads.take(cost).ok(),
        };
        rules.caller(registers, selector)
    }

    fn caller_by_frame_pointer(
        &self,
        registers: &ProgramRegisters,
        interrupted: bool,
        is_code: bool,
    ) -> Option<Caller> {
        let pointers = FramePointers {
            code: &Code(self),
            stack: &Resident(&self.space),
        };
        let within = match (interrupted, is_code, registers.values[IP]) {
            (true, true, Some(ip)) => pointers.within(ip),
            // The program has called an address without code.
            (true, false, _) => Within::NoFrame,
            _ => Within::Framed,
        };
        Some(Caller {
            registers: pointers.caller(registers, within)?,
            interrupted: false,
        })
    }

    /// Behind a frame pointer, a rule may have started from a false stack pointer: its caller must be behind a call, unless a signal has
    /// interrupted the caller.
    fn check_return(&self, caller: &Caller) -> Result<(), StackEnd> {
        match caller.registers.values[IP] {
            Some(ip) if ip != 0 && !caller.interrupted && !is_behind_call(&Code(self), ip) => {
                Err(StackEnd::NoCall(Gva(ip)))
            }
            _ => Ok(()),
        }
    }

    fn frame(
        &self,
        ip: Gva,
        selector: u64,
        opened: Option<&Opened>,
        found_by: FoundBy,
    ) -> ProgramFrame {
        let Some(opened) = opened else {
            return ProgramFrame {
                ip,
                symbol: None,
                file: None,
                offset: None,
                found_by,
            };
        };
        let back = ip.0.wrapping_sub(selector);
        ProgramFrame {
            ip,
            symbol: self.symbol(opened, ip, selector),
            file: opened.mapped.as_ref().and_then(|file| file.path.clone()),
            offset: Some(opened.offset.wrapping_add(back)),
            found_by,
        }
    }

    /// The name of the function that `selector` lies in, with the offset of `ip`.
    fn symbol(&self, opened: &Opened, ip: Gva, selector: u64) -> Option<String> {
        let functions = match &opened.mapped {
            Some(MappedFile { pages, .. }) => {
                if self.reader.nameless.borrow().contains(pages) {
                    return None;
                }
                let file = InCache(self.reader.cached(*pages));
                let functions = opened.file.functions(&file);
                if functions.is_none() {
                    self.reader.nameless.borrow_mut().insert(*pages);
                }
                self.reader.files.bound();
                functions?
            }
            None => opened.file.functions(&Image(&self.space, opened.start))?,
        };
        let linked = |at: u64| at.wrapping_sub(opened.bias);
        functions.name(linked(selector), linked(ip.0))
    }

    fn mapping(&self, at: Gva) -> Option<Mapping> {
        if at.0 >= PROGRAM_END {
            return None;
        }
        let found = self
            .reader
            .layout
            .mappings
            .at(&self.reader.reads, self.memory, at);
        found.ok().flatten()
    }

    /// The pages (`address_space`) of the `struct file` at `file`.
    fn pages(&self, file: Gva) -> Option<Gva> {
        let pages = self
            .reader
            .reads
            .pointer(file, self.reader.layout.cache.mapping);
        pages.ok().flatten()
    }

    /// The file with the code at `at`.
    fn opened(&self, at: Gva) -> Result<Opened, StackEnd> {
        let mapping = self.mapping(at).ok_or(StackEnd::NotMapped(at))?;
        let no_headers = StackEnd::NoHeaders(at);
        let within = at.0 - mapping.start.0;
        let (file, mapped, offset) = match mapping.file {
            Some((file, offset)) => {
                let pages = self.pages(file).ok_or(no_headers.clone())?;
                let mapped = MappedFile {
                    pages,
                    path: self.path(file),
                };
                let offset = offset.wrapping_add(within);
                (self.loaded(pages), Some(mapped), offset)
            }
            None => {
                let image = Image(&self.space, mapping.start);
                let image = LoadedFile::read(&image).ok_or(StackEnd::NoFile(at))?;
                (Some(Arc::new(image)), None, within)
            }
        };
        let file = file.ok_or(no_headers.clone())?;
        Opened::new(file, mapped, mapping.start, offset, at).ok_or(no_headers)
    }

    /// The path of the `struct file` at `file`.
    fn path(&self, file: Gva) -> Option<Arc<str>> {
        let read = || {
            let path = self.reader.layout.paths.of(&self.reader.reads, file);
            path.ok().map(Arc::from)
        };
        let mut paths = self.reader.paths.borrow_mut();
        paths.entry(file).or_insert_with(read).clone()
    }

    fn loaded(&self, pages: Gva) -> Option<Arc<LoadedFile>> {
        let read = || LoadedFile::read(&InCache(self.reader.cached(pages)));
        match FileKey::read(&self.reader.layout.cache, &self.reader.reads, pages) {
            Some(key) => self.reader.files.get_or_read(key, read),
            None => read().map(Arc::new),
        }
    }
}
