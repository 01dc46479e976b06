//! Variables by their names.

use address::Gva;
use introspect::btf::TypeId;
use introspect::{Btf, Symbol};

use super::error::EvaluateError;
use super::tree::TypeName;
use crate::per_cpu::{PerCpuOffsets, TABLE, section};
use crate::view::{KernelView, NotReadable};

/// The number of near names in an error.
const NEAR: usize = 5;
/// The most addresses of namesakes in an error.
const MAX_NAMESAKES: usize = 16;

/// The types of well-known variables: compilers write per-CPU variables into BTF and no others, and these have had the same type in all
/// kernels with BTF.
const WELL_KNOWN: [(&str, &str); 22] = [
    ("init_task", "struct task_struct"),
    ("init_mm", "struct mm_struct"),
    ("init_net", "struct net"),
    ("init_uts_ns", "struct uts_namespace"),
    ("init_pid_ns", "struct pid_namespace"),
    ("init_user_ns", "struct user_namespace"),
    ("init_nsproxy", "struct nsproxy"),
    ("init_cred", "struct cred"),
    ("init_fs", "struct fs_struct"),
    ("init_files", "struct files_struct"),
    ("init_signals", "struct signal_struct"),
    ("boot_cpu_data", "struct cpuinfo_x86"),
    ("modules", "struct list_head"),
    ("super_blocks", "struct list_head"),
    ("jiffies", "unsigned long"),
    ("jiffies_64", "u64"),
    ("nr_cpu_ids", "unsigned int"),
    ("total_forks", "unsigned long"),
    ("saved_command_line", "char *"),
    ("panic_timeout", "int"),
    // Per-CPU variables, which BTF of 5.10 does not have.
    ("runqueues", "struct rq"),
    ("current_task", "struct task_struct *"),
];

/// A variable or a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) at: Gva,
    /// `None` if the type is not known. The stars come with the type.
    pub(super) ty: Option<(TypeId, usize)>,
    pub(super) is_function: bool,
}

/// The variable or function `name`; a per-CPU variable only if `cpu` gives the processor.
pub(super) fn find(
    view: &KernelView<'_>,
    types: &Btf,
    name: &str,
    cpu: Option<u64>,
) -> Result<Variable, EvaluateError> {
    let owned = || name.to_owned();
    let named = view.symbols().lookup_all(name);
    // A variable is meant rather than a function of the same name, whose address says little.
    let is_text = named.iter().all(Symbol::is_text);
    let mut meant: Vec<Symbol> = named;
    meant.retain(|symbol| symbol.is_text() == is_text);
    meant.sort_by_key(|symbol| symbol.address);
    meant.dedup_by_key(|symbol| symbol.address);
    let symbol = match &meant[..] {
        [] => {
            let near = view.symbols().nearest_names(name, NEAR);
            return Err(EvaluateError::NoSymbol {
                name: owned(),
                near,
            });
        }
        [symbol] => symbol,
        several => {
            let several = several.iter().take(MAX_NAMESAKES);
            return Err(EvaluateError::Ambiguous {
                name: owned(),
                addresses: several.map(|symbol| view.running(symbol.address)).collect(),
            });
        }
    };
    let at = view.running(symbol.address);
    let at = match (is_per_cpu(view, symbol.address), cpu) {
        (true, Some(cpu)) => at.wrapping_add(distance(view, cpu)?),
        (false, None) => at,
        (true, None) => return Err(EvaluateError::PerCpu { name: owned() }),
        (false, Some(_)) => return Err(EvaluateError::NotPerCpu { name: owned() }),
    };
    Ok(Variable {
        at,
        ty: declared_type(types, name),
        is_function: symbol.is_text(),
    })
}

/// The type of the variable `name`, and the number of stars behind the type; `None` if the type is not known: see `docs/types.md`.
#[must_use]
pub fn declared_type(types: &Btf, name: &str) -> Option<(TypeId, usize)> {
    let by_types = types.variable_named(name).map(|ty| (ty, 0));
    by_types.or_else(|| well_known(types, name))
}

fn well_known(types: &Btf, name: &str) -> Option<(TypeId, usize)> {
    let (_, declared) = WELL_KNOWN.into_iter().find(|(known, _)| *known == name)?;
    let declared = TypeName::parse(declared).ok()?;
    Some((declared.find(types).ok()?, declared.stars))
}

/// Whether the variable at the link-time address `linked` is in the section of per-CPU variables.
fn is_per_cpu(view: &KernelView<'_>, linked: Gva) -> bool {
    section(view).is_some_and(|section| section.contains(&linked))
}

/// The distance from a per-CPU variable's own address to the processor's.
fn distance(view: &KernelView<'_>, cpu: u64) -> Result<u64, EvaluateError> {
    let offsets = PerCpuOffsets::find(view).ok_or_else(|| EvaluateError::NoSymbol {
        name: TABLE.to_owned(),
        near: Vec::new(),
    })?;
    if cpu >= offsets.count {
        let count = offsets.count;
        return Err(EvaluateError::NoProcessor { cpu, count });
    }
    let text = || format!("{TABLE}[{cpu}]");
    let fault = |NotReadable { at, .. }| EvaluateError::Fault { text: text(), at };
    offsets.of(view, cpu).map_err(fault)
}
