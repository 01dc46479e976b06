//! Where a value is at an address, by the expressions of the compiler.

use gimli::{Attribute, AttributeValue, Expression, Operation, Reader as _, UnitRef};
use introspect::insn::Gpr;
use introspect::operand::{OperandAddress, OperandPlace};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::{Slice, damaged, offset_of};

/// The registers in the order of the System V ABI's numbers for debug information.
const REGISTERS: [Gpr; 16] = [
    Gpr::Rax,
    Gpr::Rdx,
    Gpr::Rcx,
    Gpr::Rbx,
    Gpr::Rsi,
    Gpr::Rdi,
    Gpr::Rbp,
    Gpr::Rsp,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
    Gpr::R12,
    Gpr::R13,
    Gpr::R14,
    Gpr::R15,
];
/// The most values on the stack of an expression.
const MAX_DEPTH: usize = 8;

/// The general-purpose register with the number; `None` for others.
pub(super) fn register(number: gimli::Register) -> Option<Gpr> {
    REGISTERS.get(usize::from(number.0)).copied()
}

/// The values in a function at one address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub(super) address: u64,
    /// The address of the function's frame, if it is known.
    pub(super) frame: Option<Sum>,
    /// The same by the rules for unwinding.
    pub(super) unwound: Option<Sum>,
}

impl Values {
    /// The place of the value of the variable with `attributes`; `None` if the code has no value at the address, or one that no operand describes.
    pub(super) fn of<'a>(
        &self,
        unit: UnitRef<'_, Slice<'a>>,
        attributes: &[Attribute<Slice<'a>>],
        budget: &mut Budget,
    ) -> Result<Option<OperandPlace>, LookupError> {
        for attribute in attributes {
            match (attribute.name(), attribute.value()) {
                (gimli::DW_AT_location, AttributeValue::Exprloc(expression)) => {
                    return self.place(unit, expression, budget);
                }
                (gimli::DW_AT_location, value) => {
                    let found = self.listed(unit, value, budget)?;
                    return found.map_or(Ok(None), |found| self.place(unit, found, budget));
                }
                (gimli::DW_AT_const_value, value) => {
                    // Compilers write only negative numbers with a sign.
                    let number = match value {
                        AttributeValue::Sdata(number) => Some(number),
                        _ => attribute.udata_value().map(u64::cast_signed),
                    };
                    return Ok(number.map(OperandPlace::Constant));
                }
                _ => (),
            }
        }
        Ok(None)
    }

    /// The expression at the address in the list of an attribute's `value`.
    fn listed<'a>(
        &self,
        unit: UnitRef<'_, Slice<'a>>,
        value: AttributeValue<Slice<'a>>,
        budget: &mut Budget,
    ) -> Result<Option<Expression<Slice<'a>>>, LookupError> {
        let failed = damaged(offset_of(unit));
        let Some(offset) = unit.attr_locations_offset(value).map_err(&failed)? else {
            return Ok(None);
        };
        // Not each entry of a list makes a location, and many variables may share a list.
        let mut entries = unit.raw_locations(offset).map_err(&failed)?;
        while entries.next().map_err(&failed)?.is_some() {
            budget.spend(1)?;
        }
        let mut list = unit.locations(offset).map_err(&failed)?;
        let mut default = None;
        while let Some(entry) = list.next().map_err(&failed)? {
            match (entry.range.begin, entry.range.end) {
                // The location where no other is.
                (0, u64::MAX) => default = Some(entry.data),
                (begin, end) if (begin..end).contains(&self.address) => {
                    return Ok(Some(entry.data));
                }
                _ => (),
            }
        }
        Ok(default)
    }

    fn place(
        &self,
        unit: UnitRef<'_, Slice<'_>>,
        expression: Expression<Slice<'_>>,
        budget: &mut Budget,
    ) -> Result<Option<OperandPlace>, LookupError> {
        budget.spend(expression.0.len())?;
        let mut operations = expression.operations(unit.encoding());
        let mut stack = Stack::default();
        let mut is_value = false;
        while let Some(operation) = operations.next().map_err(damaged(offset_of(unit)))? {
            if is_value {
                // A value in several pieces.
                return Ok(None);
            }
            let known = match operation {
                Operation::Register { register: number } => {
                    let is_alone = operations
                        .next()
                        .map_err(damaged(offset_of(unit)))?
                        .is_none();
                    let place = register(number).map(|register| OperandPlace::Register {
                        register,
                        shift: 0,
                        bytes: 8,
                    });
                    return Ok(place.filter(|_| is_alone && stack.is_empty()));
                }
                Operation::ImplicitValue { data } => {
                    is_value = true;
                    constant(data).and_then(|number| stack.push(Sum::number(number)))
                }
                Operation::StackValue => {
                    is_value = true;
                    Some(())
                }
                Operation::FrameOffset { offset } => {
                    self.frame.and_then(|frame| stack.push(frame.plus(offset)))
                }
                Operation::CallFrameCFA => self.unwound.and_then(|frame| stack.push(frame)),
                other => stack.apply(other),
            };
            if known.is_none() {
                return Ok(None);
            }
        }
        Ok(stack.pop().and_then(|top| top.place(is_value)))
    }
}

