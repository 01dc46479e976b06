//! The guest's interrupt descriptor table, and the processor's stack frame for an interrupt or
//! exception.

use address::Gva;

use crate::{PagingState, PhysMemory, read_virt};

/// Bytes of a gate in 64-bit mode.
const GATE_BYTES: u64 = 16;
const PRESENT: u64 = 1 << 47;
/// Bits 44:40: no code or data segment, and an interrupt gate; a trap gate has bit 40 too.
const KIND: u64 = 0x1e << 40;
const INTERRUPT_OR_TRAP_GATE: u64 = 0xe << 40;

/// The contents of the IDT register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idt {
    /// The address of the table.
    pub base: Gva,
    /// The offset of the table's last byte.
    pub limit: u16,
}

/// The vectors of exceptions raised by instructions, including #DB for the guest's own traps.
pub const SYNCHRONOUS_VECTORS: [u8; 22] = [
    0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 28, 29, 30,
];

/// Whether the processor pushes an error code for an exception.
#[must_use]
pub const fn pushes_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// A vector and its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The vector.
    pub vector: u8,
    /// The handler's address.
    pub target: Gva,
}

impl Idt {
    /// The handler of `vector`; `None` unless the table holds a present, readable interrupt or trap
    /// gate for the vector.
    pub fn target<M: PhysMemory + ?Sized>(
        self,
        memory: &M,
        state: &PagingState,
        vector: u8,
    ) -> Option<Gva> {
        let mut found = None;
        self.for_each(memory, state, &[vector], |gate| found = Some(gate.target));
        found
    }

    /// The gates of `vectors` with handlers; `vectors` are in ascending order. At most two pages
    /// are read, and walked to.
    pub fn gates<M: PhysMemory + ?Sized>(
        self,
        memory: &M,
        state: &PagingState,
        vectors: &[u8],
    ) -> Vec<Gate> {
        let mut gates = Vec::with_capacity(vectors.len());
        self.for_each(memory, state, vectors, |gate| gates.push(gate));
        gates
    }

    fn for_each<M: PhysMemory + ?Sized>(
        self,
        memory: &M,
        state: &PagingState,
        vectors: &[u8],
        mut found: impl FnMut(Gate),
    ) {
        let fits = |vector: u8| (u64::from(vector) + 1) * GATE_BYTES <= u64::from(self.limit) + 1;
        let mut wanted = vectors.iter().copied().filter(|&vector| fits(vector));
        let Some(first) = wanted.next().filter(|_| state.long_mode()) else {
            return;
        };
        let last = wanted.next_back().unwrap_or(first);
        let at = |vector: u8| self.base.wrapping_add(u64::from(vector) * GATE_BYTES);
        let mut table = [[0; 16]; 256];
        let all = &mut table[usize::from(first)..=usize::from(last)];
        let whole = read_virt(memory, state, at(first), all.as_flattened_mut()).is_ok();
        for &vector in vectors.iter().filter(|&&vector| fits(vector)) {
            let gate = &mut table[usize::from(vector)];
            // A table of which some cannot be read may still be good for the rest.
            if whole || read_virt(memory, state, at(vector), gate).is_ok() {
                let target = target_of(*gate);
                target
                    .into_iter()
                    .for_each(|target| found(Gate { vector, target }));
            }
        }
    }
}

fn target_of(gate: [u8; 16]) -> Option<Gva> {
    let gate = u128::from_le_bytes(gate);
    #[expect(clippy::cast_possible_truncation, reason = "split into its halves")]
    let (low, high) = (gate as u64, (gate >> 64) as u64);
    if low & PRESENT == 0 || low & KIND != INTERRUPT_OR_TRAP_GATE {
        return None;
    }
    Some(Gva((low & 0xffff) | ((low >> 48) << 16) | (high << 32)))
}

/// The processor's stack frame for an interrupt or exception, at the handler's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptFrame {
    /// The error code, for exceptions with an error code.
    pub error_code: Option<u32>,
    /// The return address of the handler.
    pub rip: Gva,
    /// The code segment's selector.
    pub cs: u16,
    /// The flags.
    pub rflags: u64,
    /// The stack pointer.
    pub rsp: u64,
}

