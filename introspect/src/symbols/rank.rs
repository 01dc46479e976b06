//! The choice between several symbols: at one address for display, under one name for a lookup.

/// Name prefixes of symbols in front of or beside a function, which no reader expects to see.
const MACHINE_MADE: [&str; 6] = ["__pfx_", "__cfi_", ".", "__ia32_", "__UNIQUE_ID_", "__key."];
/// The prefixes and suffixes of the linker script's labels around sections.
const LABEL_PREFIXES: [&str; 2] = ["__start_", "__stop_"];
const LABEL_SUFFIXES: [&str; 2] = ["_start", "_end"];

/// Orders symbols at one address: the least is the symbol to show. The name breaks ties, so that
/// the choice does not depend on the order of input.
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

/// Orders symbols of one name: a plain lookup returns the least.
pub(super) fn for_lookup(kind: u8) -> (bool, bool) {
    (!is_text(kind), !is_global(kind))
}

pub(super) fn is_machine_made(name: &str) -> bool {
    MACHINE_MADE.iter().any(|prefix| name.starts_with(prefix))
}

pub(super) const fn is_text(kind: u8) -> bool {
    matches!(kind, b'T' | b't' | b'W' | b'w')
}

/// Absolute symbols are numbers, for example offsets of per-CPU variables: no address resolves to
/// an absolute symbol.
pub(super) const fn is_absolute(kind: u8) -> bool {
    matches!(kind, b'A' | b'a')
}

const fn is_global(kind: u8) -> bool {
    kind.is_ascii_uppercase()
}
