//! Benchmarks of single instructions: decoding, and emulation on a processor modelled by an array.

use std::hint::black_box;

use address::Gva;
use criterion::{Criterion, criterion_group, criterion_main};
use introspect::insn::{
    Access, Cpu, Fault, Features, Gpr, Outcome, Segment, decode, emulate, emulate_decoded,
};

const AT: Gva = Gva(0xffff_ffff_8100_0000);
const STACK: u64 = 0xffff_c900_0000_0000;
const STACK_BYTES: usize = 4096;

/// Mostly instructions of function entries.
const INSTRUCTIONS: [(&str, &[u8]); 5] = [
    ("push rbp", &[0x55]),
    ("mov rbp, rsp", &[0x48, 0x89, 0xe5]),
    ("sub rsp, 16", &[0x48, 0x83, 0xec, 0x10]),
    ("mov [rsp+8], rdi", &[0x48, 0x89, 0x7c, 0x24, 0x08]),
    ("nop dword [rax+rax]", &[0x0f, 0x1f, 0x44, 0x00, 0x00]),
];

struct Machine {
    gprs: [u64; 16],
    rip: u64,
    rflags: u64,
    stack: Vec<u8>,
}

impl Machine {
    fn new() -> Self {
        let mut machine = Self {
            gprs: [0; 16],
            rip: 0,
            rflags: 0x202,
            stack: vec![0; STACK_BYTES],
        };
        machine.rewind();
        machine
    }

    fn rewind(&mut self) {
        self.rip = AT.0;
        self.gprs[Gpr::Rsp.number()] = STACK + STACK_BYTES as u64 / 2;
    }

    fn stack(&mut self, at: Gva, len: usize) -> Result<&mut [u8], Fault> {
        let start = usize::try_from(at.0.wrapping_sub(STACK)).unwrap_or(usize::MAX);
        let bytes = self.stack.get_mut(start..start.saturating_add(len));
        bytes.ok_or(Fault::NotMapped {
            at,
            access: Access::Write,
        })
    }
}

impl Cpu for Machine {
    fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[register.number()]
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        self.gprs[register.number()] = value;
    }

    fn rip(&self) -> u64 {
        self.rip
    }

    fn set_rip(&mut self, value: u64) {
        self.rip = value;
    }

    fn rflags(&self) -> u64 {
        self.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.rflags = value;
    }

    fn segment_base(&mut self, _: Segment) -> Result<u64, Fault> {
        Ok(0)
    }

    fn privilege_level(&mut self) -> Result<u8, Fault> {
        Ok(0)
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], _: Access) -> Result<(), Fault> {
        buf.copy_from_slice(self.stack(at, buf.len())?);
        Ok(())
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault> {
        self.stack(at, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn features(&self) -> Features {
        Features::ALL
    }
}

fn instructions(criterion: &mut Criterion) {
    for (text, bytes) in INSTRUCTIONS {
        let mut group = criterion.benchmark_group(text);
        group.bench_function("decoded", |bencher| {
            bencher.iter(|| decode(black_box(bytes), AT).expect("an instruction"));
        });
        let decoded = decode(bytes, AT).expect("an instruction");
        let mut machine = Machine::new();
        group.bench_function("emulated", |bencher| {
            bencher.iter(|| {
                machine.rewind();
                assert_eq!(
                    emulate_decoded(&mut machine, black_box(&decoded)),
                    Outcome::Done
                );
            });
        });
        group.bench_function("decoded and emulated", |bencher| {
            bencher.iter(|| {
                machine.rewind();
                assert_eq!(emulate(&mut machine, black_box(bytes)), Outcome::Done);
            });
        });
    }
}

criterion_group!(benches, instructions);
criterion_main!(benches);
