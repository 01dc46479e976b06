//! The values that a program has for a mark, at a hit.

use std::sync::Arc;

use address::Gva;
use events::{Number, Param, Typed};
use inspect::{MarkOperand, OperandPlace};
use introspect::{PagingState, PhysMemory, read_virt};
use text::general_register;
use vmm::kvm_regs;

/// The values of a mark's operands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkValues {
    /// `None` for an operand that is not understood, or is not in memory.
    values: Vec<(&'static str, Option<Number>)>,
    /// The first six, for filters and aggregates; 0 for a value that is not known.
    pub(super) arguments: [u64; 6],
}

impl MarkValues {
    /// Reads the values of `operands` for a program with `regs` and `paging`.
    pub(super) fn read(
        memory: &(impl PhysMemory + ?Sized),
        paging: &PagingState,
        regs: &kvm_regs,
        operands: &[Option<MarkOperand>],
    ) -> Self {
        let mut read = Self::default();
        for (number, operand) in operands.iter().enumerate() {
            let Some(operand) = operand else {
                read.values.push(("unknown", None));
                continue;
            };
            let value = raw(memory, paging, regs, operand).map(|raw| operand.value(raw));
            if let (Some(value), Some(argument)) = (value, read.arguments.get_mut(number)) {
                *argument = value.cast_unsigned();
            }
            let shown = value.map(|value| match operand.is_signed {
                true => Number::signed(value),
                false => Number::unsigned(value.cast_unsigned()),
            });
            read.values.push((operand.type_name(), shown));
        }
        read
    }

    /// The values as parameters `arg0`, `arg1` and so on, as in the filters.
    pub(super) fn params(&self) -> Vec<Param> {
        let values = self.values.iter().enumerate();
        let param = |(number, (ty, value)): (usize, &(&'static str, Option<Number>))| Param {
            name: format!("arg{number}").into(),
            typed: Typed {
                value: *value,
                ..Typed::without_value(Arc::from(*ty))
            },
        };
        values.map(param).collect()
    }
}

/// The 64 bits whose lowest bytes are the value.
fn raw(
    memory: &(impl PhysMemory + ?Sized),
    paging: &PagingState,
    regs: &kvm_regs,
    operand: &MarkOperand,
) -> Option<u64> {
    match operand.place {
        OperandPlace::Register { register, shift } => {
            Some(general_register(regs, register) >> shift)
        }
        OperandPlace::Constant(value) => Some(value.cast_unsigned()),
        OperandPlace::Memory { .. } => {
            let at = operand.address(|register| general_register(regs, register))?;
            let mut bytes = [0; 8];
            let len = usize::from(operand.bytes).min(bytes.len());
            read_virt(memory, paging, Gva(at), &mut bytes[..len]).ok()?;
            Some(u64::from_le_bytes(bytes))
        }
    }
}
