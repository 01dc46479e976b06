//! The trampolines that ftrace makes at run time: copies of the kernel's `ftrace_caller`, with the same stack.

use address::Gva;

use crate::btf::{Btf, StructId};

/// A kernel has a few users of ftrace at a time.
const MAX_OPS: usize = 256;
/// `FTRACE_OPS_FL_SAVE_REGS`: the trampoline is a copy of `ftrace_regs_caller`.
const SAVES_REGISTERS: u64 = 1 << 2;

/// The offsets in `struct ftrace_ops`, of which the kernel has a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrampolineLayout {
    next: u64,
    flags: u64,
    start: u64,
    size: u64,
}

impl TrampolineLayout {
    /// The offsets from the kernel's types; `None` for a kernel without trampolines.
    #[must_use]
    pub fn from_btf(btf: &Btf) -> Option<Self> {
        let ops = btf.struct_named("ftrace_ops")?;
        Some(Self {
            next: word(btf, ops, "next")?,
            flags: word(btf, ops, "flags")?,
            start: word(btf, ops, "trampoline")?,
            size: word(btf, ops, "trampoline_size")?,
        })
    }

    /// The symbol of the kernel's instruction that a trampoline's instruction at `at` stands for; `None` if no trampoline holds `at`.
    /// `first` is the first `struct ftrace_ops` of the list, `end` its last. `read` reads words of the kernel's memory.
    pub fn original(
        &self,
        first: Gva,
        end: Gva,
        at: Gva,
        read: impl Fn(Gva) -> Option<u64>,
    ) -> Option<&'static str> {
        let mut ops = first;
        for _ in 0..MAX_OPS {
            if ops == end {
                return None;
            }
            let field = |offset| read(ops.wrapping_add(offset));
            let start = Gva(field(self.start)?);
            let offset = at.offset_from(start);
            if start != Gva(0)
                && offset.is_some_and(|offset| offset < field(self.size).unwrap_or(0))
            {
                return Some(match field(self.flags)? & SAVES_REGISTERS {
                    0 => "ftrace_call",
                    _ => "ftrace_regs_call",
                });
            }
            ops = Gva(field(self.next)?);
        }
        None
    }
}

/// The offset of a member of 8 bytes.
fn word(btf: &Btf, id: StructId, name: &str) -> Option<u64> {
    let member = btf.member(id, name)?;
    (member.size_bytes == 8).then_some(member.offset_bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const LAYOUT: TrampolineLayout = TrampolineLayout {
        next: 8,
        flags: 16,
        start: 24,
        size: 32,
    };

    /// Two users of ftrace, the first with registers and the second without, and the end of the list.
    fn words() -> BTreeMap<u64, u64> {
        [
            (0x1008, 0x2000),
            (0x1010, 1 | SAVES_REGISTERS),
            (0x1018, 0x7000),
            (0x1020, 0x100),
            (0x2008, 0x3000),
            (0x2010, 1),
            (0x2018, 0x8000),
            (0x2020, 0x100),
        ]
        .into()
    }

    #[test]
    fn trampoline_stands_for_the_code_that_it_is_a_copy_of() {
        let words = words();
        let original = |at| {
            let read = |at: Gva| words.get(&at.0).copied();
            LAYOUT.original(Gva(0x1000), Gva(0x3000), Gva(at), read)
        };
        assert_eq!(original(0x7000), Some("ftrace_regs_call"));
        assert_eq!(original(0x80ff), Some("ftrace_call"));
        for other in [0x6fff, 0x7100, 0x8100, 0] {
            assert_eq!(original(other), None, "{other:#x}");
        }
    }

    #[test]
    fn list_without_an_end_has_no_trampoline() {
        let mut words = words();
        words.insert(0x2008, 0x1000);
        let read = |at: Gva| words.get(&at.0).copied();
        assert_eq!(
            LAYOUT.original(Gva(0x1000), Gva(0x3000), Gva(1), read),
            None
        );
    }
}
