//! Resolves watchpoints: the watched bytes are data of the kernel's image or per-CPU data, on a page that KVM and the processor do not write by
//! themselves.

use std::ops::Range;

use address::{Gva, PAGE_BYTES};
use inspect::expression::declared_type;
use introspect::Symbol;
use manifest::{DataBase, MAX_WATCHED_BYTES, WatchedAccess, WatchedData};
use vmm::BreakpointBytes;

use super::place::{MemoryOwner, Place, PlantTime, Via};
use super::watch_problem::WatchProblem;
use crate::arguments::ArgumentSource;
use crate::kernel::Kernel;

const POINTER_BYTES: u64 = 8;
/// The number of near names in the error for an unknown name.
const NEAR_NAMES: usize = 5;
/// The most addresses of namesakes in an error.
const MAX_NAMESAKES: usize = 16;

/// Objects that the processor or KVM writes by itself, without an instruction of the guest: a page with one of them cannot be protected.
/// A kernel has some of the names.
const WRITTEN_BY_HARDWARE: [&str; 30] = [
    "init_top_pgt",
    "swapper_pg_dir",
    "early_top_pgt",
    "early_dynamic_pgts",
    "level4_kernel_pgt",
    "level3_kernel_pgt",
    "level2_kernel_pgt",
    "level3_ident_pgt",
    "level2_ident_pgt",
    "level2_fixmap_pgt",
    "level1_fixmap_pgt",
    "level2_spare_pgt",
    "bm_pte",
    "espfix_pud_page",
    "kasan_early_shadow_pte",
    "kasan_early_shadow_pmd",
    "kasan_early_shadow_pud",
    "kasan_early_shadow_p4d",
    "init_thread_union",
    "init_stack",
    "hv_clock_boot",
    "wall_clock",
    // Per-CPU data: memory that KVM writes, stacks for interrupts and exceptions, and buffers of the processor.
    "steal_time",
    "apf_reason",
    "kvm_apic_eoi",
    "irq_stack_backing_store",
    "exception_stacks",
    "entry_stack_storage",
    "cpu_debug_store",
    "posted_msi_pi_desc",
];
/// Objects that the processor reads without an operand of an instruction, when it delivers an event.
/// The descriptors of tables are read by instructions whose operand KVM may fail to emulate.
const READ_BY_HARDWARE: [&str; 10] = [
    "idt_table",
    "debug_idt_table",
    "bringup_idt_table",
    "idt_descr",
    "bringup_idt_descr",
    "early_gdt_descr",
    "startup_gdt_descr",
    "gdt_page",
    "cpu_tss_rw",
    // Loaded by `fxrstor` and `xrstor`, whose operand has no known length.
    "init_fpstate",
];
/// The labels of ranges of such objects: kvm-clock's memory, and the areas of processors, which have their own copies.
const SHARED_WITH_KVM: (&str, &str) = ("__start_bss_decrypted", "__end_bss_decrypted");
const PER_CPU: (&str, &str) = ("__per_cpu_start", "__per_cpu_end");
/// The distances from the section of per-CPU data to the processors' copies.
const PER_CPU_TABLE: &str = "__per_cpu_offset";
/// The labels of the code and data that the kernel frees after boot.
const INIT: (&str, &str) = ("__init_begin", "__init_end");
/// The labels of the other memory that the kernel frees: the gaps between sections, when the sections get their access rights, and, with
/// one processor, the table of `lock` prefixes.
const FREED: [(&str, &str); 3] = [
    ("_etext", "__start_rodata"),
    ("__end_rodata", "_sdata"),
    ("__smp_locks", "__smp_locks_end"),
];
/// The end of the data. Behind it is the `.brk` area: page tables of the kernel, and memory for the page allocator.
const END_OF_DATA: &str = "__bss_stop";

/// Resolves `data` to bytes of the kernel. `slide` is the distance by which the kernel has moved: plain addresses in `data`, and addresses
/// in the error, are run-time addresses.
pub(super) fn resolve(
    kernel: &Kernel,
    data: &WatchedData,
    slide: i64,
) -> Result<Place, WatchProblem> {
    resolve_linked(kernel, data, slide).map_err(|problem| problem.at_run_time(slide))
}

