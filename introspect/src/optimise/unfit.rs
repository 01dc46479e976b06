//! Code unfit for a jump, independent of its instructions.

use std::ops::Range;

use address::Gva;

use crate::SymbolTable;

/// Why code is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unfit {
    /// Entry and exit code of the kernel, or code run in the same state: on page tables, stacks or
    /// segments of programs.
    Entry,
    /// Code that runs at the start of a processor, at its addresses from before the page tables are
    /// in use.
    Start,
    /// Code copied by the kernel, with the copy run elsewhere, or code patched without an entry in
    /// a table.
    Template,
    /// Code that holds back speculation by the positions of its instructions.
    Thunk,
}

impl Unfit {
    /// The reason as one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Entry => "entry-code",
            Self::Start => "start-code",
            Self::Template => "template",
            Self::Thunk => "thunk",
        }
    }

    /// The reason as a fragment of a sentence: "this code …".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Entry => {
                "enters or leaves the kernel, where page tables and stack may be a program's"
            }
            Self::Start => "starts a processor, before the kernel's page tables are in use",
            Self::Template => "is copied or patched by the kernel in ways of its own",
            Self::Thunk => "holds back speculation by where its instructions lie",
        }
    }
}

const RANGES: [(&str, &str, Unfit); 3] = [
    ("__entry_text_start", "__entry_text_end", Unfit::Entry),
    ("_text", "_stext", Unfit::Start),
    (
        "__indirect_thunk_start",
        "__indirect_thunk_end",
        Unfit::Thunk,
    ),
];

const NAMES: [(&str, Unfit); 33] = [
    // Between two `swapgs`, the kernel's own `gs` is not in force.
    ("asm_load_gs_index", Unfit::Entry),
    ("native_load_gs_index", Unfit::Entry),
    ("__rdgsbase_inactive", Unfit::Entry),
    ("__wrgsbase_inactive", Unfit::Entry),
    // On a processor that starts, `gs` is 0 before the write of its base.
    ("load_percpu_segment", Unfit::Entry),
    ("switch_to_new_gdt", Unfit::Entry),
    ("switch_gdt_and_percpu_base", Unfit::Entry),
    ("startup_64*", Unfit::Start),
    ("secondary_startup_64*", Unfit::Start),
    ("common_startup_64", Unfit::Start),
    ("__startup_64", Unfit::Start),
    ("__startup_secondary_64", Unfit::Start),
    ("verify_cpu", Unfit::Start),
    ("sev_verify_cbit", Unfit::Start),
    ("relocate_kernel", Unfit::Template),
    ("identity_mapped", Unfit::Template),
    ("virtual_mapped", Unfit::Template),
    ("swap_pages", Unfit::Template),
    ("core_restore_code", Unfit::Template),
    ("optprobe_template_*", Unfit::Template),
    ("ftrace_caller*", Unfit::Template),
    ("ftrace_regs_*", Unfit::Template),
    ("ftrace_*call", Unfit::Template),
    ("ftrace_epilogue", Unfit::Template),
    ("bpf_dispatcher_*_func", Unfit::Template),
    ("__x86_indirect_*", Unfit::Thunk),
    ("__x86_return_*", Unfit::Thunk),
    ("srso_*safe_ret*", Unfit::Thunk),
    ("srso_*return_thunk", Unfit::Thunk),
    ("its_return_thunk", Unfit::Thunk),
    ("*_untrain_ret*", Unfit::Thunk),
    ("retbleed_return_thunk", Unfit::Thunk),
    ("call_depth_return_thunk", Unfit::Thunk),
];

/// The ranges of unfit code named by `symbols`.
pub(super) fn unfit(symbols: &SymbolTable) -> Vec<(Range<Gva>, Unfit)> {
    let labelled = RANGES.iter().filter_map(|(start, end, why)| {
        let range = symbols.address_of(start)?..symbols.address_of(end)?;
        Some((range, *why))
    });
    let named = symbols.iter().filter_map(|symbol| {
        let end = symbol.end().filter(|_| symbol.is_text())?;
        let matches = |(pattern, _): &&(&str, Unfit)| crate::glob_matches(pattern, &symbol.name);
        let (_, why) = NAMES.iter().find(matches)?;
        Some((symbol.address..end, *why))
    });
    labelled.chain(named).collect()
}

/// The thunks making an indirect jump for code without indirect jumps: a direct jump to a thunk
/// goes to the address in a register.
pub(super) fn thunks(symbols: &SymbolTable) -> Vec<Range<Gva>> {
    let named = symbols.matching("__x86_indirect_*");
    let thunks = named.filter_map(|symbol| Some(symbol.address..symbol.end()?));
    thunks.filter(|range| !range.is_empty()).collect()
}
