//! The list of per-CPU variables.

use std::collections::BTreeMap;

use address::Gva;
use introspect::btf::TypeId;
use introspect::{Btf, Symbol, nearest_names};
use thiserror::Error;

use super::offsets::{INNER_LABELS, LABELS, PerCpuOffsets, TABLE, section};
use crate::expression::{Object, declared_type};
use crate::value::{Limits, Value};
use crate::view::{KernelView, NotReadable};

/// The section's name in the kernel's types.
const SECTION: &str = ".data..percpu";
/// The most copies in a list: 100 variables of a kernel with 640 processors, and all variables of a kernel with 100.
const MAX_COPIES: usize = 1 << 16;
/// Stock kernels have some 400 variables. With a broken file, those beyond have no type.
const MAX_VARIABLES: usize = 1 << 16;
/// The number of near names in an error.
const NEAR: usize = 5;

/// Why per-CPU variables cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PerCpuError {
    /// The symbol table has functions only.
    #[error(
        "the kernel's symbol table has no `{label}`, so that per-CPU variables cannot be found: the kernel is built without CONFIG_KALLSYMS_ALL or CONFIG_SMP"
    )]
    NoLabel {
        /// The symbol.
        label: &'static str,
    },
    /// No variable matches the pattern.
    #[error("the kernel has no per-CPU variable `{pattern}`")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// All processors have the initial distance: the kernel counts as many processors as it could have, and has copies for none.
    #[error("the kernel has not made the copies of per-CPU variables yet")]
    NoCopies,
    /// The kernel has not booted far enough, or the table is damaged.
    #[error("the distance to the variables of processor {cpu} cannot be read")]
    Distance {
        /// The processor.
        cpu: u64,
        /// The cause.
        source: NotReadable,
    },
}

impl PerCpuError {
    /// Advice on how to correct the mistake.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::NoMatch { near, .. } if !near.is_empty() => {
                Some(format!("near names: {}", near.join(", ")))
            }
            _ => None,
        }
    }
}

/// A per-CPU variable of the kernel proper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerCpuVariable {
    /// The name.
    pub name: String,
    /// The type in C; `None` if the type is not known.
    pub declared: Option<String>,
    /// The size of the type in bytes; without a type, the bytes up to the next symbol.
    pub size: u64,
    /// A copy for each processor, in the order of the processors.
    pub copies: Vec<PerCpuCopy>,
}

/// The variable of a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerCpuCopy {
    /// The processor.
    pub cpu: u64,
    /// The address.
    pub address: Gva,
    /// The value of a number, an enum or a pointer.
    pub value: Option<Value>,
}

/// The per-CPU variables with names that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerCpuList {
    /// In the order of the addresses in the section.
    pub variables: Vec<PerCpuVariable>,
    /// Whether more variables match than the list may have.
    pub more: bool,
    /// A sentence about missing types.
    pub remark: Option<&'static str>,
}

impl PerCpuList {
    /// Lists the per-CPU variables with names that match `pattern`: `*`, `?`, `[a-z]`. A running guest may write between two reads.
    ///
    /// # Errors
    ///
    /// If no variable matches, or the kernel's copies cannot be found.
    pub fn read(view: &KernelView<'_>, pattern: &str) -> Result<Self, PerCpuError> {
        Self::read_at_most(view, pattern, MAX_COPIES)
    }

