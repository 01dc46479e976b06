//! Offsets in `struct module`, from the guest's own types.

use address::Gva;

use super::{ModuleRegion, ModulesError, RegionKind, notes::NotesLayout, usage::UsageLayout};
use crate::btf::{Btf, Slot, StructId, Type};
use crate::orc::ModuleRules;
use crate::tracepoints::TableAt;

/// `struct module` takes 1 or 2 KiB.
const MAX_STRUCT_BYTES: u64 = 64 << 10;
/// `MODULE_NAME_LEN` is 56.
const MAX_NAME_BYTES: u64 = 256;
/// A kernel has seven kinds of `struct module_memory`.
const MAX_REGIONS: u32 = 64;
/// The gap for modules in the kernel's part of the address space is 1.5 GiB at most.
const MAX_REGION_BYTES: u64 = 2 << 30;

/// The offsets in `struct module`, and in the struct holding the module's symbols.
#[derive(Clone, Debug)]
pub(super) struct ModuleLayout {
    /// The size of `struct module` in bytes.
    pub(super) size: usize,
    pub(super) state: Slot,
    /// `list.next`.
    pub(super) next: Slot,
    pub(super) name: std::ops::Range<usize>,
    pub(super) kallsyms: Slot,
    regions: Vec<RegionLayout>,
    pub(super) symtab: SymtabLayout,
    pub(super) ftrace: Option<Table>,
    pub(super) jump_labels: Option<Table>,
    pub(super) static_calls: Option<Table>,
    pub(super) tracepoints: Option<Table>,
    pub(super) events: Option<Table>,
    /// Absent if the kernel is built without unloading.
    pub(super) usage: Option<UsageLayout>,
    /// Absent if the kernel is built without sysfs.
    pub(super) notes: Option<NotesLayout>,
    unwind: Option<UnwindLayout>,
}

/// The places of ORC's tables, in `struct mod_arch_specific`. Absent if the kernel is built without ORC.
#[derive(Clone, Copy, Debug)]
struct UnwindLayout {
    ips: Slot,
    rules: Slot,
    count: Slot,
}

#[derive(Clone, Copy, Debug)]
struct RegionLayout {
    base: Slot,
    size: Slot,
    /// Up to 6.3: the size of the code at the beginning of the region.
    text_size: Option<Slot>,
    /// The kind of the region; if `text_size` is present, the kind of the part behind the code.
    kind: RegionKind,
}

/// `struct mod_kallsyms`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SymtabLayout {
    pub(super) size: usize,
    pub(super) symbols: Slot,
    pub(super) count: Slot,
    pub(super) names: Slot,
    pub(super) letters: Slot,
}

/// A pointer to an array, and the array's length. Absent if the kernel is built without the array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) start: Slot,
    pub(super) count: Slot,
    pub(super) stride: usize,
}

impl Table {
    /// The array, from the bytes of the `struct module`; an empty one if the bytes are too few.
    pub(super) fn read(self, bytes: &[u8]) -> TableAt {
        TableAt {
            start: Gva(self.start.read(bytes).unwrap_or_default()),
            count: self.count.read(bytes).unwrap_or_default(),
        }
    }
}

impl ModuleLayout {
    pub(super) fn from_btf(btf: &Btf) -> Result<Self, ModulesError> {
        let module = named(btf, "module")?;
        let name = btf
            .member(module, "name")
            .filter(|name| name.size_bytes <= MAX_NAME_BYTES)
            .ok_or(ModulesError::NoType { what: "name" })?;
        let name_start = bounded(name.offset_bytes, "name")?;
        let slot = |path| slot(btf, module, path);
        Ok(Self {
            size: size(btf, module, "module")?,
            state: slot("state")?,
            next: slot("list.next")?,
            name: name_start..name_start + bounded(name.size_bytes, "name")?,
            kallsyms: slot("kallsyms")?,
            regions: regions(btf, module)?,
            symtab: SymtabLayout::from_btf(btf)?,
            ftrace: table(btf, module, "ftrace_callsites", "num_ftrace_callsites"),
            jump_labels: table(btf, module, "jump_entries", "num_jump_entries"),
            static_calls: table(btf, module, "static_call_sites", "num_static_call_sites"),
            tracepoints: table(btf, module, "tracepoints_ptrs", "num_tracepoints"),
            events: table(btf, module, "trace_events", "num_trace_events"),
            usage: UsageLayout::from_btf(btf, module),
            notes: NotesLayout::from_btf(btf, module),
            unwind: UnwindLayout::from_btf(btf, module),
        })
    }

    /// The module's rules for unwinding, from the bytes of the `struct module`.
    pub(super) fn unwind_rules(&self, bytes: &[u8]) -> Option<ModuleRules> {
        let unwind = self.unwind?;
        let rules = ModuleRules {
            ips: Gva(unwind.ips.read(bytes)?),
            rules: Gva(unwind.rules.read(bytes)?),
            count: unwind.count.read(bytes)?,
        };
        (rules.ips != Gva(0) && rules.rules != Gva(0)).then_some(rules)
    }

    /// The parts of a module, from the bytes of the `struct module`.
    pub(super) fn regions(&self, bytes: &[u8]) -> Vec<ModuleRegion> {
        self.regions
            .iter()
            .filter_map(|layout| layout.read(bytes))
            .flatten()
            .filter(|region| !region.range.is_empty())
            .collect()
    }
}

