//! The sites in a module that the kernel patches at run time.
//!
//! One-time patches (alternatives, return thunks, retpolines) are complete before a module becomes
//! visible.

use address::Gva;

use super::{
    Module, ModulesError,
    layout::{ModuleLayout, Table},
    view::View,
};
use crate::tracepoints::TableAt;
use crate::{
    PatchKind, PatchSite,
    patchsites::{BRANCH_BYTES, instruction_len, static_call_trampoline},
};

/// The largest module has 20 000 functions.
const MAX_SITES: u64 = 1 << 18;

/// Adds the sites of `module` from the bytes of the `struct module`.
pub(super) fn read(view: &View<'_>, layout: &ModuleLayout, bytes: &[u8], module: &mut Module) {
    let tables = [
        (PatchKind::Ftrace, "a module's ftrace sites", &layout.ftrace),
        (
            PatchKind::JumpLabel,
            "a module's jump labels",
            &layout.jump_labels,
        ),
        (
            PatchKind::StaticCall,
            "a module's static calls",
            &layout.static_calls,
        ),
    ];
    let mut sites = Vec::new();
    for (kind, what, table) in tables {
        let Some(table) = table else { continue };
        match entries(view, what, kind, *table, bytes) {
            Ok(entries) => {
                let in_code = |entry: &Entry| module.holds_code(entry.address);
                sites.extend(entries.into_iter().filter(in_code).map(|entry| PatchSite {
                    address: entry.address,
                    len: len(view, kind, entry.address),
                    kind,
                    target: entry.target.filter(|&target| module.holds_code(target)),
                }));
            }
            Err(error) => module.unread.push(error),
        }
    }
    let trampolines = module.symbols.iter().filter_map(static_call_trampoline);
    sites.extend(trampolines.filter(|site| module.holds_code(site.address)));
    sites.sort_unstable();
    sites.dedup();
    module.sites = sites;
}

/// The length of a site: a jump label may have two bytes; all others are calls or replacements of
/// calls.
fn len(view: &View<'_>, kind: PatchKind, address: Gva) -> u8 {
    if kind == PatchKind::Ftrace {
        return BRANCH_BYTES;
    }
    let code = view.bytes_up_to("a module's code", address, 15);
    code.ok()
        .and_then(|code| instruction_len(&code, address))
        .unwrap_or(BRANCH_BYTES)
}

/// The contents of a table entry.
struct Entry {
    address: Gva,
    /// The target, for a jump label.
    target: Option<Gva>,
}

fn entries(
    view: &View<'_>,
    what: &'static str,
    kind: PatchKind,
    table: Table,
    module: &[u8],
) -> Result<Vec<Entry>, ModulesError> {
    let TableAt { start, count } = table.read(module);
    if count == 0 || start == Gva(0) {
        return Ok(Vec::new());
    }
    let len = usize::try_from(count).ok().filter(|_| count <= MAX_SITES);
    let bytes = len
        .and_then(|len| len.checked_mul(table.stride))
        .ok_or(ModulesError::TooMany { what, count })?;
    let bytes = view.bytes(what, start, bytes)?;
    let chunks = bytes.chunks_exact(table.stride.max(1)).enumerate();
    let entry = |(number, chunk): (usize, &[u8])| {
        if kind == PatchKind::Ftrace {
            let address = Gva(u64::from_le_bytes(chunk.get(..8)?.try_into().ok()?));
            return Some(Entry {
                address,
                target: None,
            });
        }
        let here = start.wrapping_add((number * table.stride) as u64);
        // The distance is counted from its own field.
        let relative = |offset: usize| {
            let distance = chunk.get(offset..offset + 4)?.try_into().ok()?;
            let from = here.wrapping_add(offset as u64);
            let distance = i64::from(i32::from_le_bytes(distance));
            Some(Gva(from.0.wrapping_add_signed(distance)))
        };
        let target = match kind {
            PatchKind::JumpLabel => relative(4),
            _ => None,
        };
        Some(Entry {
            address: relative(0)?,
            target,
        })
    };
    Ok(chunks.filter_map(entry).collect())
}
