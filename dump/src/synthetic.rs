//! A small machine with a kernel in memory, and the core file of the machine.

use std::fs::File;
use std::io::Write as _;

use address::{Gpa, Gva};
use introspect::FlatMemory;
use introspect::btf::synthetic::Blob;
use introspect::kallsyms::synthetic::{self as kallsyms, Layout, TEXT};
use vmm::VcpuState;

use crate::core_error::OpenDumpError;
use crate::core_file::{Core, Guest};
use crate::dumped_kernel::DumpedKernel;
use crate::kernel_part::{KernelPart, TextMapping};
use crate::pieces::{Piece, Pieces};

pub(crate) const SLIDE: u64 = 0x1240_0000;
/// The running address of the text.
pub(crate) const RUNNING: u64 = TEXT + SLIDE;
pub(crate) const BANNER: &str = "Linux version 6.1.0-x (builder) #1";
const RAM_BYTES: u64 = 8 << 20;
const TEXT_GPA: u64 = 2 << 20;
const TEXT_BYTES: u64 = 2 << 20;

/// The parts of the kernel, by their distances from `_text`.
pub(crate) mod part {
    pub(crate) const END_OF_TEXT: u64 = 0x1_0000;
    pub(crate) const TABLES: u64 = 0x2_0000;
    pub(crate) const AREAS: u64 = 0x2_4000;
    pub(crate) const BANNER: u64 = 0x2_5000;
    pub(crate) const NOTES: u64 = 0x2_6000;
    pub(crate) const TYPES: u64 = 0x2_8000;
    pub(crate) const ORC_IPS: u64 = 0x2_c000;
    pub(crate) const ORC_RULES: u64 = 0x2_d000;
    pub(crate) const STACK: u64 = 0x3_0000;
    pub(crate) const TASKS: u64 = 0x3_1000;
    pub(crate) const PER_CPU: u64 = 0x3_2000;
    pub(crate) const SYMBOLS: u64 = 0x4_0000;
}

/// The size of a per-CPU area, and the place of the current task there.
const AREA_BYTES: u64 = 0x800;
const CURRENT_TASK: u64 = 0x500;
const TASK_BYTES: u64 = 0x40;
/// The base of `gs` on a processor.
pub(crate) const fn area(number: u64) -> u64 {
    RUNNING + part::PER_CPU + number * AREA_BYTES
}

/// A machine before its dump.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) memory: FlatMemory,
    pub(crate) guest: Guest,
}

impl Machine {
    /// A machine with a vCPU in the kernel, one in a program and one that is not started. The kernel is at [`RUNNING`].
    pub(crate) fn new() -> Self {
        let mut machine = Self {
            memory: FlatMemory::zeroed(usize::try_from(RAM_BYTES).expect("small")),
            guest: Guest {
                ram: vec![Gpa(0)..Gpa(RAM_BYTES)],
                vcpus: vcpus(),
                kernel: KernelPart {
                    text: Some(TextMapping {
                        at: Gva(RUNNING),
                        gpa: Gpa(TEXT_GPA),
                        bytes: TEXT_BYTES,
                    }),
                    vmcoreinfo: format!("OSRELEASE=6.1.0-x\nKERNELOFFSET={SLIDE:x}\n").into_bytes(),
                    ..KernelPart::default()
                },
            },
        };
        machine.write_tables(4);
        machine.write_tasks();
        machine.write_rules();
        let types = types();
        machine.put(part::BANNER, format!("{BANNER}\n\0").as_bytes());
        machine.put(
            part::NOTES,
            b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\xcd\0\0",
        );
        machine.put(part::TYPES, &types);
        let symbols = symbols(types.len() as u64);
        let at = Gva(RUNNING + part::SYMBOLS);
        let tables = kallsyms::kernel(Layout::OffsetsLast, at, RUNNING, &symbols);
        machine.put(part::SYMBOLS, &tables);
        machine
    }

    /// Writes at this distance from `_text`.
    pub(crate) fn put(&mut self, part: u64, bytes: &[u8]) {
        self.memory
            .write(Gpa(TEXT_GPA + part), bytes)
            .expect("in memory");
    }

    fn put64(&mut self, part: u64, value: u64) {
        self.put(part, &value.to_le_bytes());
    }

    /// Tables of as many levels that map the image with one large page.
    pub(crate) fn write_tables(&mut self, levels: u32) {
        const PRESENT_WRITABLE: u64 = 3;
        const LARGE: u64 = 1 << 7;
        let entry = |level: u32| (RUNNING >> (12 + 9 * level) & 0x1ff) * 8;
        let table = |number: u64| part::TABLES + number * 0x1000;
        let above = levels - 2;
        self.put(part::TABLES, &[0; 0x4000]);
        for number in 0..above {
            let below = TEXT_GPA + table(u64::from(number) + 1);
            let at = table(u64::from(number)) + entry(levels - 1 - number);
            self.put64(at, below | PRESENT_WRITABLE);
        }
        let last = table(u64::from(above)) + entry(1);
        self.put64(last, TEXT_GPA | PRESENT_WRITABLE | LARGE);
    }

