//! The types of variables, in C.

use std::collections::HashMap;

use gimli::{Attribute, AttributeValue, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::other_units::{OtherUnits, attributes_at};
use crate::paths;
use crate::reader::{Slice, damaged, offset_of, referred};
use crate::unit_reader::UnitReader;
use crate::units::UnitIndex;

/// An inlined copy refers to the abstract function, which may refer to a declaration.
const MAX_REFERENCES: usize = 8;
/// `const char *const *` takes five; a longer chain is a cycle.
const MAX_NESTING: usize = 16;
/// The most types that are kept, some 30 MB.
const MAX_KNOWN: usize = 1 << 16;
/// Longer names and types are cut.
const MAX_NAME_BYTES: usize = 256;

/// A type.
#[derive(Clone, Debug)]
pub(super) struct CType {
    /// The declaration.
    pub(super) declared: String,
    /// The size of a value that fits into a word; `None` for other types, and for floating-point numbers.
    pub(super) bytes: Option<u64>,
    pub(super) is_signed: bool,
    /// Whether it is a function.
    is_function: bool,
}

/// A variable's name and type.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) ty: CType,
    /// The entry of the variable in the source, of which this one is a copy.
    pub(super) origin: Option<usize>,
}

/// Finds the types of variables.
pub(super) struct Types<'d, 'a> {
    others: OtherUnits<'d, 'a>,
    /// By the offset of the entry in `.debug_info`.
    known: HashMap<usize, CType>,
}

/// What is used of an entry.
struct Entry {
    tag: gimli::DwTag,
    name: Option<String>,
    /// The offset of the entry of the type.
    ty: Option<usize>,
    /// The offset of the abstract entry of which this entry is a copy.
    origin: Option<usize>,
    bytes: Option<u64>,
    encoding: Option<gimli::DwAte>,
}

impl<'d, 'a> Types<'d, 'a> {
    pub(super) fn new(reader: &'d UnitReader<'a>, units: &'d [UnitIndex]) -> Self {
        Self {
            others: OtherUnits::new(reader, units),
            known: HashMap::new(),
        }
    }

    /// The attributes of the entry at `offset` of `.debug_info`, in `unit` or another; none if no unit has the entry.
    pub(super) fn attributes(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Vec<Attribute<Slice<'a>>>, LookupError> {
        let Some(unit) = self.others.unit_with(unit, offset, budget)? else {
            return Ok(Vec::new());
        };
        let attributes = attributes_at(unit, offset)?;
        budget.spend(attributes.len() + 1)?;
        Ok(attributes)
    }

