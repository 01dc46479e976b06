//! The formats of the tables.

use address::Gva;
use iced_x86::{Decoder, DecoderOptions};

use super::{
    PatchKind, PatchSite, alternatives,
    tables::{Table, Tables},
};
use crate::Symbol;

/// A near call, a jump, or a nop in place of the branch.
pub(crate) const BRANCH_BYTES: u8 = 5;
const ENDBR_BYTES: u8 = 4;
/// The trampoline of a static call: a branch, and three bytes never executed. Before patching the
/// branch, the kernel compares the three bytes in the kernel text with a `ud1`, and panics if they
/// differ.
const TRAMPOLINE_BYTES: u8 = 8;
const TRAMPOLINE_PREFIX: &str = "__SCT__";
/// FineIBT rewrites the hash check in front of an indirect call; 16 bytes in the first kernels with FineIBT.
const CFI_CHECK_BYTES: u8 = 16;

/// The length of a site whose table has no lengths.
#[derive(Clone, Copy)]
enum Length {
    Fixed(u8),
    /// The length of the instruction at the site, or the given length if the instruction cannot be
    /// decoded.
    Instruction(u8),
}

/// The offset of the target in an entry of the jump labels' table.
const JUMP_LABEL_TARGET: usize = 4;

/// A table of signed 32-bit distances to the sites.
struct RelativeTable {
    kind: PatchKind,
    start: &'static str,
    end: &'static str,
    stride: usize,
    length: Length,
}

const RELATIVE_TABLES: [RelativeTable; 7] = [
    RelativeTable {
        kind: PatchKind::JumpLabel,
        start: "__start___jump_table",
        end: "__stop___jump_table",
        // The site, the target, and the key as 64 bits.
        stride: 16,
        length: Length::Instruction(BRANCH_BYTES),
    },
    RelativeTable {
        kind: PatchKind::StaticCall,
        start: "__start_static_call_sites",
        end: "__stop_static_call_sites",
        // The site, and the key.
        stride: 8,
        length: Length::Instruction(BRANCH_BYTES),
    },
    RelativeTable {
        kind: PatchKind::SmpLock,
        start: "__smp_locks",
        end: "__smp_locks_end",
        stride: 4,
        length: Length::Fixed(1),
    },
    RelativeTable {
        kind: PatchKind::Retpoline,
        start: "__retpoline_sites",
        end: "__retpoline_sites_end",
        stride: 4,
        length: Length::Instruction(BRANCH_BYTES),
    },
    RelativeTable {
        kind: PatchKind::ReturnThunk,
        start: "__return_sites",
        end: "__return_sites_end",
        stride: 4,
        length: Length::Instruction(BRANCH_BYTES),
    },
    RelativeTable {
        kind: PatchKind::CallThunk,
        start: "__call_sites",
        end: "__call_sites_end",
        stride: 4,
        length: Length::Instruction(BRANCH_BYTES),
    },
    RelativeTable {
        kind: PatchKind::Endbr,
        start: "__ibt_endbr_seal",
        end: "__ibt_endbr_seal_end",
        stride: 4,
        length: Length::Fixed(ENDBR_BYTES),
    },
];

/// All sites of all tables, in no order.
pub(super) fn read_all(tables: &Tables<'_>) -> Vec<PatchSite> {
    let mut sites = Vec::new();
    for table in &RELATIVE_TABLES {
        relative(tables, table, &mut sites);
    }
    sites.extend(alternatives::read(tables).iter().map(|found| found.site));
    ftrace(tables, &mut sites);
    static_call_trampolines(tables, &mut sites);
    paravirt(tables, &mut sites);
    cfi(tables, &mut sites);
    runtime_constants(tables, &mut sites);
    sites.retain(|site| site.len > 0 && tables.holds_code(site.address));
    sites
}

