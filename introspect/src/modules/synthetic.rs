//! A synthetic guest with modules, in memory.

use address::{Gpa, Gva};

use crate::{Btf, FlatMemory, PagingState, SymbolTable, SymbolTableBuilder, btf::synthetic::Blob};

/// The address of the guest's memory, mapped by a single page of a gigabyte.
pub const BASE: u64 = 0xffff_ffff_c000_0000;
const MEMORY_BYTES: usize = 8 << 20;
/// The page tables take the first two pages.
const FIRST_FREE: u64 = 0x2000;

/// The form of `struct module`: the kernel has used two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `core_layout` and `init_layout`.
    Layouts,
    /// `mem[]`.
    Memory,
}

impl Form {
    /// The offset of the array with the sections of notes.
    const fn first_note(self) -> u64 {
        match self {
            Self::Layouts => 16,
            Self::Memory => 48,
        }
    }
}

pub const FORMS: [Form; 2] = [Form::Layouts, Form::Memory];

const STATE: u64 = 0;
const LIST: u64 = 8;
const NAME: u64 = 24;
const KALLSYMS: u64 = 80;
const LAYOUTS: u64 = 88;
const JUMP_LABELS: u64 = 200;
const STATIC_CALLS: u64 = 216;
const FTRACE: u64 = 232;
/// `struct btf_module`: the list, the module, the types; and `struct btf`: the blob, its size, its first type.
const TYPES_ENTRY_BYTES: u64 = 32;
const TYPES_BYTES: u64 = 24;
const REFERENCES: u64 = 248;
const USES: u64 = 256;
const INIT: u64 = 272;
const EXIT: u64 = 280;
const NOTES: u64 = 288;
const MODULE_BYTES: u32 = 296;
/// `struct bin_attribute`: a name, the size, the address.
const ATTRIBUTE_BYTES: u64 = 40;

/// The types of a kernel with modules.
pub fn types(form: Form) -> Blob {
    let mut blob = Blob::new();
    let int = blob.int("unsigned int", 4);
    let long = blob.int("unsigned long", 8);
    let char = blob.int("char", 1);
    let name = blob.array(char, 56);
    let pointer = blob.pointer(char);
    let list = blob.structure(
        "list_head",
        16,
        &[("next", pointer, 0), ("prev", pointer, 8)],
    );
    let entry = [
        ("list", list, 0),
        ("module", pointer, 16),
        ("btf", pointer, 24),
    ];
    blob.structure("btf_module", 32, &entry);
    let btf = [
        ("data", pointer, 0),
        ("data_size", int, 8),
        ("start_id", int, 12),
        ("id", int, 16),
    ];
    blob.structure("btf", 24, &btf);
    let symtab = [
        ("symtab", pointer, 0),
        ("num_symtab", int, 8),
        ("strtab", pointer, 16),
        ("typetab", pointer, 24),
    ];
    let symtab = blob.structure("mod_kallsyms", 32, &symtab);
    let symtab = blob.pointer(symtab);
    let jump = [("code", int, 0), ("target", int, 4), ("key", long, 8)];
    let jump = blob.structure("jump_entry", 16, &jump);
    let jump = blob.pointer(jump);
    let call = blob.structure("static_call_site", 8, &[("addr", int, 0), ("key", int, 4)]);
    let call = blob.pointer(call);
    let sites = blob.pointer(long);
    let references = blob.structure("atomic_t", 4, &[("counter", int, 0)]);
    let uses = [
        ("source_list", list, 0),
        ("target_list", list, 16),
        ("source", pointer, 32),
        ("target", pointer, 40),
    ];
    blob.structure("module_use", 48, &uses);
    let mut members = vec![
        ("state", int, STATE),
        ("list", list, LIST),
        ("name", name, NAME),
        ("kallsyms", symtab, KALLSYMS),
        ("jump_entries", jump, JUMP_LABELS),
        ("num_jump_entries", int, JUMP_LABELS + 8),
        ("static_call_sites", call, STATIC_CALLS),
        ("num_static_call_sites", int, STATIC_CALLS + 8),
        ("ftrace_callsites", sites, FTRACE),
        ("num_ftrace_callsites", int, FTRACE + 8),
        ("refcnt", references, REFERENCES),
        ("source_list", list, USES),
        ("init", pointer, INIT),
        ("exit", pointer, EXIT),
        ("notes_attrs", pointer, NOTES),
    ];
    let attribute = [
        ("attr", list, 0),
        ("size", long, 16),
        ("private", pointer, 24),
    ];
    let attribute = u32::try_from(ATTRIBUTE_BYTES)
        .map(|bytes| blob.structure("bin_attribute", bytes, &attribute))
        .expect("small");
    let attributes = blob.array(attribute, 0);
    let first = u32::try_from(form.first_note()).expect("small");
    blob.structure("module_notes_attrs", first, &[("attrs", attributes, first)]);
    match form {
        Form::Layouts => {
            let layout = [
                ("base", pointer, 0),
                ("size", int, 8),
                ("text_size", int, 12),
            ];
            let layout = blob.structure("module_layout", 16, &layout);
            members.push(("core_layout", layout, LAYOUTS));
            members.push(("init_layout", layout, LAYOUTS + 16));
        }
        Form::Memory => {
            let kinds = [
                ("MOD_TEXT", 0),
                ("MOD_DATA", 1),
                ("MOD_RO_AFTER_INIT", 2),
                ("MOD_INIT_TEXT", 3),
                ("MOD_INIT_DATA", 4),
                ("MOD_MEM_NUM_TYPES", 5),
            ];
            blob.enumeration("mod_mem_type", true, &kinds);
            let part = [("base", pointer, 0), ("size", int, 8)];
            let part = blob.structure("module_memory", 16, &part);
            members.push(("mem", blob.array(part, 5), LAYOUTS));
        }
    }
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, ty, at)| (name, ty, u32::try_from(at).expect("small")))
        .collect();
    blob.structure("module", MODULE_BYTES, &members);
    blob
}

