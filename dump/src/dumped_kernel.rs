//! The kernel in a core file.
//!
//! ```text
//!  file ── headers ──▶ segments ──▶ memory ───────────────┬──────────────────┐
//!             │           └─ of the text: the image ──────┼─▶ symbols, types │
//!             └─────────▶ notes ── VMCOREINFO: the slide ─┘      │           ▼
//!                           └───── registers                     └──▶ page tables
//! ```
//!
//! hyprobe finds symbols and types in the kernel's memory itself, as it does in a guest's, and needs no file of the kernel.

use std::fs::File;

use address::{Gpa, Gva};
use inspect::{KernelMemory, KernelView, NotReadable};
use introspect::{
    Btf, BtfError, BuildId, GuestImage, ImageSource as _, PagingState, SymbolTable, kallsyms,
    read_virt, walk,
};

use crate::core_error::{DumpReadError, OpenDumpError};
use crate::core_headers::{CoreHeaders, LoadSegment};
use crate::core_memory::CoreMemory;
use crate::kernel_part::START_KERNEL_MAP;
use crate::notes::{self, Note};
use crate::registers::DumpedRegisters;
use crate::vmcoreinfo;

/// The kernel's own page tables.
const PAGE_TABLES: &str = "init_top_pgt";
const FIRST_SYMBOL: &str = "_text";
const BANNER: &str = "linux_banner";
/// The banner is a line of about 200 bytes.
const BANNER_BYTES: usize = 512;
const NOTES: [&str; 2] = ["__start_notes", "__stop_notes"];
/// The kernel's notes have some hundred bytes.
const MAX_NOTES_BYTES: u64 = 64 << 10;

/// The kernel of a dumped guest.
#[derive(Debug)]
pub struct DumpedKernel {
    pub(crate) memory: CoreMemory,
    pub(crate) paging: PagingState,
    pub(crate) symbols: SymbolTable,
    pub(crate) types: Result<Btf, BtfError>,
    pub(crate) vcpus: Vec<DumpedRegisters>,
    pub(crate) slide: i64,
    pub(crate) text: LoadSegment,
}

impl DumpedKernel {
    /// Reads the headers of the core file `file`, which has `size` bytes, and finds the kernel in the memory.
    ///
    /// # Errors
    ///
    /// If the file is no core file, is damaged or not complete, or the kernel is not in the memory.
    pub fn open(file: File, size: u64) -> Result<Self, OpenDumpError> {
        let headers = CoreHeaders::read(&file, size)?;
        let (vcpus, slide) = from_notes(&headers.notes)?;
        let text = headers
            .loads
            .iter()
            .find(|load| load.at >= START_KERNEL_MAP);
        let text = *text.ok_or(OpenDumpError::NoText)?;
        let slide = slide.ok_or(OpenDumpError::NoOffset)?;
        let memory = CoreMemory::new(file, headers.loads);
        let found = Found::in_memory(&memory, text, slide);
        // Without some bytes of the file, the search finds nothing, or something else.
        if let Some(failure) = memory.take_failure() {
            return Err(failure.into());
        }
        let Found {
            symbols,
            types,
            paging,
        } = found?;
        Ok(Self {
            memory,
            paging,
            symbols,
            types,
            vcpus,
            slide,
            text,
        })
    }

    /// Whether all answers since the last call come from the bytes of the file.
    ///
    /// # Errors
    ///
    /// The first read of the file that failed: the addresses counted as missing, so answers are wrong or incomplete.
    pub fn check_reads(&self) -> Result<(), DumpReadError> {
        self.memory.take_failure().map_or(Ok(()), Err)
    }