    fn read_at_most(
        view: &KernelView<'_>,
        pattern: &str,
        most_copies: usize,
    ) -> Result<Self, PerCpuError> {
        let section = section(view).ok_or(PerCpuError::NoLabel { label: LABELS[0] })?;
        let offsets = PerCpuOffsets::find(view);
        let offsets = offsets.ok_or(PerCpuError::NoLabel { label: TABLE })?;
        let is_variable = |symbol: &Symbol| {
            let mut labels = LABELS.iter().chain(&INNER_LABELS);
            let is_label = labels.any(|label| *label == symbol.name);
            section.contains(&symbol.address)
                && symbol.module.is_none()
                && !symbol.is_text()
                && !is_label
        };
        let mut matching = view.symbols().matching(pattern).filter(is_variable);
        let Some(first) = matching.next() else {
            let all = view.symbols().iter().filter(is_variable);
            let all: Vec<Symbol> = all.take(MAX_VARIABLES).collect();
            let names = all.iter().map(|symbol| symbol.name.as_str());
            return Err(PerCpuError::NoMatch {
                pattern: pattern.to_owned(),
                near: nearest_names(pattern, names, NEAR),
            });
        };
        let distance = |cpu| {
            let read = offsets.of(view, cpu);
            read.map_err(|source| PerCpuError::Distance { cpu, source })
        };
        let distances: Vec<u64> = (0..offsets.count).map(distance).collect::<Result<_, _>>()?;
        if distances.len() > 1 && distances.iter().all(|distance| *distance == distances[0]) {
            return Err(PerCpuError::NoCopies);
        }
        let types = Types::new(view.types(), section.start);
        let mut list = Self {
            variables: Vec::new(),
            more: false,
            remark: types.remark(),
        };
        let mut copies = most_copies;
        for symbol in std::iter::once(first).chain(matching) {
            // A variable of a kernel that claims to have no processor counts, too.
            let Some(left) = copies.checked_sub(distances.len().max(1)) else {
                list.more = true;
                break;
            };
            copies = left;
            list.variables
                .push(types.variable(view, &symbol, &distances));
        }
        Ok(list)
    }
}

/// The types of the variables.
struct Types<'t> {
    types: Option<&'t Btf>,
    start: Gva,
    /// The types of the variables in BTF, by the offsets in the section and the names.
    of_section: BTreeMap<(u64, &'t str), TypeId>,
}

impl<'t> Types<'t> {
    /// The types of a section that begins at the link-time address `start`.
    fn new(types: Option<&'t Btf>, start: Gva) -> Self {
        let variables = types
            .iter()
            .flat_map(|types| types.section_variables(SECTION));
        let variables = variables.take(MAX_VARIABLES);
        let of_section = variables.map(|found| ((found.offset, found.name), found.ty));
        Self {
            types,
            start,
            of_section: of_section.collect(),
        }
    }