/// The shape of a module; each part has a page.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub state: u32,
    pub init: bool,
}

/// A live module without init parts.
pub const LIVE: Shape = Shape {
    name: "steady",
    state: 0,
    init: false,
};

/// A module before the return of the init function.
pub const COMING: Shape = Shape {
    name: "fresh",
    state: 1,
    init: true,
};

/// The guest's memory, with the modules so far.
#[derive(Debug)]
pub struct Guest {
    pub memory: FlatMemory,
    pub kernel: SymbolTable,
    form: Form,
    next: u64,
    last_link: Gva,
    pub head: Gva,
    types_head: Gva,
}

impl Guest {
    pub fn new(form: Form) -> Self {
        let mut memory = FlatMemory::zeroed(MEMORY_BYTES);
        let mut put = |at, value: u64| memory.write(Gpa(at), &value.to_le_bytes());
        put(511 * 8, 0x1000 | 3).expect("the root");
        // Bit 7: a page of a gigabyte, at 0.
        put(0x1000 + 511 * 8, 0x83).expect("the table");
        let head = Gva(BASE + FIRST_FREE);
        let mut kernel = SymbolTableBuilder::new();
        kernel.push(head, 'd', "modules");
        let types_head = head.wrapping_add(16);
        kernel.push(types_head, 'd', "btf_modules");
        let mut guest = Self {
            memory,
            kernel: kernel.build(),
            form,
            next: FIRST_FREE + 32,
            last_link: head,
            head,
            types_head,
        };
        guest.put(head, &head.0.to_le_bytes());
        guest.put(types_head, &types_head.0.to_le_bytes());
        guest
    }

    pub fn paging() -> PagingState {
        PagingState::four_level(0)
    }

    pub fn btf(&self) -> Btf {
        Btf::parse(types(self.form).finish()).expect("the types")
    }

    /// The memory in use, which begins at guest-physical 0: page tables, the list, modules.
    #[must_use]
    pub fn used(&self) -> &[u8] {
        let end = usize::try_from(self.next).expect("small");
        &self.memory.bytes()[..end]
    }

    /// Room for `len` bytes, aligned to `align`.
    pub fn room(&mut self, len: u64, align: u64) -> Gva {
        let at = self.next.next_multiple_of(align);
        self.next = at + len;
        Gva(BASE + at)
    }

    pub fn put(&mut self, at: Gva, bytes: &[u8]) {
        self.memory
            .write(Gpa(at.0 - BASE), bytes)
            .expect("within memory");
    }