    /// The kernel, for questions about tasks, modules, the log, types and expressions.
    #[must_use]
    pub fn view(&self) -> KernelView<'_> {
        KernelView::new(self, &self.symbols, self.types.as_ref().ok(), self.slide)
    }

    /// The kernel's types.
    ///
    /// # Errors
    ///
    /// If the kernel has no type information.
    pub fn types(&self) -> Result<&Btf, &BtfError> {
        self.types.as_ref()
    }

    pub(crate) fn image(&self) -> GuestImage<&CoreMemory> {
        image(&self.memory, self.text, self.slide)
    }

    /// The kernel's version line.
    #[must_use]
    pub fn banner(&self) -> Option<String> {
        let mut line = vec![0; BANNER_BYTES];
        let at = self.symbols.address_of(BANNER)?;
        self.image().read_linked(at, &mut line).ok()?;
        let end = line.iter().position(|byte| matches!(byte, 0 | b'\n'))?;
        line.truncate(end);
        String::from_utf8(line).ok()
    }

    /// The build-id of the kernel's file.
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        let [start, end] = NOTES.map(|label| self.symbols.address_of(label));
        let start = start?;
        let bytes = end?.offset_from(start)?;
        let len = usize::try_from(bytes).ok();
        let mut notes = vec![0; len.filter(|_| bytes <= MAX_NOTES_BYTES)?];
        self.image().read_linked(start, &mut notes).ok()?;
        BuildId::of_notes(&notes)
    }
}

impl KernelMemory for DumpedKernel {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let read = read_virt(&self.memory, &self.paging, at, buf);
        read.map_err(|_| NotReadable { at, len })
    }
}

/// The parts of the kernel that its memory has.
struct Found {
    /// At link-time addresses.
    symbols: SymbolTable,
    types: Result<Btf, BtfError>,
    paging: PagingState,
}

impl Found {
    /// Finds the kernel with this `text` and `slide`.
    fn in_memory(
        memory: &CoreMemory,
        text: LoadSegment,
        slide: i64,
    ) -> Result<Self, OpenDumpError> {
        let end = text.gpa.wrapping_add(text.bytes);
        let running = kallsyms::from_guest(memory, text.gpa..end, text.at)?;
        let symbols = running.rebased(slide.wrapping_neg());
        let image = image(memory, text, slide);
        let first = symbols.address_of(FIRST_SYMBOL);
        let first = first.ok_or(OpenDumpError::NoSymbol(FIRST_SYMBOL))?;
        let first = first.wrapping_add(slide.cast_unsigned());
        if first != text.at {
            return Err(OpenDumpError::OtherKernel {
                symbol: first,
                segment: text.at,
            });
        }
        let types = Btf::from_source(&image, &symbols);
        let paging = page_tables(memory, &symbols, text, slide)?;
        Ok(Self {
            symbols,
            types,
            paging,
        })
    }
}

/// The registers of the vCPUs, and the slide by VMCOREINFO.
fn from_notes(bytes: &[u8]) -> Result<(Vec<DumpedRegisters>, Option<i64>), OpenDumpError> {
    let (mut vcpus, mut slide) = (Vec::new(), None);
    for note in notes::parse(bytes) {
        match note? {
            Note::Registers(contents) => {
                let registers = DumpedRegisters::of_prstatus(contents);
                vcpus.push(registers.ok_or(OpenDumpError::Registers { vcpu: vcpus.len() })?);
            }
            Note::VmCoreInfo(text) => slide = vmcoreinfo::slide(text),
            Note::Other => {}
        }
    }
    Ok((vcpus, slide))
}

/// The kernel's image, by its link-time addresses.
fn image(memory: &CoreMemory, text: LoadSegment, slide: i64) -> GuestImage<&CoreMemory> {
    let linked = text.at.wrapping_sub(slide.cast_unsigned());
    GuestImage::new(memory, linked, text.gpa, slide)
}

/// The kernel's own page tables, with as many levels as map the text to its place.
fn page_tables(
    memory: &CoreMemory,
    symbols: &SymbolTable,
    text: LoadSegment,
    slide: i64,
) -> Result<PagingState, OpenDumpError> {
    let linked = symbols.address_of(PAGE_TABLES);
    let linked = linked.ok_or(OpenDumpError::NoSymbol(PAGE_TABLES))?;
    let running = linked.wrapping_add(slide.cast_unsigned());
    let Gpa(root) = text.gpa.wrapping_add(running.wrapping_sub(text.at.0).0);
    let mut levels = [PagingState::four_level(root), PagingState::five_level(root)].into_iter();
    let found = levels.find(|paging| {
        let mapped = walk(memory, paging, text.at);
        mapped.is_ok_and(|mapped| mapped.gpa == text.gpa)
    });
    found.ok_or(OpenDumpError::PageTables {
        at: text.at,
        gpa: text.gpa,
    })
}

#[cfg(test)]
mod tests;