/// See [`resolve`]; addresses in the error are link-time addresses.
fn resolve_linked(kernel: &Kernel, data: &WatchedData, slide: i64) -> Result<Place, WatchProblem> {
    let (at, size, symbol) = match &data.base {
        DataBase::Address(address) => {
            let at = Gva(address.0.wrapping_sub(slide.cast_unsigned()));
            let symbol = match kernel.symbols().resolve(at) {
                Some(found) => format!("{}+{:#x}", found.symbol.name, found.offset),
                None => at.to_string(),
            };
            (at, data.bytes.map(u64::from).unwrap_or_default(), symbol)
        }
        // The caller resolves the members of tasks.
        DataBase::TaskMember { path, .. } => {
            return Err(WatchProblem::Untyped { name: path.clone() });
        }
        DataBase::Variable { name, offset } => {
            let found = variable(kernel, name)?;
            let bytes = match data.bytes {
                Some(bytes) => u64::from(bytes),
                None => found
                    .size
                    .ok_or_else(|| WatchProblem::Untyped { name: name.clone() })?
                    .saturating_sub(*offset),
            };
            let end = offset.checked_add(bytes.max(1));
            if let Some(size) = found.size.or(found.room)
                && end.is_none_or(|end| end > size)
            {
                return Err(WatchProblem::Outside {
                    name: name.clone(),
                    size,
                });
            }
            let symbol = format!("{name}+{offset:#x}");
            (found.at.wrapping_add(*offset), bytes, symbol)
        }
    };
    let len = u16::try_from(size).ok();
    let len = len.filter(|len| (1..=MAX_WATCHED_BYTES).contains(len));
    let Some(len) = len.map(usize::from) else {
        return Err(WatchProblem::Size { bytes: size });
    };
    let bytes = at..at.wrapping_add(len as u64);
    let is_in_register = data.access.is_in_register();
    if is_in_register {
        check_register(at, len)?;
    }
    let is_address = matches!(data.base, DataBase::Address(_));
    let (owner, when) = match within(kernel, PER_CPU, bytes) {
        // The kernel makes the copies early in its boot.
        true => (MemoryOwner::Processors, PlantTime::BootPatched),
        // The map of all memory is final by then.
        false if is_address && is_in_register && is_outside(kernel, at) => {
            (MemoryOwner::Nobody, PlantTime::BootPatched)
        }
        false => (MemoryOwner::Kernel, PlantTime::TextPresent),
    };
    match owner {
        MemoryOwner::Processors if is_address => return Err(WatchProblem::PerCpuAddress { at }),
        MemoryOwner::Processors => check_copies(kernel, at, len)?,
        MemoryOwner::Nobody => (),
        _ => check_image(kernel, at, len)?,
    }
    check_hardware(kernel, at, len, data.access)?;
    let ip = match owner {
        MemoryOwner::Nobody => at.wrapping_add(slide.cast_unsigned()),
        _ => at,
    };
    Ok(Place {
        ip,
        symbol: symbol.into(),
        via: Via::Data {
            len,
            access: data.access,
        },
        when,
        init: false,
        owner,
        arguments: ArgumentSource::Registers,
    })
}

/// Checks that a debug register can watch the bytes.
pub(super) fn check_register(at: Gva, len: usize) -> Result<(), WatchProblem> {
    match BreakpointBytes::new(at, len) {
        Some(_) => Ok(()),
        None => Err(WatchProblem::NotInRegister { at, bytes: len }),
    }
}

/// Whether the address is in the kernel's half of the address space, and not in the kernel's image.
fn is_outside(kernel: &Kernel, at: Gva) -> bool {
    at.0 >> 63 == 1 && !kernel.image().contains(&at)
}

/// A variable or member.
struct Found {
    at: Gva,
    /// The size in bytes, if the type is known.
    size: Option<u64>,
    /// The number of bytes up to the next symbol, if known.
    room: Option<u64>,
}

/// The variable `name`, or a member of the variable in front of the first dot.
fn variable(kernel: &Kernel, name: &str) -> Result<Found, WatchProblem> {
    let declared = |name| declared_type(kernel.types().ok()?, name);
    if let Some(symbol) = data_symbol(kernel, name)? {
        let size = match declared(name) {
            Some((_, stars)) if stars > 0 => Some(POINTER_BYTES),
            Some((ty, _)) => kernel.types().ok().and_then(|types| types.size_of(ty)),
            None => None,
        };
        return Ok(Found {
            at: symbol.address,
            size,
            room: Some(symbol.size).filter(|size| *size > 0),
        });
    }
    if kernel.symbols().lookup(name).is_some() {
        return Err(WatchProblem::Code);
    }
    let missing = |name: &str| WatchProblem::NoVariable {
        name: name.to_owned(),
        near: kernel.symbols().nearest_names(name, NEAR_NAMES),
    };
    let (name, path) = name.split_once('.').ok_or_else(|| missing(name))?;
    let symbol = data_symbol(kernel, name)?.ok_or_else(|| missing(name))?;
    let untyped = || WatchProblem::Untyped {
        name: name.to_owned(),
    };
    let (ty, stars) = declared(name).ok_or_else(untyped)?;
    let types = kernel.types().map_err(|_| untyped())?;
    let member = (stars == 0)
        .then(|| types.member(types.as_struct(ty)?, path))
        .flatten();
    let member = member.ok_or_else(|| WatchProblem::NoMember {
        variable: name.to_owned(),
        path: path.to_owned(),
    })?;
    Ok(Found {
        at: symbol.address.wrapping_add(member.offset_bytes),
        size: Some(member.size_bytes),
        room: None,
    })
}

