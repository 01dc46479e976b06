//! The variables at a place: names, types in C, and where the code has the values there.
//!
//! The compiler describes the place of a value by an expression for a stack machine, for ranges of addresses. An optimised function has most values in
//! registers, on its stack, or nowhere. Values that need a read and then a computation, or are in several pieces, are shown without a value.

mod blocks;
mod expression;
mod frame;
mod types;

use address::Gva;
use gimli::{Attribute, AttributeValue, UnitRef};
use introspect::Signature;
use introspect::operand::{OperandPlace, SizedOperand};
use introspect::signature::Variable;

use self::blocks::VariableKind;
use self::expression::{Sum, Values};
use self::frame::Frames;
use self::types::{CType, Described, Types};
use crate::budget::Budget;
use crate::contents::Contents;
use crate::error::LookupError;
use crate::reader::Slice;
use crate::scopes::{ScopeEntry, SourcePlace};
use crate::unit_reader::UnitReader;
use crate::units;

/// The most variables of a scope that are looked at: those of inner blocks may hide others.
const MAX_CANDIDATES: usize = 1024;

/// The variables at each of `places`, at most [`Signature::MAX_VARIABLES`] of each.
pub(crate) fn find(
    contents: &Contents,
    places: &[SourcePlace],
) -> Result<Vec<Vec<Variable>>, LookupError> {
    let reader = contents.reader();
    let mut budget = contents.budget();
    let mut search = Search {
        types: Types::new(&reader, &contents.list.units),
        frames: Frames::index(&contents.parts.frames, &mut budget)?,
        contents,
        reader: &reader,
        budget,
    };
    let found = places.iter().map(|place| match place.scope {
        Some(scope) => search.variables(place.address, scope),
        None => Ok(Vec::new()),
    });
    found.collect()
}

struct Search<'d, 'a> {
    types: Types<'d, 'a>,
    frames: Frames<'a>,
    contents: &'d Contents,
    reader: &'d UnitReader<'a>,
    budget: Budget,
}

/// A variable whose block is around the place.
struct Candidate {
    kind: VariableKind,
    /// The entry that says in which order the source has the variables.
    origin: Option<usize>,
    variable: Variable,
}

impl<'a> Search<'_, 'a> {
    fn variables(&mut self, address: Gva, scope: ScopeEntry) -> Result<Vec<Variable>, LookupError> {
        let list = &self.contents.list.units;
        let Some(index) = units::with_entry(list, scope.own) else {
            return Ok(Vec::new());
        };
        let unit = self.reader.open(list[index].offset, &mut self.budget)?;
        let unit = self.reader.unit_ref(&unit);
        let unwound = self.frames.at(address.0, &mut self.budget)?;
        let values = Values {
            address: address.0,
            frame: self.frame(unit, scope.function, unwound)?,
            unwound,
        };
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut looked_at = 0;
        let types = &mut self.types;
        blocks::visit(
            unit,
            scope.own,
            address,
            &mut self.budget,
            |kind, attributes, budget| {
                if looked_at == MAX_CANDIDATES || is_elsewhere(attributes) {
                    return Ok(());
                }
                looked_at += 1;
                let Some(Described { name, ty, origin }) =
                    types.described(unit, attributes, budget)?
                else {
                    return Ok(());
                };
                let operand = values.of(unit, attributes, budget)?;
                let variable = Variable {
                    name,
                    operand: operand.and_then(|place| sized(place, &ty)),
                    declared: ty.declared,
                };
                budget.spend(candidates.len() / 8)?;
                // The variable of an inner block hides that of an outer one.
                candidates.retain(|outer| outer.variable.name != variable.name);
                candidates.push(Candidate {
                    kind,
                    origin,
                    variable,
                });
                Ok(())
            },
        )?;
        // Compilers write those of an inlined copy in an order of their own.
        candidates.sort_by_key(|it| (it.kind, it.origin));
        // A local variable without a value is often one of a block that has not begun, or has ended.
        let is_shown =
            |it: &Candidate| it.kind == VariableKind::Parameter || it.variable.operand.is_some();
        let shown = candidates.into_iter().filter(is_shown);
        let shown = shown.take(Signature::MAX_VARIABLES);
        Ok(shown.map(|candidate| candidate.variable).collect())
    }

    /// The address of the frame of the function with the entry at `offset`, which is `unwound` by the rules for unwinding.
    fn frame(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        offset: usize,
        unwound: Option<Sum>,
    ) -> Result<Option<Sum>, LookupError> {
        let attributes = self.types.attributes(unit, offset, &mut self.budget)?;
        let base = attributes
            .iter()
            .find(|attribute| attribute.name() == gimli::DW_AT_frame_base);
        match base.and_then(|base| base.exprloc_value()) {
            Some(base) => expression::frame_address(unit, base, unwound),
            None => Ok(None),
        }
    }
}

/// Whether the entry is a declaration of something with a place of its own.
fn is_elsewhere(attributes: &[Attribute<Slice<'_>>]) -> bool {
    attributes.iter().any(|attribute| {
        let is_named = matches!(
            attribute.name(),
            gimli::DW_AT_declaration | gimli::DW_AT_external
        );
        is_named && attribute.value() == AttributeValue::Flag(true)
    })
}

/// The value of the type `ty` at `place`; `None` for a type that does not fit into a word.
fn sized(place: OperandPlace, ty: &CType) -> Option<SizedOperand> {
    let bytes = u8::try_from(ty.bytes?).ok()?;
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return None;
    }
    let operand = SizedOperand {
        bytes,
        is_signed: ty.is_signed,
        place,
    };
    let place = match place {
        OperandPlace::Register { register, .. } => OperandPlace::Register {
            register,
            shift: 0,
            bytes,
        },
        OperandPlace::Constant(number) => {
            OperandPlace::Constant(operand.value(number.cast_unsigned()))
        }
        OperandPlace::Memory(_) | OperandPlace::Address(_) => place,
    };
    Some(SizedOperand { place, ..operand })
}
