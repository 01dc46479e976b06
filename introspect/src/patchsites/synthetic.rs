//! A synthetic kernel: a page of code, and the tables of patch sites behind the page.

use address::{Gpa, Gva};

use crate::{FlatMemory, GuestImage, SymbolTable, SymbolTableBuilder};

/// The link address of the code.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;
/// The number of bytes of code.
pub const TEXT_BYTES: usize = 0x1000;
/// The distance by which the kernel has moved from its link address.
pub const SLIDE: i64 = 0x1240_0000;

/// The labels around tables of signed 32-bit distances, and the bytes behind the distance in an entry.
const RELATIVE_TABLES: [(&str, &str, usize); 10] = [
    ("__start_static_call_sites", "__stop_static_call_sites", 4),
    ("__smp_locks", "__smp_locks_end", 0),
    ("__retpoline_sites", "__retpoline_sites_end", 0),
    ("__return_sites", "__return_sites_end", 0),
    ("__call_sites", "__call_sites_end", 0),
    ("__ibt_endbr_seal", "__ibt_endbr_seal_end", 0),
    ("__cfi_sites", "__cfi_sites_end", 0),
    ("__start_runtime_ptr_x", "__stop_runtime_ptr_x", 0),
    ("__start_runtime_shift_x", "__stop_runtime_shift_x", 0),
    ("__start___ex_table", "__stop___ex_table", 8),
];

/// Functions of the sample: a prologue, a jump table's dispatch, a retpoline, a call, padding.
const FUNCTIONS: [(&str, &[u8]); 6] = [
    ("plain", &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x31, 0xc0, 0xc3]),
    // lea rax, [rip + 0x1000]; movsxd rdx, [rax + rdi * 4]; add rax, rdx; jmp rax
    (
        "dispatch",
        &[
            0x48, 0x8d, 0x05, 0, 0x10, 0, 0, 0x48, 0x63, 0x14, 0xb8, 0x48, 0x01, 0xd0, 0xff, 0xe0,
        ],
    ),
    // call 1f; int3; 1: mov [rsp], rax; ret
    (
        "__x86_indirect_thunk_rax",
        &[0xe8, 1, 0, 0, 0, 0xcc, 0x48, 0x89, 0x04, 0x24, 0xc3],
    ),
    // nop [rax + rax]; call -0x20; je +2; jmp -5; ret
    (
        "calls",
        &[
            0x0f, 0x1f, 0x44, 0, 0, 0xe8, 0xe0, 0xff, 0xff, 0xff, 0x74, 2, 0xeb, 0xfb, 0xc3,
        ],
    ),
    (
        "__SCT__might_resched",
        &[0xe9, 0, 0, 0, 0, 0x0f, 0xb9, 0xcc],
    ),
    ("last", &[0xb8, 1, 0, 0, 0, 0xc3]),
];
/// The distance between functions of the sample.
const FUNCTION_BYTES: usize = 0x40;

/// The kernel under construction.
#[derive(Debug)]
pub struct Kernel {
    /// The code, and the tables so far.
    pub bytes: Vec<u8>,
    /// The symbols so far.
    pub symbols: SymbolTableBuilder,
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel {
    /// A kernel of a page of nops without tables.
    #[must_use]
    pub fn new() -> Self {
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(Gva(TEXT), 'T', "_text");
        symbols.push(Gva(TEXT + TEXT_BYTES as u64), 'T', "_etext");
        Self {
            bytes: vec![0x90; TEXT_BYTES],
            symbols,
        }
    }

    /// A kernel with functions and with three entries in every table.
    #[must_use]
    pub fn sample() -> Self {
        let mut kernel = Self::new();
        for (number, (name, code)) in FUNCTIONS.into_iter().enumerate() {
            let at = number * FUNCTION_BYTES;
            kernel.code(at, code);
            kernel.symbols.push(Gva(TEXT + at as u64), 't', name);
        }
        for (start, end, behind) in RELATIVE_TABLES {
            kernel.table(start, end, |kernel| {
                for site in [0x5, 0x45, 0xc5] {
                    kernel.relative(site);
                    kernel.bytes.resize(kernel.bytes.len() + behind, 0);
                }
            });
        }
        kernel.table("__start___jump_table", "__stop___jump_table", |kernel| {
            for (site, target) in [(0xc0, 0xca), (0x100, 0x10), (0, 0x140)] {
                kernel.relative(site);
                kernel.relative(target);
                kernel.bytes.extend([0; 8]);
            }
        });
        kernel.table("__alt_instructions", "__alt_instructions_end", |kernel| {
            for site in [0xc0, 0x140, 0x80] {
                kernel.relative(site);
                kernel.relative(site + 0x100);
                kernel.bytes.extend([0, 0, 0, 0, 5, 5]);
            }
        });
        kernel.table("__start_mcount_loc", "__stop_mcount_loc", |kernel| {
            for site in [0xc0, 0, 0x140] {
                kernel.absolute(site);
            }
        });
        kernel.table("__parainstructions", "__parainstructions_end", |kernel| {
            for site in [0x10, 0x50, 0x90] {
                kernel.absolute(site);
                kernel.bytes.extend([3, 7, 0, 0, 0, 0, 0, 0]);
            }
        });
        kernel
    }

    /// Puts `code` at an offset of the code.
    pub fn code(&mut self, at: usize, code: &[u8]) {
        self.bytes[at..at + code.len()].copy_from_slice(code);
    }

    /// Appends a table between two labels.
    pub fn table(&mut self, start: &str, end: &str, write: impl FnOnce(&mut Self)) {
        self.symbols.push(self.here(), 'D', start);
        write(self);
        self.symbols.push(self.here(), 'D', end);
    }

    /// Appends the distance from the next byte to the code at `offset`.
    pub fn relative(&mut self, offset: u64) {
        let distance = (TEXT + offset).wrapping_sub(self.here().0);
        self.bytes
            .extend(distance.to_le_bytes().into_iter().take(4));
    }

    /// Appends the address of the code at `offset`, as stored by a moved kernel.
    pub fn absolute(&mut self, offset: u64) {
        let address = (TEXT + offset).wrapping_add_signed(SLIDE);
        self.bytes.extend(address.to_le_bytes());
    }

    /// The kernel in guest memory, and its symbols at link addresses.
    #[must_use]
    pub fn finish(self) -> (GuestImage<FlatMemory>, SymbolTable) {
        let memory = FlatMemory::new(Gpa(0), self.bytes);
        (
            GuestImage::new(memory, Gva(TEXT), Gpa(0), SLIDE),
            self.symbols.build(),
        )
    }

    fn here(&self) -> Gva {
        Gva(TEXT + self.bytes.len() as u64)
    }
}
