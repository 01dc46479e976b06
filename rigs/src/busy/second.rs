//! The second instruction of a function: mostly a short instruction without room for a jump.

use address::Gva;
use introspect::Symbol;
use introspect::insn::{decode, is_position_independent};
use probes::Kernel;

/// `call rel32`: the call of ftrace at a function's entry.
const CALL: u8 = 0xe8;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The offset of the function's second instruction, not counting the call of ftrace: each call of the function executes the instruction
/// once.
pub(crate) fn second(kernel: &Kernel, function: &Symbol) -> Option<u64> {
    second_of(kernel.function_bytes(function), function.address)
}

fn second_of(code: &[u8], function: Gva) -> Option<u64> {
    let mut at = function;
    let mut is_first = true;
    loop {
        let offset = at.0 - function.0;
        let rest = code.get(usize::try_from(offset).ok()?..)?;
        let decoded = decode(rest, at).ok()?;
        let is_prologue = decoded.bytes() == ENDBR64 || decoded.bytes()[0] == CALL;
        match (is_prologue, is_first) {
            (true, _) => (),
            (false, true) if is_position_independent(&decoded) => is_first = false,
            (false, true) => return None,
            (false, false) => return Some(offset),
        }
        if is_prologue && !is_first {
            return None;
        }
        at = decoded.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_instruction_is_behind_one_that_goes_on() {
        let call = [CALL, 1, 2, 3, 4];
        let at = Gva(0xffff_ffff_8100_0000);
        let second = |code: &[&[u8]]| second_of(&code.concat(), at);
        let (push, jump, mov) = ([0x55], [0xeb, 0], [0x48, 0x89, 0xe5]);
        assert_eq!(second(&[&call, &push, &mov]), Some(6));
        assert_eq!(second(&[&ENDBR64, &call, &mov, &push]), Some(12));
        assert_eq!(second(&[&push, &mov]), Some(1));
        // A branch first; a call behind; nothing behind.
        assert_eq!(second(&[&call, &jump, &push]), None);
        assert_eq!(second(&[&push, &call, &push]), None);
        assert_eq!(second(&[&call, &push]), None);
    }
}
