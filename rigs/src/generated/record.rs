//! The records of the test guest's initrd: `struct record` of its generated.h.

use super::snippet::State;

/// The length of a record, and the offset of the second half, which the guest fills in.
pub(super) const RECORD_BYTES: usize = 2480;
pub(super) const INPUT_BYTES: usize = 1184;

/// How a snippet was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    NotRun,
    /// To the jump behind the snippet.
    Next,
    /// To the snippet's branch target.
    Taken,
    /// By an exception.
    Trap,
    /// Not at all.
    Running,
}

/// A field in the guest's half of a record: words of eight bytes.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) offset: usize,
    pub(super) words: usize,
}

const fn field(name: &'static str, offset: usize, words: usize) -> Field {
    Field {
        name,
        offset: INPUT_BYTES + offset,
        words,
    }
}

pub(super) const HOW: Field = field("left", 0, 1);
pub(super) const VECTOR: Field = field("vector", 8, 1);
pub(super) const TRAP_RIP: Field = field("rip", 24, 1);
pub(super) const CR2: Field = field("cr2", 40, 1);
pub(super) const RFLAGS: Field = field("rflags", 208, 1);
pub(super) const FPU: Field = field("fpu", 1232, 8);

/// All of them.
pub(super) const FIELDS: [Field; 19] = [
    HOW,
    VECTOR,
    field("error", 16, 1),
    TRAP_RIP,
    field("cs", 32, 1),
    CR2,
    field("dr6", 48, 1),
    field("fs base", 56, 1),
    field("gs base", 64, 1),
    field("kernel gs base", 72, 1),
    field("gpr", 80, 16),
    RFLAGS,
    field("mxcsr", 216, 1),
    field("selector", 224, 6),
    field("ymm", 272, 16),
    field("data", 400, 64),
    field("edge", 912, 8),
    field("stack", 976, 32),
    FPU,
];

/// The first half of a record, for the guest.
pub(super) fn input_half(state: &State, skip: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    let words = [
        u64::from(skip),
        state.fs_base,
        state.gs_base,
        state.kernel_gs_base,
    ];
    let selectors = [0; 6];
    for word in words
        .iter()
        .chain(&state.gprs)
        .chain(&[state.rflags, state.mxcsr])
        .chain(&selectors)
    {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(state.vectors.iter().flatten());
    bytes.extend(state.data);
    bytes.extend(state.edge);
    bytes.extend(state.stack);
    assert_eq!(bytes.len(), INPUT_BYTES, "as in generated.h");
    bytes.resize(RECORD_BYTES, 0);
    bytes
}

/// The result of a snippet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a>(pub(super) &'a [u8]);

impl Record<'_> {
    pub(super) fn word(&self, field: &Field, index: usize) -> u64 {
        let offset = field.offset + index * 8;
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[offset..offset + 8]);
        u64::from_le_bytes(word)
    }

    pub(super) fn how(&self) -> How {
        match self.word(&HOW, 0) {
            1 => How::Next,
            2 => How::Taken,
            3 => How::Trap,
            0 => How::NotRun,
            _ => How::Running,
        }
    }
}