    /// A task for each of two processors.
    fn write_tasks(&mut self) {
        for number in 0..2 {
            let task = part::TASKS + number * TASK_BYTES;
            let name = format!("task-{number}\0");
            self.put64(task + 8, (number + 1) << 32 | (number + 11));
            self.put(task + 16, name.as_bytes());
            self.put64(part::AREAS + number * 8, area(number));
            let current = part::PER_CPU + number * AREA_BYTES + CURRENT_TASK;
            self.put64(current, RUNNING + task);
        }
    }

    /// Functions below 0x100 have been called from functions at which the stack ends. The stack has one return address.
    fn write_rules(&mut self) {
        let rules: [(u64, u16, u16); 3] = [(0, 8, 0x203), (1, 8, 0x203), (0x100, 0, 0x100)];
        for (number, (start, offset, bits)) in (0..).zip(rules) {
            let at = part::ORC_IPS + number * 4;
            let distance = start.wrapping_sub(at).to_le_bytes();
            self.put(at, &distance[..4]);
            let rule = [offset, 0, bits].map(u16::to_le_bytes).concat();
            self.put(part::ORC_RULES + number * 6, &rule);
        }
        self.put64(part::STACK, RUNNING + 0x145);
    }

    /// The core file.
    pub(crate) fn core(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let mut pieces = Pieces::new(Core::new(&self.guest));
        let mut take = |piece: Piece<'_>| match piece {
            Piece::Bytes(bytes) => file.extend(bytes),
            Piece::Zeros(count) => {
                file.resize(file.len() + usize::try_from(count).expect("small"), 0)
            }
        };
        while pieces.step(&self.memory, &mut take).expect("memory") {}
        file
    }

    pub(crate) fn open(&self) -> Result<DumpedKernel, OpenDumpError> {
        open(&self.core())
    }
}

/// Opens the core file with the contents `bytes`.
pub(crate) fn open(bytes: &[u8]) -> Result<DumpedKernel, OpenDumpError> {
    DumpedKernel::open(file(bytes), bytes.len() as u64)
}

/// A file with the contents `bytes`.
pub(crate) fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("written");
    file
}

fn vcpus() -> Vec<VcpuState> {
    let mut vcpus = vec![VcpuState::default(); 3];
    let [kernel, program, reset] = &mut vcpus[..] else {
        unreachable!("three");
    };
    kernel.regs.rip = RUNNING + 0x15;
    kernel.regs.rsp = RUNNING + part::STACK;
    kernel.sregs.cs.selector = 0x10;
    kernel.sregs.gs.base = area(0);
    program.sregs.cs.selector = 0x33;
    // The program's own.
    program.sregs.gs.base = area(0);
    reset.sregs.cs.selector = 0xf000;
    vcpus
}

fn types() -> Vec<u8> {
    let mut blob = Blob::new();
    let byte = blob.int("char", 1);
    let int = blob.int("int", 4);
    let name = blob.array(byte, 16);
    let bytes = u32::try_from(TASK_BYTES).expect("small");
    let members = [("pid", int, 8), ("tgid", int, 12), ("comm", name, 16)];
    blob.structure("task_struct", bytes, &members);
    blob.finish()
}

/// The symbols at running addresses, per-CPU variables at their offsets.
fn symbols(bytes_of_types: u64) -> Vec<kallsyms::Entry> {
    let symbols = kallsyms::symbols(Layout::OffsetsLast, 600);
    let (mut per_cpu, mut image): (Vec<_>, Vec<_>) =
        symbols.into_iter().partition(|(at, ..)| at >> 63 == 0);
    per_cpu.push((CURRENT_TASK, 'A', "current_task".to_owned()));
    let labels = [
        (part::END_OF_TEXT, "_etext"),
        (part::TABLES, "init_top_pgt"),
        (part::AREAS, "__per_cpu_offset"),
        (part::BANNER, "linux_banner"),
        (part::NOTES, "__start_notes"),
        (part::NOTES + 20, "__stop_notes"),
        (part::TYPES, "__start_BTF"),
        (part::TYPES + bytes_of_types, "__stop_BTF"),
        (part::ORC_IPS, "__start_orc_unwind_ip"),
        (part::ORC_IPS + 12, "__stop_orc_unwind_ip"),
        (part::ORC_RULES, "__start_orc_unwind"),
        (part::ORC_RULES + 18, "__stop_orc_unwind"),
        (part::TASKS, "init_task"),
    ];
    image.extend(labels.map(|(part, name)| (TEXT + part, 'D', name.to_owned())));
    for (at, ..) in &mut image {
        *at += SLIDE;
    }
    per_cpu.extend(image);
    per_cpu
}
