//! Writes small kernels: ELF files with functions, init functions, linker labels and tables of patch sites.

use std::collections::BTreeSet;

use address::Gva;

use crate::Kernel;

/// The link address of the text.
pub(crate) const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
/// The load address of the text.
pub(crate) const TEXT_GPA: u64 = 0x10_0000;
/// Offsets of the init text and of the data, from the text.
const INIT: u64 = 0x4000;
const DATA: u64 = 0x8000;
/// The offset of the zeroes that follow the data behind a hole.
const BSS: u64 = 0x4_0000;
const BSS_BYTES: u64 = 0x1000;
const FUNCTION_ALIGNMENT: usize = 16;
/// The byte between functions.
const PADDING: u8 = 0xcc;

const EXCEPTIONS: &str = "__start___ex_table";
const EXCEPTIONS_END: &str = "__stop___ex_table";

const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
const SECTION_ALLOC_EXEC: u64 = 6;
const SECTION_ALLOC_WRITE: u64 = 3;

/// The builder of a kernel.
#[derive(Debug)]
pub(crate) struct SyntheticKernel {
    text: Vec<u8>,
    init: Vec<u8>,
    data: Vec<u8>,
    symbols: Vec<(String, Gva)>,
    /// The names of weak symbols.
    weak: BTreeSet<String>,
    /// Whether a second segment of zeroes is at [`BSS`].
    has_bss: bool,
}

impl SyntheticKernel {
    pub(crate) fn new() -> Self {
        let mut kernel = Self {
            text: Vec::new(),
            init: Vec::new(),
            data: Vec::new(),
            symbols: Vec::new(),
            weak: BTreeSet::new(),
            has_bss: false,
        };
        for (label, offset) in [
            ("_text", 0),
            ("_etext", INIT),
            ("__init_begin", INIT),
            ("__init_end", DATA),
            // No instruction may fault.
            (EXCEPTIONS, DATA),
            (EXCEPTIONS_END, DATA),
        ] {
            kernel.label(label, TEXT.wrapping_add(offset));
        }
        kernel
    }

    fn label(&mut self, name: &str, at: Gva) {
        self.symbols.push((name.to_owned(), at));
    }

    /// Ends the permanent text `bytes` behind its begin.
    pub(crate) fn end_text(&mut self, bytes: u64) {
        self.symbols.retain(|(name, _)| name != "_etext");
        self.label("_etext", TEXT.wrapping_add(bytes));
    }

    /// Adds a permanent function.
    pub(crate) fn function(&mut self, name: &str, code: &[u8]) -> Gva {
        let at = append(&mut self.text, TEXT, code);
        self.label(name, at);
        at
    }

    /// Adds a permanent function that another of the same name would replace.
    pub(crate) fn weak_function(&mut self, name: &str, code: &[u8]) -> Gva {
        self.weak.insert(name.to_owned());
        self.function(name, code)
    }

    /// Replaces the code of a permanent function.
    pub(crate) fn rewrite(&mut self, function: Gva, code: &[u8]) {
        let at = usize::try_from(function.0 - TEXT.0).expect("small");
        self.text[at..at + code.len()].copy_from_slice(code);
    }

    /// Adds a function that is freed after boot.
    pub(crate) fn init_function(&mut self, name: &str, code: &[u8]) -> Gva {
        let at = append(&mut self.init, TEXT.wrapping_add(INIT), code);
        self.label(name, at);
        at
    }

    /// Adds a variable.
    pub(crate) fn variable(&mut self, name: &str, value: u64) -> Gva {
        self.array(name, &[value])
    }

    /// Adds a variable with several values.
    pub(crate) fn array(&mut self, name: &str, values: &[u64]) -> Gva {
        let at = self.data_end();
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.data.extend(bytes);
        self.label(name, at);
        at
    }

    /// Adds type information.
    pub(crate) fn types(&mut self, btf: &[u8]) {
        self.label("__start_BTF", self.data_end());
        self.data.extend(btf);
        self.label("__stop_BTF", self.data_end());
        self.data.resize(self.data.len().next_multiple_of(8), 0);
    }

    /// Adds a segment of zeroes far behind the data. Returns an address between the segments.
    pub(crate) fn hole(&mut self) -> Gva {
        self.has_bss = true;
        TEXT.wrapping_add(BSS - 8)
    }

    fn data_end(&self) -> Gva {
        TEXT.wrapping_add(DATA + self.data.len() as u64)
    }

    /// Adds a name for a value that is no address in the kernel: an offset.
    pub(crate) fn symbol(&mut self, name: &str, value: Gva) {
        self.label(name, value);
    }

    /// Lists ftrace calls.
    pub(crate) fn ftrace_calls(&mut self, calls: &[Gva]) {
        self.label("__start_mcount_loc", self.data_end());
        self.data
            .extend(calls.iter().flat_map(|call| call.0.to_le_bytes()));
        self.label("__stop_mcount_loc", self.data_end());
    }

    /// Lists the jumps of static keys.
    pub(crate) fn jump_labels(&mut self, jumps: &[Gva]) {
        let jumps: Vec<_> = jumps.iter().map(|jump| (*jump, *jump)).collect();
        self.jump_labels_to(&jumps);
    }

    /// Lists the jumps of static keys, each with the target.
    pub(crate) fn jump_labels_to(&mut self, jumps: &[(Gva, Gva)]) {
        self.label("__start___jump_table", self.data_end());
        for (jump, target) in jumps {
            self.relative(*jump);
            self.relative(*target);
            self.data.extend([0; 8]);
        }
        self.label("__stop___jump_table", self.data_end());
    }