/// The only variable called `name`.
fn data_symbol(kernel: &Kernel, name: &str) -> Result<Option<Symbol>, WatchProblem> {
    let mut named = kernel.symbols().lookup_all(name);
    named.retain(|symbol| !symbol.is_text());
    named.sort_by_key(|symbol| symbol.address);
    named.dedup_by_key(|symbol| symbol.address);
    if named.len() > 1 {
        let addresses = named.iter().take(MAX_NAMESAKES);
        return Err(WatchProblem::Ambiguous {
            name: name.to_owned(),
            addresses: addresses.map(|symbol| symbol.address).collect(),
        });
    }
    Ok(named.pop())
}

/// Checks that each processor has a copy of the bytes. The copies are on the same places of pages as the section.
fn check_copies(kernel: &Kernel, at: Gva, len: usize) -> Result<(), WatchProblem> {
    let label = |name| kernel.symbols().address_of(name);
    if label(PER_CPU_TABLE).is_none() {
        let table = PER_CPU_TABLE;
        return Err(WatchProblem::NoCopies { table });
    }
    let end = at.wrapping_add(len as u64);
    let is_within = label(PER_CPU.0).is_some_and(|start| start <= at && at < end)
        && label(PER_CPU.1).is_some_and(|behind| end <= behind);
    match is_within {
        true => Ok(()),
        false => Err(WatchProblem::BesidePerCpu { at }),
    }
}

/// Checks that the bytes are data of the image that stays data.
fn check_image(kernel: &Kernel, at: Gva, len: usize) -> Result<(), WatchProblem> {
    let bytes = at..at.wrapping_add(len as u64);
    // Between two segments of the file, the image has addresses without memory.
    let last = at.wrapping_add(len as u64 - 1);
    let physical = kernel.to_physical(at).zip(kernel.to_physical(last));
    let is_one_piece =
        physical.is_some_and(|(first, end)| end.0.checked_sub(first.0) == Some(len as u64 - 1));
    if !kernel.image().contains(&at) || !is_one_piece {
        return Err(WatchProblem::NotData { at });
    }
    let end_of_data = kernel.symbols().address_of(END_OF_DATA);
    if end_of_data.is_some_and(|end| end < bytes.end) {
        return Err(WatchProblem::BehindData { at });
    }
    let is_freed = FREED
        .iter()
        .any(|labels| within(kernel, *labels, bytes.clone()));
    if kernel.is_init(at) || (is_freed && !kernel.holds_code(at)) {
        return Err(WatchProblem::Freed);
    }
    if kernel.holds_code(at) {
        return Err(WatchProblem::Code);
    }
    let pages = at.page()..last.page().wrapping_add(PAGE_BYTES);
    // A page with code is read-only because of its plants, and the kernel patches the code with writes of its own.
    let overlaps = |text: Range<Gva>| text.start < pages.end && pages.start < text.end;
    match kernel.text().is_some_and(overlaps) || within(kernel, INIT, pages.clone()) {
        true => Err(WatchProblem::CodePage),
        false => Ok(()),
    }
}

/// Checks that no object on the pages of the bytes is the processor's or KVM's; of bytes with a debug register, that none of the bytes is.
fn check_hardware(
    kernel: &Kernel,
    at: Gva,
    len: usize,
    access: WatchedAccess,
) -> Result<(), WatchProblem> {
    let last = at.wrapping_add(len as u64 - 1);
    let pages = match access.is_in_register() {
        true => at..last.wrapping_add(1),
        false => at.page()..last.page().wrapping_add(PAGE_BYTES),
    };
    if within(kernel, SHARED_WITH_KVM, pages.clone()) {
        let object = SHARED_WITH_KVM.0.to_owned();
        return Err(WatchProblem::WrittenByHardware { object });
    }
    let is_on_pages = |symbol: &Symbol| {
        symbol.address < pages.end && symbol.address.wrapping_add(symbol.size.max(1)) > pages.start
    };
    let on_pages = |names: &[&str]| {
        let is_there = |name: &&&str| kernel.symbols().lookup_all(name).iter().any(is_on_pages);
        names.iter().find(is_there).map(|name| (*name).to_owned())
    };
    if let Some(object) = on_pages(&WRITTEN_BY_HARDWARE) {
        return Err(WatchProblem::WrittenByHardware { object });
    }
    match on_pages(&READ_BY_HARDWARE).filter(|_| access.has_reads()) {
        Some(object) => Err(WatchProblem::ReadByHardware { object }),
        None => Ok(()),
    }
}

/// Whether a byte of `bytes` is between two labels of the kernel.
fn within(kernel: &Kernel, (start, end): (&str, &str), bytes: Range<Gva>) -> bool {
    let label = |name| kernel.symbols().address_of(name);
    match (label(start), label(end)) {
        (Some(start), Some(end)) => bytes.start < end && start < bytes.end,
        _ => false,
    }
}