    pub fn put32(&mut self, at: Gva, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn get64(&self, at: Gva) -> u64 {
        let at = usize::try_from(at.0 - BASE).expect("small");
        let bytes = self.memory.bytes()[at..at + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight"))
    }

    fn put64(&mut self, at: Gva, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// Appends a module with a page of nops as text. Returns the address of the `struct module`.
    pub fn module(&mut self, shape: Shape) -> Gva {
        let module = self.room(MODULE_BYTES.into(), 8);
        self.put32(module, shape.state);
        self.put(module.wrapping_add(NAME), shape.name.as_bytes());
        let text = self.part();
        let data = self.part();
        let init = if shape.init { self.part() } else { Gva(0) };
        self.put(text, &[0x90; 0x1000]);
        self.layouts(module, text, data, init);
        self.symbols(module, text, data, init);
        self.sites(module, text);
        self.unused(module);
        let link = module.wrapping_add(LIST);
        self.put64(self.last_link, link.0);
        self.put64(link, self.head.0);
        self.last_link = link;
        module
    }

    /// Puts the types `blob` of a module first on the kernel's list. Returns the address of the `struct btf`.
    pub fn types_of(&mut self, module: Gva, blob: &[u8]) -> Gva {
        let data = self.room(blob.len() as u64, 8);
        self.put(data, blob);
        let btf = self.room(TYPES_BYTES, 8);
        self.put64(btf, data.0);
        self.put32(
            btf.wrapping_add(8),
            u32::try_from(blob.len()).expect("small"),
        );
        let first = self.btf().len() + 1;
        self.put32(
            btf.wrapping_add(12),
            u32::try_from(first).expect("few types"),
        );
        let entry = self.room(TYPES_ENTRY_BYTES, 8);
        self.put64(entry, self.get64(self.types_head));
        self.put64(entry.wrapping_add(16), module.0);
        self.put64(entry.wrapping_add(24), btf.0);
        self.put64(self.types_head, entry.0);
        btf
    }

    /// The address of a module's link to the next module.
    pub fn link(module: Gva) -> Gva {
        module.wrapping_add(LIST)
    }

    fn unused(&mut self, module: Gva) {
        // The kernel holds a reference itself.
        self.put32(module.wrapping_add(REFERENCES), 1);
        let uses = module.wrapping_add(USES);
        self.put64(uses, uses.0);
        self.put64(module.wrapping_add(INIT), 1);
        self.put64(module.wrapping_add(EXIT), 1);
    }

    /// Lets `user` use `module`, which has no other user.
    pub fn use_module(&mut self, module: Gva, user: Gva) {
        let link = self.room(48, 8);
        let uses = module.wrapping_add(USES);
        self.put32(module.wrapping_add(REFERENCES), 2);
        self.put64(uses, link.0);
        self.put64(link, uses.0);
        self.put64(link.wrapping_add(32), user.0);
    }

    /// Takes the exit function of `module` away.
    pub fn make_permanent(&mut self, module: Gva) {
        self.put64(module.wrapping_add(EXIT), 0);
    }

    /// Gives `module` sections with notes, behind the symbols in its data.
    pub fn notes_of(&mut self, module: Gva, sections: &[&[u8]]) {
        let data = match self.form {
            // The page behind the text.
            Form::Layouts => self.get64(module.wrapping_add(LAYOUTS)) + 0x1000,
            Form::Memory => self.get64(module.wrapping_add(LAYOUTS + 16)),
        };
        let mut at = Gva(data + 0x100);
        let mut entries = Vec::new();
        for section in sections {
            self.put(at, section);
            entries.push((at, section.len() as u64));
            at = at.wrapping_add((section.len() as u64).next_multiple_of(8));
        }
        self.put_notes(module, &entries);
    }

    /// Gives `module` a section with notes that is not in the module.
    pub fn notes_outside(&mut self, module: Gva, section: &[u8]) {
        let at = self.room(section.len() as u64, 8);
        self.put(at, section);
        self.put_notes(module, &[(at, section.len() as u64)]);
    }

    fn put_notes(&mut self, module: Gva, sections: &[(Gva, u64)]) {
        let first = self.form.first_note();
        // An entry of zeros is behind the last.
        let count = sections.len() as u64 + 1;
        let notes = self.room(first + count * ATTRIBUTE_BYTES, 8);
        self.put64(module.wrapping_add(NOTES), notes.0);
        let mut at = notes.wrapping_add(first);
        for (address, size) in sections {
            self.put64(at.wrapping_add(16), *size);
            self.put64(at.wrapping_add(24), address.0);
            at = at.wrapping_add(ATTRIBUTE_BYTES);
        }
    }

    /// The address of a module's number of symbols.
    pub fn symbol_count(&self, module: Gva) -> Gva {
        Gva(self.get64(module.wrapping_add(KALLSYMS))).wrapping_add(8)
    }

    /// The address of a module's number of calls to `__fentry__`.
    pub fn ftrace_count(module: Gva) -> Gva {
        module.wrapping_add(FTRACE + 8)
    }

    /// Gives a module `count` symbols at the start of the text, all with the same name of 500
    /// letters.
    pub fn share_one_name(&mut self, module: Gva, count: u32) {
        let text = self.get64(module.wrapping_add(LAYOUTS));
        let mut entry = [0; 24];
        // In some section.
        entry[6] = 1;
        entry[8..16].copy_from_slice(&text.to_le_bytes());
        let entries = entry.repeat(count as usize);
        let letters = vec![b't'; count as usize];
        let name = [b'n'; 500];
        let tables = [entries, name.to_vec(), letters].map(|table| {
            let at = self.room(table.len() as u64 + 1, 8);
            self.put(at, &table);
            at.0
        });
        self.put_symtab(module, tables, count);
    }

    fn part(&mut self) -> Gva {
        self.room(0x1000, 0x1000)
    }

    fn layouts(&mut self, module: Gva, text: Gva, data: Gva, init: Gva) {
        let at = |number: u64| module.wrapping_add(LAYOUTS + number * 16);
        let present = if init == Gva(0) { 0 } else { 0x1000 };
        let parts = match self.form {
            Form::Layouts => vec![(0, text, 0x2000, 0x1000), (1, init, present, present)],
            Form::Memory => vec![
                (0, text, 0x1000, 0),
                (1, data, 0x1000, 0),
                (3, init, present, 0),
            ],
        };
        for (number, base, size, text_size) in parts {
            self.put64(at(number), base.0);
            self.put32(at(number).wrapping_add(8), size);
            self.put32(at(number).wrapping_add(12), text_size);
        }
    }

    /// Writes the symbols: two functions, a variable, the trampoline of a static call, a symbol defined elsewhere, a label,
    /// and the init function.
    fn symbols(&mut self, module: Gva, text: Gva, data: Gva, init: Gva) {
        // Name, letter, binding, section, address, size.
        let symbols: [(&str, u8, u8, u16, Gva, u64); 8] = [
            ("", b'?', 0, 0, Gva(0), 0),
            ("helper", b't', 0, 1, text, 0x10),
            ("exported", b't', 1, 1, text.wrapping_add(0x40), 0x20),
            ("table", b'd', 0, 2, data.wrapping_add(8), 0),
            ("printk", b'U', 1, 0, text, 0),
            (".L5", b't', 0, 1, text, 0),
            ("__SCT__own", b't', 0, 1, text.wrapping_add(0x60), 8),
            ("init_module", b't', 1, 3, init, 0x30),
        ];
        let (mut entries, mut names, mut letters) = (Vec::new(), Vec::new(), Vec::new());
        for (name, letter, binding, section, address, size) in symbols {
            entries.extend(u32::try_from(names.len()).expect("short").to_le_bytes());
            entries.extend([binding << 4, 0]);
            entries.extend(section.to_le_bytes());
            entries.extend(address.0.to_le_bytes());
            entries.extend(size.to_le_bytes());
            names.extend(name.bytes());
            names.push(0);
            letters.push(letter);
        }
        let tables = [entries, names, letters].map(|table| {
            let at = self.room(table.len() as u64, 8);
            self.put(at, &table);
            at.0
        });
        self.put_symtab(module, tables, 8);
    }

    /// Writes the symbol table; `tables` holds the addresses of symbols, names and letters.
    fn put_symtab(&mut self, module: Gva, tables: [u64; 3], count: u32) {
        let kallsyms = self.room(32, 8);
        self.put64(module.wrapping_add(KALLSYMS), kallsyms.0);
        self.put64(kallsyms, tables[0]);
        self.put32(kallsyms.wrapping_add(8), count);
        self.put64(kallsyms.wrapping_add(16), tables[1]);
        self.put64(kallsyms.wrapping_add(24), tables[2]);
    }

    /// Writes a short jump label, a static call, and two ftrace sites, the second outside of the module.
    fn sites(&mut self, module: Gva, text: Gva) {
        let distance = |from: Gva, to: Gva| to.0.wrapping_sub(from.0).to_le_bytes();
        let jump = self.room(16, 8);
        let label = text.wrapping_add(0x20);
        self.put(label, &[0x66, 0x90]);
        self.put(jump, &distance(jump, label)[..4]);
        let (to, target) = (jump.wrapping_add(4), text.wrapping_add(0x30));
        self.put(to, &distance(to, target)[..4]);
        self.put64(module.wrapping_add(JUMP_LABELS), jump.0);
        self.put32(module.wrapping_add(JUMP_LABELS + 8), 1);
        let call = self.room(8, 8);
        let target = text.wrapping_add(0x48);
        self.put(target, &[0xe8, 0, 0, 0, 0]);
        self.put(call, &distance(call, target)[..4]);
        self.put64(module.wrapping_add(STATIC_CALLS), call.0);
        self.put32(module.wrapping_add(STATIC_CALLS + 8), 1);
        let ftrace = self.room(16, 8);
        self.put64(ftrace, text.0);
        self.put64(ftrace.wrapping_add(8), 0x1234);
        self.put64(module.wrapping_add(FTRACE), ftrace.0);
        self.put32(Self::ftrace_count(module), 2);
    }
}
