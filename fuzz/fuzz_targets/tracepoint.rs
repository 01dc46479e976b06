//! The interpreter of a tracepoint's record: code, registers and memory are the guest's.

#![cfg_attr(fuzzing, no_main)]

use address::Gva;
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::fuzz_target;
use introspect::insn::Features;
use introspect::tracepoints::{ArgumentBlock, RecordWriter, Snapshot};

const START: u64 = 0xffff_ffff_8100_0000;
/// The offsets of the block, of the functions that end the interpretation, and of the pointer to the tracepoint's functions.
const FUNCTION: u64 = 0x40;
const RESERVE: u64 = 0x80;
const COMMIT: u64 = 0xc0;
const FUNCS: u64 = 0x100;
/// `mov rdi, [rip + the second word of the functions]; call`: most inputs come as far as the function.
const BLOCK: [u8; 12] = [0x48, 0x8b, 0x3d, 0x01, 0x01, 0, 0, 0xe8, 0, 0, 0, 0];
/// `mov rsi, rdi; mov edx, 64; call RESERVE`: most inputs come as far as the fields.
const FUNCTION_START: [u8; 13] = [0x48, 0x89, 0xfe, 0xba, 64, 0, 0, 0, 0xe8, 0x33, 0, 0, 0];
const MAX_RECORD_BYTES: usize = 4096;

/// The registers, and the memory that begins with the block. The rest of the guest's memory is not mapped.
#[derive(Arbitrary, Debug)]
struct Case {
    /// Offsets in the memory.
    gprs: [u16; 16],
    has_own_code: bool,
    memory: Vec<u8>,
}

fuzz_target!(|case: Case| {
    let mut memory = case.memory;
    if !case.has_own_code {
        let function = usize::try_from(FUNCTION).expect("small");
        memory.resize(
            memory
                .len()
                .max(usize::try_from(FUNCS).expect("small") + 16),
            0,
        );
        memory[..BLOCK.len()].copy_from_slice(&BLOCK);
        memory[function..function + FUNCTION_START.len()].copy_from_slice(&FUNCTION_START);
    }
    let mut read = |at: Gva, buf: &mut [u8]| {
        let offset = at.0.checked_sub(START);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let bytes = offset.and_then(|offset| memory.get(offset..)?.get(..buf.len()));
        bytes.map(|bytes| buf.copy_from_slice(bytes)).is_some()
    };
    let writer = RecordWriter {
        block: ArgumentBlock {
            at: Gva(START),
            funcs: Gva(START + FUNCS),
        },
        function: Gva(START + FUNCTION),
        reserve: Gva(START + RESERVE),
        commit: Gva(START + COMMIT),
    };
    let snapshot = Snapshot {
        gprs: case.gprs.map(|offset| START + u64::from(offset)),
        rflags: 2,
        gs: START,
        has_57_bits: false,
        features: Features::default(),
    };
    if let Ok(record) = writer.record(&snapshot, &mut read) {
        assert!(record.len() <= MAX_RECORD_BYTES, "{} bytes", record.len());
    }
});