    /// The variable in `unit` with `attributes`; `None` for a nameless one.
    pub(super) fn described(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        attributes: &[Attribute<Slice<'a>>],
        budget: &mut Budget,
    ) -> Result<Option<Described>, LookupError> {
        let mut entry = entry(unit, gimli::DW_TAG_variable, attributes, budget)?;
        let first_origin = entry.origin;
        for _ in 0..MAX_REFERENCES {
            let Some(origin) = entry
                .origin
                .filter(|_| entry.name.is_none() || entry.ty.is_none())
            else {
                break;
            };
            let Some(whole) = self.entry_at(unit, origin, budget)? else {
                break;
            };
            entry.name = entry.name.or(whole.name);
            entry.ty = entry.ty.or(whole.ty);
            entry.origin = whole.origin;
        }
        let Some(name) = entry.name else {
            return Ok(None);
        };
        Ok(Some(Described {
            name,
            ty: self.c_type(unit, entry.ty, MAX_NESTING, budget)?,
            origin: first_origin,
        }))
    }

    fn entry_at(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Option<Entry>, LookupError> {
        let Some(unit) = self.others.unit_with(unit, offset, budget)? else {
            return Ok(None);
        };
        let within = gimli::UnitOffset(offset.saturating_sub(offset_of(unit)));
        let found = unit.entry(within).map_err(damaged(offset_of(unit)))?;
        entry(unit, found.tag(), found.attrs(), budget).map(Some)
    }

    /// The type with the entry at `offset`; without an entry, `void`.
    fn c_type(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: Option<usize>,
        nesting: usize,
        budget: &mut Budget,
    ) -> Result<CType, LookupError> {
        let Some(offset) = offset else {
            return Ok(CType::named("void".to_owned(), None));
        };
        if let Some(known) = self.known.get(&offset) {
            budget.spend_string(known.declared.len())?;
            return Ok(known.clone());
        }
        let entry = match nesting {
            0 => None,
            _ => self.entry_at(unit, offset, budget)?,
        };
        let Some(entry) = entry else {
            return Ok(CType::named("…".to_owned(), None));
        };
        let mut inner = || self.c_type(unit, entry.ty, nesting - 1, budget);
        let name = entry.name.as_deref();
        let ty = match entry.tag {
            gimli::DW_TAG_base_type => CType::of_base(&entry),
            gimli::DW_TAG_pointer_type => inner()?.pointer(),
            gimli::DW_TAG_const_type => inner()?.qualified("const"),
            gimli::DW_TAG_volatile_type => inner()?.qualified("volatile"),
            gimli::DW_TAG_restrict_type | gimli::DW_TAG_atomic_type => inner()?,
            gimli::DW_TAG_typedef => CType {
                declared: name.unwrap_or("…").to_owned(),
                ..inner()?
            },
            gimli::DW_TAG_structure_type => CType::named(tagged("struct", name), entry.bytes),
            gimli::DW_TAG_union_type => CType::named(tagged("union", name), entry.bytes),
            gimli::DW_TAG_enumeration_type => {
                let is_signed = entry.ty.is_some() && inner()?.is_signed;
                CType {
                    is_signed,
                    ..CType::named(tagged("enum", name), entry.bytes)
                }
            }
            gimli::DW_TAG_array_type => CType::named(format!("{}[]", inner()?.declared), None),
            gimli::DW_TAG_subroutine_type => CType {
                is_function: true,
                ..CType::named(inner()?.declared, None)
            },
            _ => CType::named("…".to_owned(), None),
        };
        let ty = ty.shortened();
        budget.spend_string(ty.declared.len())?;
        if self.known.len() == MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(offset, ty.clone());
        Ok(ty)
    }
}

impl CType {
    const fn named(declared: String, bytes: Option<u64>) -> Self {
        Self {
            declared,
            bytes,
            is_signed: false,
            is_function: false,
        }
    }

    fn of_base(entry: &Entry) -> Self {
        let is_integer = matches!(
            entry.encoding,
            Some(
                gimli::DW_ATE_address
                    | gimli::DW_ATE_boolean
                    | gimli::DW_ATE_signed
                    | gimli::DW_ATE_signed_char
                    | gimli::DW_ATE_unsigned
                    | gimli::DW_ATE_unsigned_char
                    | gimli::DW_ATE_UTF
            )
        );
        let is_signed = matches!(
            entry.encoding,
            Some(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char)
        );
        let name = entry.name.clone().unwrap_or_else(|| "…".to_owned());
        Self {
            is_signed,
            ..Self::named(name, entry.bytes.filter(|_| is_integer))
        }
    }

    fn pointer(self) -> Self {
        let Self {
            declared,
            is_function,
            ..
        } = self;
        let declared = match (is_function, declared.ends_with('*')) {
            (true, _) => format!("{declared} (*)(…)"),
            (false, true) => format!("{declared}*"),
            (false, false) => format!("{declared} *"),
        };
        Self::named(declared, Some(8))
    }

    fn qualified(self, word: &str) -> Self {
        let declared = match self.declared.ends_with('*') {
            true => format!("{}{word}", self.declared),
            false => format!("{word} {}", self.declared),
        };
        Self { declared, ..self }
    }

    fn shortened(mut self) -> Self {
        if self.declared.len() > MAX_NAME_BYTES {
            let end = self.declared.floor_char_boundary(MAX_NAME_BYTES);
            self.declared.truncate(end);
            self.declared.push('…');
        }
        self
    }
}

fn tagged(word: &str, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{word} {name}"),
        None => format!("{word} {{…}}"),
    }
}

fn entry<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    tag: gimli::DwTag,
    attributes: &[Attribute<Slice<'a>>],
    budget: &mut Budget,
) -> Result<Entry, LookupError> {
    budget.spend(attributes.len() + 1)?;
    let mut entry = Entry {
        tag,
        name: None,
        ty: None,
        origin: None,
        bytes: None,
        encoding: None,
    };
    for attribute in attributes {
        let value = attribute.value();
        match attribute.name() {
            gimli::DW_AT_name => {
                let name = paths::string(unit, value)?;
                budget.spend_string(name.len())?;
                let bytes = name.slice();
                let bytes = &bytes[..bytes.len().min(MAX_NAME_BYTES)];
                entry.name = Some(String::from_utf8_lossy(bytes).into_owned());
            }
            gimli::DW_AT_type => entry.ty = referred(unit, &value),
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                entry.origin = referred(unit, &value);
            }
            gimli::DW_AT_byte_size => entry.bytes = attribute.udata_value(),
            gimli::DW_AT_encoding => {
                if let AttributeValue::Encoding(encoding) = value {
                    entry.encoding = Some(encoding);
                }
            }
            _ => (),
        }
    }
    Ok(entry)
}
