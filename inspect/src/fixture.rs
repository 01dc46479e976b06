//! A small kernel for tests: a task with an address space, per-CPU variables, and one page of memory.

use address::{Gva, PAGE_LEN};
use introspect::btf::synthetic::Blob;
use introspect::{Btf, SymbolTable, SymbolTableBuilder};

use crate::view::{KernelMemory, KernelView, NotReadable};

pub(crate) const BASE: Gva = Gva(0xffff_ffff_8100_0000);
pub(crate) const SLIDE: u64 = 0x20_0000;
const MM: u64 = 0x400;
const OFFSETS: u64 = 0x800;
const RUN_QUEUE: u64 = 0x100;
/// `BTF_KIND_*`.
const INT: u8 = 1;
const STRUCT: u8 = 4;
const UNION: u8 = 5;
const VARIABLE: u8 = 14;
const SECTION: u8 = 15;
const SIGNED: u32 = 1 << 24;
const BOOLEAN: u32 = 4 << 24;

/// The kernel's memory: one page at the running address of [`BASE`].
#[derive(Debug)]
pub(crate) struct Page(Vec<u8>);

impl KernelMemory for Page {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let start = at.0.wrapping_sub(BASE.0).wrapping_sub(SLIDE);
        let start = usize::try_from(start).ok();
        let bytes = start.and_then(|start| self.0.get(start..)?.get(..len));
        buf.copy_from_slice(bytes.ok_or(NotReadable { at, len })?);
        Ok(())
    }
}

/// The kernel of the tests.
#[derive(Debug)]
pub(crate) struct Fixture {
    memory: Page,
    symbols: SymbolTable,
    pub(crate) types: Btf,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self {
            memory: memory(),
            symbols: symbols(),
            types: types(),
        }
    }

    /// Puts `bytes` at the offset `at` of the page.
    pub(crate) fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.memory.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn view(&self) -> KernelView<'_> {
        self.view_of(Some(&self.types))
    }

    pub(crate) fn view_without_types(&self) -> KernelView<'_> {
        self.view_of(None)
    }

    fn view_of<'f>(&'f self, types: Option<&'f Btf>) -> KernelView<'f> {
        KernelView::new(&self.memory, &self.symbols, types, SLIDE.cast_signed())
    }
}

fn types() -> Btf {
    let mut blob = Blob::new();
    let int = blob.record("int", (INT, false), 0, 4, &[32 | SIGNED]);
    let long = blob.int("long unsigned int", 8);
    let char = blob.record("char", (INT, false), 0, 1, &[8 | SIGNED]);
    let bool = blob.record("_Bool", (INT, false), 0, 1, &[8 | BOOLEAN]);
    let pointer = blob.pointer(char);
    let comm = blob.array(char, 16);
    let mm = blob.structure("mm", 16, &[("pgd", pointer, 0), ("users", int, 8)]);
    let mm_pointer = blob.pointer(mm);
    let grid = blob.array(int, 50);
    let either = [("whole", long, 0), ("half", int, 0)];
    let either = blob.structure_in_bits("", (UNION, false), 8, &either);
    let flags = [("READ", 1), ("WRITE", 2), ("EXEC", 4)];
    let flags = blob.enumeration("flags", false, &flags);
    let bytes = [
        ("pid", int, 0),
        ("mm", mm_pointer, 8),
        ("comm", comm, 16),
        ("low", int, 32),
        ("flags", flags, 36),
        ("", either, 40),
        ("grid", grid, 48),
        ("own_mm", mm, 248),
        ("is_on", bool, 264),
    ];
    let in_bits = bytes.map(|(name, ty, at)| (name, ty, at * 8));
    let mut members = in_bits.to_vec();
    // 3 bits behind the first bit.
    members[3].2 = (3 << 24) | (32 * 8 + 1);
    blob.structure_in_bits("task", (STRUCT, true), 272, &members);
    let queue = blob.structure("rq", 8, &[("nr_running", int, 0), ("cpu", int, 4)]);
    blob.record("init_mm", (VARIABLE, false), 0, mm, &[0]);
    let per_cpu = [
        ("runqueues", queue, RUN_QUEUE, 8),
        ("cpu_number", int, RUN_QUEUE + 8, 4),
        ("state", flags, 0x200, 4),
        ("state", mm_pointer, 0x208, 8),
    ];
    let per_cpu = per_cpu.map(|(name, ty, at, size)| {
        let at = u32::try_from(at).expect("small");
        let variable = blob.record(name, (VARIABLE, false), 0, ty, &[0]);
        [variable, at, size]
    });
    let section = (SECTION, false);
    blob.record(".data..percpu", section, 4, 0x1000, per_cpu.as_flattened());
    Btf::parse(blob.finish()).expect("types")
}

fn symbols() -> SymbolTable {
    let mut symbols = SymbolTableBuilder::new();
    symbols.push(Gva(0), 'D', "__per_cpu_start");
    symbols.push(Gva(RUN_QUEUE), 'D', "runqueues");
    symbols.push(Gva(RUN_QUEUE + 8), 'D', "cpu_number");
    for (at, name) in [(0x200, "state"), (0x208, "state"), (0x210, "untyped")] {
        symbols.push(Gva(at), 'd', name);
    }
    symbols.push(Gva(0x1000), 'D', "__per_cpu_end");
    for (at, kind, name) in [
        (0, 'D', "first_task"),
        (MM, 'D', "init_mm"),
        (0x600, 'T', "schedule"),
        (0x680, 't', "both"),
        (0x700, 'd', "both"),
        (0x708, 'd', "twin"),
        (0x710, 'd', "twin"),
        (OFFSETS, 'D', "__per_cpu_offset"),
        (OFFSETS + 16, 'D', "behind"),
        (0x1000, 'D', "_end"),
    ] {
        symbols.push(BASE.wrapping_add(at), kind, name);
    }
    symbols.build()
}

fn memory() -> Page {
    let running = BASE.0 + SLIDE;
    let mut page = Page(vec![0; PAGE_LEN]);
    let mut put = |at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).expect("small");
        page.0[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &(-7_i32).to_le_bytes());
    put(8, &(running + MM).to_le_bytes());
    put(16, b"swap\"per\0garbage");
    put(32, &[0b0000_1010]);
    put(36, &6_u32.to_le_bytes());
    put(40, &0x1_0000_0005_u64.to_le_bytes());
    put(48, &11_u32.to_le_bytes());
    put(52, &12_u32.to_le_bytes());
    put(248, &(running + 0x604).to_le_bytes());
    put(256, &3_u32.to_le_bytes());
    put(264, &[1]);
    put(MM, &0xffff_8880_0000_1000_u64.to_le_bytes());
    put(MM + 8, &9_u32.to_le_bytes());
    for cpu in 0..2_u64 {
        let area = running + 0xb00 + cpu * 0x10;
        put(OFFSETS + cpu * 8, &area.to_le_bytes());
        put(0xb00 + RUN_QUEUE + cpu * 0x10, &(cpu + 20).to_le_bytes());
        put(0xb00 + RUN_QUEUE + 8 + cpu * 0x10, &cpu.to_le_bytes());
    }
    page
}
