//! The values that a program has for a mark, at a hit.

use std::sync::Arc;

use address::Gva;
use events::{Number, Param, Typed};
use inspect::{MarkOperand, OperandPlace};
use introspect::{PagingState, PhysMemory, read_virt};
use text::general_register;
use vmm::kvm_regs;

/// The values of a mark's operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MarkValues(Vec<MarkValue>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct MarkValue {
    type_name: &'static str,
    is_signed: bool,
    /// `None` for an operand that is not understood, or is not in memory.
    value: Option<i64>,
}

impl MarkValues {
    /// Reads the values of `operands` for a program with `regs` and `paging`.
    pub(super) fn read(
        memory: &(impl PhysMemory + ?Sized),
        paging: &PagingState,
        regs: &kvm_regs,
        operands: &[Option<MarkOperand>],
    ) -> Self {
        let read = |operand: &Option<MarkOperand>| match operand {
            None => MarkValue {
                type_name: "unknown",
                is_signed: false,
                value: None,
            },
            Some(operand) => MarkValue {
                type_name: operand.type_name(),
                is_signed: operand.is_signed,
                value: raw(memory, paging, regs, operand).map(|raw| operand.value(raw)),
            },
        };
        Self(operands.iter().map(read).collect())
    }

    /// The first six, for filters and aggregates.
    pub(super) fn arguments(&self) -> [Option<u64>; 6] {
        std::array::from_fn(|number| Some(self.0.get(number)?.value?.cast_unsigned()))
    }

    /// The values as parameters `arg0`, `arg1` and so on, as in the filters.
    pub(super) fn params(&self) -> Vec<Param> {
        let param = |(number, mark): (usize, &MarkValue)| Param {
            name: format!("arg{number}").into(),
            typed: Typed {
                value: mark.value.map(|value| match mark.is_signed {
                    true => Number::signed(value),
                    false => Number::unsigned(value.cast_unsigned()),
                }),
                ..Typed::without_value(Arc::from(mark.type_name))
            },
        };
        self.0.iter().enumerate().map(param).collect()
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
        OperandPlace::Register {
            register, shift, ..
        } => Some(general_register(regs, register) >> shift),
        OperandPlace::Constant(value) => Some(value.cast_unsigned()),
        OperandPlace::Memory { .. } => {
            let at = operand.address(|register| general_register(regs, register))?;
            // A program cannot read the kernel's half.
            if at >> 63 != 0 {
                return None;
            }
            let mut bytes = [0; 8];
            let len = usize::from(operand.bytes).min(bytes.len());
            read_virt(memory, paging, Gva(at), &mut bytes[..len]).ok()?;
            Some(u64::from_le_bytes(bytes))
        }
    }
}
