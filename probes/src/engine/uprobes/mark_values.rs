//! The values that a program has for a mark, at a hit.

use std::sync::Arc;

use address::Gva;
use events::{Number, Param, Typed};
use inspect::MAX_OPERANDS;
use introspect::operand::SizedOperand;
use introspect::{PagingState, PhysMemory, read_virt};
use text::general_register;
use vmm::kvm_regs;

/// An operand of a mark with its name and type in events, made once for all hits.
#[derive(Clone, Debug)]
pub(crate) struct MarkParam {
    /// `arg0`, as in the filters.
    name: Arc<str>,
    type_name: Arc<str>,
    /// `None` if the operand is not understood.
    operand: Option<SizedOperand>,
}

impl MarkParam {
    pub(crate) fn all_of(operands: &[Option<SizedOperand>]) -> Arc<[Self]> {
        let param = |(number, operand): (usize, &Option<SizedOperand>)| Self {
            name: format!("arg{number}").into(),
            type_name: operand.map_or("unknown", |known| known.type_name()).into(),
            operand: *operand,
        };
        operands.iter().enumerate().map(param).collect()
    }
}

/// The values of a mark at a hit.
pub(super) struct MarkValues<'p> {
    params: &'p [MarkParam],
    /// `None` behind the last operand, and for an operand that is not understood, or is not in memory.
    values: [Option<i64>; MAX_OPERANDS],
}

impl<'p> MarkValues<'p> {
    /// Reads the values of `params` for a program with `regs` and `paging`.
    pub(super) fn read(
        memory: &(impl PhysMemory + ?Sized),
        paging: &PagingState,
        regs: &kvm_regs,
        params: &'p [MarkParam],
    ) -> Self {
        let value = |number: usize| {
            let operand = params.get(number)?.operand?;
            Some(operand.value(raw(memory, paging, regs, &operand)?))
        };
        Self {
            params,
            values: std::array::from_fn(value),
        }
    }

    /// The first six, for filters and aggregates.
    pub(super) fn arguments(&self) -> [Option<u64>; 6] {
        std::array::from_fn(|number| Some(self.values[number]?.cast_unsigned()))
    }

    /// The values as parameters of the event.
    pub(super) fn params(&self) -> Vec<Param> {
        let params = self.params.iter().zip(self.values);
        let param = |(param, value): (&MarkParam, Option<i64>)| Param {
            name: Arc::clone(&param.name),
            typed: Typed {
                value: value.map(|value| match param.operand {
                    Some(operand) if !operand.is_signed => Number::unsigned(value.cast_unsigned()),
                    _ => Number::signed(value),
                }),
                ..Typed::without_value(Arc::clone(&param.type_name))
            },
        };
        params.map(param).collect()
    }
}

/// The 64 bits whose lowest bytes are the value.
fn raw(
    memory: &(impl PhysMemory + ?Sized),
    paging: &PagingState,
    regs: &kvm_regs,
    operand: &SizedOperand,
) -> Option<u64> {
    let read = |at: u64, len: usize| {
        // A program cannot read the kernel's half.
        if at >> 63 != 0 {
            return None;
        }
        let mut bytes = [0; 8];
        let len = len.min(bytes.len());
        read_virt(memory, paging, Gva(at), &mut bytes[..len]).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    operand.raw(|register| general_register(regs, register), read)
}