/// The address of a function's frame, by the expression in the function's entry. `unwound` is the address by the rules for unwinding.
pub(super) fn frame_address(
    unit: UnitRef<'_, Slice<'_>>,
    expression: Expression<Slice<'_>>,
    unwound: Option<Sum>,
) -> Result<Option<Sum>, LookupError> {
    let failed = damaged(offset_of(unit));
    let mut operations = expression.operations(unit.encoding());
    let first = operations.next().map_err(&failed)?;
    if operations.next().map_err(&failed)?.is_some() {
        return Ok(None);
    }
    Ok(match first {
        Some(Operation::CallFrameCFA) => unwound,
        Some(Operation::Register { register: number }) => {
            register(number).map(|base| Sum::of_register(base, 0))
        }
        Some(Operation::RegisterOffset {
            register: number,
            offset,
            ..
        }) => register(number).map(|base| Sum::of_register(base, offset)),
        _ => None,
    })
}

/// A register and a number, added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    base: Option<Gpr>,
    number: i64,
}

impl Sum {
    pub(super) const fn of_register(base: Gpr, number: i64) -> Self {
        Self {
            base: Some(base),
            number,
        }
    }

    const fn number(number: i64) -> Self {
        Self { base: None, number }
    }

    const fn plus(self, number: i64) -> Self {
        Self {
            number: self.number.wrapping_add(number),
            ..self
        }
    }

    fn place(self, is_value: bool) -> Option<OperandPlace> {
        let address = OperandAddress {
            base: self.base,
            index: None,
            displacement: self.number,
        };
        match (is_value, self.base) {
            (true, None) => Some(OperandPlace::Constant(self.number)),
            (true, Some(_)) => Some(OperandPlace::Address(address)),
            (false, Some(_)) => Some(OperandPlace::Memory(address)),
            // The link-time address of a variable of the kernel.
            (false, None) => None,
        }
    }
}

/// The stack of an expression.
#[derive(Debug, Default)]
struct Stack(Vec<Sum>);

impl Stack {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, sum: Sum) -> Option<()> {
        (self.0.len() < MAX_DEPTH).then(|| self.0.push(sum))
    }

    fn pop(&mut self) -> Option<Sum> {
        self.0.pop()
    }

    /// Executes `operation`; `None` for an operation whose result is no sum.
    fn apply(&mut self, operation: Operation<Slice<'_>>) -> Option<()> {
        match operation {
            Operation::Nop => Some(()),
            Operation::UnsignedConstant { value } => self.push(Sum::number(value.cast_signed())),
            Operation::SignedConstant { value } => self.push(Sum::number(value)),
            Operation::RegisterOffset {
                register: number,
                offset,
                base_type,
            } if base_type.0 == 0 => self.push(Sum::of_register(register(number)?, offset)),
            Operation::PlusConstant { value } => {
                let top = self.pop()?;
                self.push(top.plus(value.cast_signed()))
            }
            Operation::Plus => {
                let (right, left) = (self.pop()?, self.pop()?);
                let sum = match (left.base, right.base) {
                    (_, None) => left.plus(right.number),
                    (None, Some(_)) => right.plus(left.number),
                    (Some(_), Some(_)) => return None,
                };
                self.push(sum)
            }
            Operation::Minus => {
                let (right, left) = (self.pop()?, self.pop()?);
                let sum = left.plus(right.number.wrapping_neg());
                right.base.is_none().then(|| self.push(sum))?
            }
            _ => None,
        }
    }
}

/// The number in `data`, which has up to 8 bytes.
fn constant(data: Slice<'_>) -> Option<i64> {
    let bytes = data.slice();
    let mut word = [0; 8];
    word.get_mut(..data.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(word))
}