    /// Lists static calls.
    pub(crate) fn static_calls(&mut self, calls: &[Gva]) {
        self.label("__start_static_call_sites", self.data_end());
        for call in calls {
            self.relative(*call);
            self.data.extend([0; 4]);
        }
        self.label("__stop_static_call_sites", self.data_end());
    }

    /// Lists jumps to the return thunk, which are patched while the kernel boots.
    pub(crate) fn return_sites(&mut self, returns: &[Gva]) {
        self.label("__return_sites", self.data_end());
        for site in returns {
            self.relative(*site);
        }
        self.label("__return_sites_end", self.data_end());
    }

    /// Lists instructions that may fault; after a fault the kernel continues at the beginning of its text.
    pub(crate) fn exceptions(&mut self, instructions: &[Gva]) {
        self.symbols
            .retain(|(name, _)| name != EXCEPTIONS && name != EXCEPTIONS_END);
        self.label(EXCEPTIONS, self.data_end());
        for instruction in instructions {
            self.relative(*instruction);
            self.relative(TEXT);
            self.data.extend([0; 4]);
        }
        self.label(EXCEPTIONS_END, self.data_end());
    }

    /// Appends the 32-bit distance from the next table byte to `to`.
    fn relative(&mut self, to: Gva) {
        let distance = to.0.wrapping_sub(self.data_end().0);
        self.data.extend(distance.to_le_bytes().into_iter().take(4));
    }

    /// The bytes loaded at [`TEXT_GPA`].
    pub(crate) fn loaded(&self) -> Vec<u8> {
        let mut bytes = self.text.clone();
        bytes.resize(usize::try_from(INIT).expect("small"), PADDING);
        bytes.extend(&self.init);
        bytes.resize(usize::try_from(DATA).expect("small"), PADDING);
        bytes.extend(&self.data);
        bytes
    }

    pub(crate) fn kernel(&self) -> Kernel {
        Kernel::from_vmlinux(self.elf()).expect("it is a kernel")
    }

    /// The ELF file.
    fn elf(&self) -> Vec<u8> {
        let loaded = self.loaded();
        let mut strings = vec![0];
        let mut symbols = vec![0; 24];
        for (name, at) in &self.symbols {
            let section: u16 = if at.0 < TEXT.0 + DATA || name == "__init_end" {
                1
            } else {
                2
            };
            put(&mut symbols, u32::try_from(strings.len()).expect("small"));
            // A global or weak symbol without a type.
            let binding = if self.weak.contains(name) { 0x20 } else { 0x10 };
            symbols.extend([binding, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend(at.0.to_le_bytes());
            symbols.extend([0; 8]);
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        let segments: u16 = if self.has_bss { 2 } else { 1 };
        let segment = HEADER_BYTES + u64::from(segments) * PROGRAM_HEADER_BYTES;
        let data = segment + DATA;
        let symbols_at = segment + loaded.len() as u64;
        let strings_at = symbols_at + symbols.len() as u64;
        let sections_at = strings_at + strings.len() as u64;

        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        for half in [2_u16, 62] {
            file.extend(half.to_le_bytes());
        }
        put(&mut file, 1);
        for word in [TEXT_GPA, HEADER_BYTES, sections_at] {
            file.extend(word.to_le_bytes());
        }
        put(&mut file, 0);
        for half in [64_u16, 56, segments, 64, 5, 4] {
            file.extend(half.to_le_bytes());
        }
        let len = loaded.len() as u64;
        let bss = [0, TEXT.0 + BSS, TEXT_GPA + BSS, 0, BSS_BYTES, 0x1000];
        let program_headers = [[segment, TEXT.0, TEXT_GPA, len, len, 0x1000], bss];
        for header in &program_headers[..segments.into()] {
            for half in [1, 7] {
                put(&mut file, half);
            }
            for word in header {
                file.extend(u64::to_le_bytes(*word));
            }
        }
        file.extend(&loaded);
        file.extend(&symbols);
        file.extend(&strings);
        let data_len = self.data.len() as u64;
        let symbols_len = symbols.len() as u64;
        let strings_len = strings.len() as u64;
        for (kind, flags, at, offset, len, link, entry) in [
            (0, 0, 0, 0, 0, 0, 0),
            (1, SECTION_ALLOC_EXEC, TEXT.0, segment, DATA, 0, 0),
            (1, SECTION_ALLOC_WRITE, TEXT.0 + DATA, data, data_len, 0, 0),
            (2, 0, 0, symbols_at, symbols_len, 4, 24),
            (3, 0, 0, strings_at, strings_len, 0, 0),
        ] {
            put(&mut file, 0);
            put(&mut file, kind);
            for word in [flags, at, offset, len] {
                file.extend(word.to_le_bytes());
            }
            put(&mut file, link);
            put(&mut file, 1);
            for word in [1, entry] {
                file.extend(u64::to_le_bytes(word));
            }
        }
        file
    }
}

fn put(file: &mut Vec<u8>, value: u32) {
    file.extend(value.to_le_bytes());
}

/// Appends a function to the section.
fn append(section: &mut Vec<u8>, start: Gva, code: &[u8]) -> Gva {
    let aligned = section.len().next_multiple_of(FUNCTION_ALIGNMENT);
    section.resize(aligned, PADDING);
    section.extend(code);
    start.wrapping_add(aligned as u64)
}
