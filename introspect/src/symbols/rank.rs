//! Which of several symbols is meant: at one address for display, under one name for a lookup.

/// Names that stand in front of or beside a function and are never what a reader expects to see.
const MACHINE_MADE: [&str; 6] = ["__pfx_", "__cfi_", ".", "__ia32_", "__UNIQUE_ID_", "__key."];
/// How labels that the linker script puts around sections begin, and how they end.
const LABEL_PREFIXES: [&str; 2] = ["__start_", "__stop_"];
const LABEL_SUFFIXES: [&str; 2] = ["_start", "_end"];

/// Orders symbols at one address: the least is the one to show. The name itself breaks ties, so
/// that the choice does not depend on the order in which the symbols came.
pub(super) fn for_display(kind: u8, name: &str) -> (bool, bool, bool, bool, usize) {
    let label = LABEL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || LABEL_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    let underscores = name.len() - name.trim_start_matches('_').len();
    (
        is_absolute(kind),
        is_machine_made(name),
        label,
        !is_global(kind),
        underscores,
    )
}

/// Orders symbols of one name: the least is the one that a plain lookup gives.
pub(super) fn for_lookup(kind: u8) -> (bool, bool) {
    (!is_text(kind), !is_global(kind))
}

pub(super) fn is_machine_made(name: &str) -> bool {
    MACHINE_MADE.iter().any(|prefix| name.starts_with(prefix))
}

pub(super) const fn is_text(kind: u8) -> bool {
    matches!(kind, b'T' | b't' | b'W' | b'w')
}

/// Absolute symbols are numbers, offsets of per-CPU variables for one: no address resolves to them.
pub(super) const fn is_absolute(kind: u8) -> bool {
    matches!(kind, b'A' | b'a')
}

const fn is_global(kind: u8) -> bool {
    kind.is_ascii_uppercase()
}