    fn remark(&self) -> Option<&'static str> {
        match self.types {
            None => Some(
                "the kernel has no type information (BTF): the variables have no types and no values",
            ),
            Some(_) if self.of_section.is_empty() => Some(
                "the kernel's type information (BTF) has no per-CPU variables: only well-known ones have types and values",
            ),
            Some(_) => None,
        }
    }

    /// The type of the variable at `symbol`, as [`declared_type`]. Static variables of several files may share a name: the
    /// offset is that of one.
    fn of(&self, symbol: &Symbol) -> Option<(TypeId, usize)> {
        let offset = symbol.address.offset_from(self.start)?;
        match self.of_section.get(&(offset, &symbol.name)) {
            Some(ty) => Some((*ty, 0)),
            None if self.of_section.is_empty() => declared_type(self.types?, &symbol.name),
            None => None,
        }
    }

    fn variable(
        &self,
        view: &KernelView<'_>,
        symbol: &Symbol,
        distances: &[u64],
    ) -> PerCpuVariable {
        let at = view.running(symbol.address);
        let ty = self.types.zip(self.of(symbol));
        let object = |at| ty.map(|(types, ty)| Object::variable(*view, types, at, ty));
        let copies = (0..).zip(distances).map(|(cpu, distance)| {
            let address = at.wrapping_add(*distance);
            let scalar = object(address).filter(Object::is_scalar);
            PerCpuCopy {
                cpu,
                address,
                value: scalar.map(|object| object.value(Limits::default())),
            }
        });
        PerCpuVariable {
            name: symbol.name.clone(),
            declared: object(at).map(|object| object.declared()),
            size: object(at)
                .and_then(|object| object.size())
                .unwrap_or(symbol.size),
            copies: copies.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::Blob;

    use super::*;
    use crate::fake::Fake;
    use crate::fixture::{BASE, Fixture, SLIDE};

    /// A section with one variable, and distances for two processors.
    const SYMBOLS: [(&str, u64); 5] = [
        ("__per_cpu_start", 0),
        ("variable", 8),
        ("__per_cpu_end", 16),
        ("__per_cpu_offset", 64),
        ("_end", 80),
    ];
    /// The copy of processor 0 begins here.
    const AREA: u64 = BASE.0 + SLIDE + 0xb00;

    fn listed(pattern: &str) -> Vec<PerCpuVariable> {
        let fixture = Fixture::new();
        let list = PerCpuList::read(&fixture.view(), pattern);
        list.expect("a list").variables
    }

    #[test]
    fn variable_has_a_typed_copy_for_each_processor() {
        let [queue, number] = &listed("*u*")[..2] else {
            panic!("two variables")
        };
        assert_eq!(
            (queue.declared.as_deref(), queue.size),
            (Some("struct rq"), 8)
        );
        let copy = |cpu, offset, value| PerCpuCopy {
            cpu,
            address: Gva(AREA + offset + cpu * 0x10),
            value,
        };
        // A struct has an address and no value.
        assert_eq!(queue.copies, [copy(0, 0x100, None), copy(1, 0x100, None)]);
        assert_eq!(number.name, "cpu_number");
        let signed = |cpu: i64| Some(Value::Signed(cpu));
        assert_eq!(
            number.copies,
            [copy(0, 0x108, signed(0)), copy(1, 0x108, signed(1))]
        );
    }

    #[test]
    fn namesakes_have_the_types_of_their_offsets() {
        let states = listed("state");
        let found = states.iter();
        let found = found.map(|state| (state.declared.as_deref(), state.size));
        let found: Vec<_> = found.collect();
        assert_eq!(
            found,
            [(Some("enum flags"), 4), (Some("struct mm *"), 8)],
            "{states:?}"
        );
    }

    #[test]
    fn variable_without_a_type_has_the_bytes_up_to_the_next_symbol_and_no_value() {
        let untyped = listed("untyped").remove(0);
        assert_eq!((untyped.declared, untyped.size), (None, 0x1000 - 0x210));
        assert!(untyped.copies.iter().all(|copy| copy.value.is_none()));
    }

    #[test]
    fn kernel_without_types_has_a_list_and_a_remark() {
        let fixture = Fixture::new();
        let view = fixture.view_without_types();
        let list = PerCpuList::read(&view, "cpu_number").expect("a list");
        assert_eq!(list.variables[0].declared, None);
        let remark = list.remark.expect("a remark");
        assert!(remark.contains("no type information"), "{remark}");
    }

    #[test]
    fn list_is_bounded_by_its_copies() {
        let fixture = Fixture::new();
        let view = fixture.view();
        let list = |most| PerCpuList::read_at_most(&view, "*", most).expect("a list");
        assert_eq!((list(9).variables.len(), list(9).more), (4, true));
        assert_eq!((list(10).variables.len(), list(10).more), (5, false));
    }

    #[test]
    fn unknown_name_has_near_names_and_a_missing_label_its_reason() {
        let fixture = Fixture::new();
        let error = PerCpuList::read(&fixture.view(), "cpu_numbre").expect_err("no variable");
        assert_eq!(error.help().as_deref(), Some("near names: cpu_number"));
        let error = Fake::new(Blob::new(), 8, &[]);
        let error = PerCpuList::read(&error.view(), "*").expect_err("no labels");
        assert!(error.to_string().contains("__per_cpu_start"), "{error}");
    }

    #[test]
    fn kernel_without_copies_has_no_list() {
        let mut kernel = Fake::new(Blob::new(), 80, &SYMBOLS);
        let listed = |kernel: &Fake| PerCpuList::read(&kernel.view(), "*");
        assert_eq!(listed(&kernel), Err(PerCpuError::NoCopies));
        kernel.put64(72, 0x1000);
        let copies = &listed(&kernel).expect("a list").variables[0].copies;
        assert_eq!(copies[1].address, copies[0].address.wrapping_add(0x1000));
    }

    #[test]
    fn table_of_distances_without_memory_is_an_error_with_the_processor() {
        let kernel = Fake::new(Blob::new(), 16, &SYMBOLS);
        let error = PerCpuList::read(&kernel.view(), "*").expect_err("no memory");
        assert!(
            matches!(error, PerCpuError::Distance { cpu: 0, .. }),
            "{error}"
        );
    }
}