impl UnwindLayout {
    fn from_btf(btf: &Btf, module: StructId) -> Option<Self> {
        let slot = |path| Slot::find(btf, module, path);
        Some(Self {
            ips: slot("arch.orc_unwind_ip")?,
            rules: slot("arch.orc_unwind")?,
            count: slot("arch.num_orcs")?,
        })
    }
}

impl RegionLayout {
    /// The code, and the rest behind the code. Either may be empty; `None` if the range is
    /// implausible.
    fn read(&self, bytes: &[u8]) -> Option<[ModuleRegion; 2]> {
        let base = Gva(self.base.read(bytes)?);
        let size = self.size.read(bytes)?;
        if base == Gva(0) || size > MAX_REGION_BYTES {
            return None;
        }
        let end = base.checked_add(size)?;
        let text_size = match self.text_size {
            Some(slot) => slot.read(bytes)?.min(size),
            None => 0,
        };
        let middle = base.checked_add(text_size)?;
        let text = if self.kind.is_init() {
            RegionKind::InitText
        } else {
            RegionKind::Text
        };
        Some([
            ModuleRegion {
                range: base..middle,
                kind: text,
            },
            ModuleRegion {
                range: middle..end,
                kind: self.kind,
            },
        ])
    }
}

impl SymtabLayout {
    fn from_btf(btf: &Btf) -> Result<Self, ModulesError> {
        let id = named(btf, "mod_kallsyms")?;
        Ok(Self {
            size: size(btf, id, "mod_kallsyms")?,
            symbols: slot(btf, id, "symtab")?,
            count: slot(btf, id, "num_symtab")?,
            names: slot(btf, id, "strtab")?,
            letters: slot(btf, id, "typetab")?,
        })
    }
}

fn named(btf: &Btf, name: &'static str) -> Result<StructId, ModulesError> {
    btf.struct_named(name)
        .ok_or(ModulesError::NoType { what: name })
}

/// The place of the member at `path`.
fn slot(btf: &Btf, id: StructId, path: &'static str) -> Result<Slot, ModulesError> {
    Slot::find(btf, id, path).ok_or(ModulesError::NoType { what: path })
}

fn size(btf: &Btf, id: StructId, what: &'static str) -> Result<usize, ModulesError> {
    bounded(btf.size_of(id).unwrap_or(u64::MAX), what)
}

fn bounded(bytes: u64, what: &'static str) -> Result<usize, ModulesError> {
    usize::try_from(bytes)
        .ok()
        .filter(|_| bytes <= MAX_STRUCT_BYTES)
        .ok_or(ModulesError::NoType { what })
}

fn regions(btf: &Btf, module: StructId) -> Result<Vec<RegionLayout>, ModulesError> {
    if let Some(regions) = memory_array(btf, module) {
        return Ok(regions);
    }
    let slot = |path| slot(btf, module, path);
    Ok(vec![
        RegionLayout {
            base: slot("core_layout.base")?,
            size: slot("core_layout.size")?,
            text_size: Some(slot("core_layout.text_size")?),
            kind: RegionKind::Data,
        },
        RegionLayout {
            base: slot("init_layout.base")?,
            size: slot("init_layout.size")?,
            text_size: Some(slot("init_layout.text_size")?),
            kind: RegionKind::InitData,
        },
    ])
}

/// `mem`, an element for each `enum mod_mem_type`.
fn memory_array(btf: &Btf, module: StructId) -> Option<Vec<RegionLayout>> {
    let array = btf.member(module, "mem")?;
    let Type::Array { element, len } = btf.get(btf.stripped(array.ty)?)? else {
        return None;
    };
    let element = btf.as_struct(element)?;
    let (base, size) = (
        Slot::find(btf, element, "base")?,
        Slot::find(btf, element, "size")?,
    );
    let start = usize::try_from(array.offset_bytes).ok()?;
    let stride = usize::try_from(btf.size_of(element)?).ok()?;
    let types = btf.as_enum(btf.enum_named("mod_mem_type")?)?;
    (0..len.min(MAX_REGIONS))
        .map(|number| {
            let name = types.name(i64::from(number))?;
            let by = stride
                .checked_mul(usize::try_from(number).ok()?)?
                .checked_add(start)?;
            Some(RegionLayout {
                base: base.shifted(by)?,
                size: size.shifted(by)?,
                text_size: None,
                kind: kind_of(name),
            })
        })
        .collect()
}

/// The kind by the enumerator's name: `MOD_INIT_TEXT` and so on. `MOD_RO_AFTER_INIT` is data never
/// freed.
fn kind_of(name: &str) -> RegionKind {
    match (name.starts_with("MOD_INIT_"), name.ends_with("_TEXT")) {
        (false, true) => RegionKind::Text,
        (false, false) => RegionKind::Data,
        (true, true) => RegionKind::InitText,
        (true, false) => RegionKind::InitData,
    }
}

fn table(btf: &Btf, module: StructId, start: &str, count: &str) -> Option<Table> {
    let pointer = btf.member(module, start)?;
    let Type::Pointer(element) = btf.get(btf.stripped(pointer.ty)?)? else {
        return None;
    };
    let stride = btf.size_of(element)?;
    Some(Table {
        start: Slot::find(btf, module, start)?,
        count: Slot::find(btf, module, count)?,
        stride: bounded(stride, "a table").ok()?,
    })
}