impl InterruptFrame {
    /// The frame at `rsp` at the first instruction of a handler; `None` if the frame cannot be
    /// read.
    ///
    /// The processor aligns the stack to 16 bytes and then pushes five quadwords, or six with an
    /// error code: the alignment of `rsp` shows the number.
    pub fn read<M: PhysMemory + ?Sized>(memory: &M, state: &PagingState, rsp: u64) -> Option<Self> {
        let mut quadwords = [[0; 8]; 6];
        let bytes = quadwords.as_flattened_mut();
        let has_error_code = rsp.is_multiple_of(16);
        let len = if has_error_code { 48 } else { 40 };
        read_virt(memory, state, Gva(rsp), &mut bytes[48 - len..]).ok()?;
        let [error_code, rip, cs, rflags, rsp, _ss] = quadwords.map(u64::from_le_bytes);
        #[expect(clippy::cast_possible_truncation, reason = "the rest is not defined")]
        let (error_code, cs) = (has_error_code.then_some(error_code as u32), cs as u16);
        Some(Self {
            error_code,
            rip: Gva(rip),
            cs,
            rflags,
            rsp,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address::Gpa;

    use crate::FlatMemory;

    const TABLE: Gva = Gva(0x20_0000);

    /// Memory with one large page, identity-mapped.
    fn memory() -> (FlatMemory, PagingState) {
        let mut memory = FlatMemory::zeroed(0x40_0000);
        let mut put = |at, value: u64| memory.write(Gpa(at), &value.to_le_bytes()).expect("fits");
        put(0x1000, 0x2003);
        put(0x2000, 0x3003);
        put(0x3000 + 8, 0x20_0083);
        (memory, PagingState::four_level(0x1000))
    }

    fn gate(memory: &mut FlatMemory, vector: u64, low: u64, high: u64) {
        let at = Gpa(TABLE.0 + 16 * vector);
        memory.write(at, &low.to_le_bytes()).expect("fits");
        let at = at.wrapping_add(8);
        memory.write(at, &high.to_le_bytes()).expect("fits");
    }

    #[test]
    fn a_gate_is_put_together_from_its_parts() {
        let (mut memory, state) = memory();
        gate(&mut memory, 14, 0x5566_8e00_0010_7788, 0x1122_3344);
        gate(&mut memory, 3, 0x5566_ef01_0010_7788, 0xffff_ffff);
        let limit = 0xfff;
        let idt = Idt { base: TABLE, limit };
        let target = |vector| idt.target(&memory, &state, vector);
        assert_eq!(target(14), Some(Gva(0x1122_3344_5566_7788)));
        assert_eq!(target(3), Some(Gva(0xffff_ffff_5566_7788)));
    }

    #[test]
    fn entry_that_is_no_gate_has_no_target() {
        let (mut memory, state) = memory();
        // Not present, a task gate, a data segment.
        gate(&mut memory, 0, 0x5566_0e00_0010_7788, 0);
        gate(&mut memory, 1, 0x5566_8500_0010_7788, 0);
        gate(&mut memory, 3, 0x5566_9e00_0010_7788, 0);
        gate(&mut memory, 4, 0x5566_8e00_0010_7788, 0);
        let idt = |base, limit| Idt { base, limit };
        for vector in [0, 1, 3, 5] {
            assert_eq!(idt(TABLE, 0xfff).target(&memory, &state, vector), None);
        }
        assert!(idt(TABLE, 0x4f).target(&memory, &state, 4).is_some());
        assert_eq!(idt(TABLE, 0x4e).target(&memory, &state, 4), None, "limit");
        let vectors: Vec<u8> = (0..=255).collect();
        let gates = idt(TABLE, 0xfff).gates(&memory, &state, &vectors);
        let target = Gva(0x5566_7788);
        assert_eq!(gates, [Gate { vector: 4, target }]);
        // The second half of the table is not mapped.
        let mut at_the_end = |base: u64, vector: u64| {
            let at = Gpa(base + 16 * vector);
            memory.write(at, &0x5566_8e00_0010_7788_u64.to_le_bytes())
        };
        let base = 0x40_0000 - 0x800;
        at_the_end(base, 4).expect("fits");
        let gates = idt(Gva(base), 0xfff).gates(&memory, &state, &vectors);
        assert_eq!(gates, [Gate { vector: 4, target }]);
        let absent = [Gva(0x1000), Gva(1 << 63), Gva(u64::MAX - 3)];
        for base in absent {
            assert_eq!(idt(base, 0xffff).target(&memory, &state, 255), None);
        }
        let real = PagingState::default();
        assert_eq!(idt(TABLE, 0xfff).target(&memory, &real, 4), None);
    }

    #[test]
    fn frame_is_read_with_and_without_error_code() {
        let (mut memory, state) = memory();
        let pushed: Vec<u8> = [7, 0x1234, 0x10, 0x246, 0x9000, 0x18]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let rsp = TABLE.0 + 0x100;
        memory.write(Gpa(rsp), &pushed).expect("fits");
        let expected = InterruptFrame {
            error_code: Some(7),
            rip: Gva(0x1234),
            cs: 0x10,
            rflags: 0x246,
            rsp: 0x9000,
        };
        assert_eq!(InterruptFrame::read(&memory, &state, rsp), Some(expected));
        let error_code = None;
        assert_eq!(
            InterruptFrame::read(&memory, &state, rsp + 8),
            Some(InterruptFrame {
                error_code,
                ..expected
            })
        );
        assert_eq!(InterruptFrame::read(&memory, &state, 0x8000), None);
    }
}