fn relative(tables: &Tables<'_>, format: &RelativeTable, sites: &mut Vec<PatchSite>) {
    let table = tables.between(format.start, format.end);
    let entries = table.entries(format.stride, 4);
    let addresses = entries.filter_map(|at| Some((at, table.relative(at)?)));
    sites.extend(
        addresses
            .filter(|&(_, address)| tables.holds_code(address))
            .map(|(at, address)| {
                let len = match format.length {
                    Length::Fixed(len) => len,
                    Length::Instruction(default) => {
                        instruction_len(&tables.code(address), address).unwrap_or(default)
                    }
                };
                let target = (format.kind == PatchKind::JumpLabel)
                    .then(|| table.relative(at + JUMP_LABEL_TARGET))
                    .flatten();
                PatchSite {
                    address,
                    len,
                    kind: format.kind,
                    target: target.filter(|&target| tables.holds_code(target)),
                }
            }),
    );
}

/// The length of the first instruction of `code`, which lies at `address`.
pub(crate) fn instruction_len(code: &[u8], address: Gva) -> Option<u8> {
    let instruction = Decoder::with_ip(64, code, address.0, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        None
    } else {
        u8::try_from(instruction.len()).ok()
    }
}

/// Reads absolute addresses of the calls to `__fentry__`. If the linker has dropped a function, the
/// function's entry is zero.
fn ftrace(tables: &Tables<'_>, sites: &mut Vec<PatchSite>) {
    let table = tables.between("__start_mcount_loc", "__stop_mcount_loc");
    let addresses = table.entries(8, 8).filter_map(|at| table.u64(at));
    let call = |stored| PatchSite {
        address: tables.unslid(stored),
        len: BRANCH_BYTES,
        kind: PatchKind::Ftrace,
        target: None,
    };
    sites.extend(addresses.map(call));
}

/// Finds the trampolines of static calls, for calls not patched in line.
fn static_call_trampolines(tables: &Tables<'_>, sites: &mut Vec<PatchSite>) {
    let symbols = tables.symbols().matching("__SCT__*");
    sites.extend(symbols.filter_map(|symbol| static_call_trampoline(&symbol)));
}

/// The patch site of `symbol`, if the symbol is the trampoline of a static call.
pub(crate) fn static_call_trampoline(symbol: &Symbol) -> Option<PatchSite> {
    symbol
        .name
        .starts_with(TRAMPOLINE_PREFIX)
        .then_some(PatchSite {
            address: symbol.address,
            len: TRAMPOLINE_BYTES,
            kind: PatchKind::StaticCall,
            target: None,
        })
}

/// An absolute address, the operation's number, and the length.
fn paravirt(tables: &Tables<'_>, sites: &mut Vec<PatchSite>) {
    let table = tables.between("__parainstructions", "__parainstructions_end");
    let site = |at: usize| {
        let address = tables.unslid(table.u64(at)?);
        Some(PatchSite {
            address,
            len: table.u8(at + 9)?,
            kind: PatchKind::Paravirt,
            target: None,
        })
    };
    sites.extend(table.entries(16, 10).filter_map(site));
}

/// Distances to the end of the checks.
fn cfi(tables: &Tables<'_>, sites: &mut Vec<PatchSite>) {
    let table = tables.between("__cfi_sites", "__cfi_sites_end");
    let ends = table.entries(4, 4).filter_map(|at| table.relative(at));
    sites.extend(ends.map(|end| PatchSite {
        address: Gva(end.0.wrapping_sub(u64::from(CFI_CHECK_BYTES))),
        len: CFI_CHECK_BYTES,
        kind: PatchKind::Cfi,
        target: None,
    }));
}

/// Reads one table for each constant, of distances to immediates; the table's name implies their size.
fn runtime_constants(tables: &Tables<'_>, sites: &mut Vec<PatchSite>) {
    for (prefix, len) in [
        ("runtime_ptr_", 8),
        ("runtime_shift_", 1),
        ("runtime_mask_", 4),
    ] {
        let labels = format!("__start_{prefix}*");
        for label in tables.symbols().matching(&labels) {
            let Some(section) = label.name.strip_prefix("__start_") else {
                continue;
            };
            let table: Table = tables.between(&label.name, &format!("__stop_{section}"));
            let immediates = table.entries(4, 4).filter_map(|at| table.relative(at));
            sites.extend(immediates.map(|address| PatchSite {
                address,
                len,
                kind: PatchKind::RuntimeConst,
                target: None,
            }));
        }
    }
}
