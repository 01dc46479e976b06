//! Where values are: the places in which the System V ABI puts arguments of integer class, and those of variables.

use crate::operand::SizedOperand;

/// The number of registers for arguments: rdi, rsi, rdx, rcx, r8, r9.
const REGISTERS: u8 = 6;
const WORD: u64 = 8;

/// The location of an argument at the entry of its function, or of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePlace {
    /// One of the six registers for arguments, from 0.
    Register(u8),
    /// On the stack, this many bytes above the stack pointer, which points to the return address.
    Stack(u64),
    /// Of a variable at an instruction: in a register, in memory, or known.
    Operand(SizedOperand),
    /// A value of no size, in more than one word, or, of a variable, nowhere at the instruction.
    Elsewhere,
}

/// Hands out places to arguments in their order.
#[derive(Debug, Default)]
pub(super) struct Places {
    registers: u8,
    /// The bytes on the stack so far, without the return address.
    stack: u64,
}

impl Places {
    /// For a function that returns a struct or union of `bytes` bytes, if any. The caller passes the address for a result of more than two
    /// words, as if it were the first argument.
    pub(super) fn behind_result(bytes: Option<u64>) -> Self {
        let is_by_address = bytes.is_some_and(|bytes| bytes > 2 * WORD);
        Self {
            registers: u8::from(is_by_address),
            stack: 0,
        }
    }

    /// The place of the next argument, of `bytes` bytes.
    pub(super) fn next(&mut self, bytes: Option<u64>) -> ValuePlace {
        let words = bytes.unwrap_or(WORD).div_ceil(WORD);
        let left = u64::from(REGISTERS - self.registers);
        match words {
            0 => ValuePlace::Elsewhere,
            1 if left > 0 => {
                self.registers += 1;
                ValuePlace::Register(self.registers - 1)
            }
            // A struct of two words is in two registers, or whole on the stack.
            2 if left > 1 => {
                self.registers += 2;
                ValuePlace::Elsewhere
            }
            _ => {
                let at = self.stack.saturating_add(WORD);
                self.stack = self.stack.saturating_add(words.saturating_mul(WORD));
                if words == 1 {
                    ValuePlace::Stack(at)
                } else {
                    ValuePlace::Elsewhere
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seventh_word_is_on_the_stack_above_the_return_address() {
        let mut places = Places::default();
        for register in 0..6 {
            assert_eq!(places.next(Some(4)), ValuePlace::Register(register));
        }
        assert_eq!(places.next(Some(8)), ValuePlace::Stack(8));
        assert_eq!(places.next(None), ValuePlace::Stack(16));
    }

    #[test]
    fn structs_take_two_registers_or_the_stack_and_leave_the_rest() {
        let mut places = Places::default();
        assert_eq!(places.next(Some(16)), ValuePlace::Elsewhere);
        assert_eq!(places.next(Some(24)), ValuePlace::Elsewhere);
        assert_eq!(places.next(Some(8)), ValuePlace::Register(2));
        for register in 3..5 {
            assert_eq!(places.next(Some(1)), ValuePlace::Register(register));
        }
        // One register is left: the struct is on the stack, and the next argument in the register.
        assert_eq!(places.next(Some(16)), ValuePlace::Elsewhere);
        assert_eq!(places.next(Some(8)), ValuePlace::Register(5));
        assert_eq!(places.next(Some(8)), ValuePlace::Stack(8 + 24 + 16));
        assert_eq!(places.next(Some(u64::MAX)), ValuePlace::Elsewhere);
        assert_eq!(places.next(Some(0)), ValuePlace::Elsewhere);
    }
}
