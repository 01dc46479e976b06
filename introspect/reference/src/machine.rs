//! A processor and memory made of arrays.

use address::Gva;
use introspect::insn::{
    Access, Cpu, Decoded, Fault, Features, Gpr, Msr, Outcome, Segment, System, SystemChanges,
    decode, emulate,
};

/// A region of memory. Addresses between regions are not mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The address of the first byte.
    pub start: u64,
    /// The contents.
    pub bytes: Vec<u8>,
    /// Whether writes do not fault.
    pub writable: bool,
}

/// A processor at privilege level 3 (unless set otherwise) with every feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The general registers.
    pub gprs: [u64; 16],
    /// The address of the instruction.
    pub rip: u64,
    /// The flags.
    pub rflags: u64,
    /// The base of FS.
    pub fs: u64,
    /// The base of GS.
    pub gs: u64,
    /// The privilege level.
    pub privilege_level: u8,
    /// Whether linear addresses have 57 bits.
    pub has_57_bits: bool,
    /// The features.
    pub features: Features,
    /// `None` if system instructions have no state to read.
    pub system: Option<System>,
    /// The MSR `STAR`.
    pub star: u64,
    /// The MSR `KERNEL_GS_BASE`.
    pub kernel_gs: u64,
    /// The changes by system instructions, without effect on the machine.
    pub changes: SystemChanges,
    /// The memory.
    pub memory: Vec<Region>,
    /// The number of atomic exchanges still to be lost to another processor.
    pub races: usize,
}

impl Machine {
    /// A machine before the instruction at `rip`, with registers of 0.
    pub fn new(rip: u64, memory: Vec<Region>) -> Self {
        Self {
            gprs: [0; 16],
            rip,
            rflags: 0x202,
            fs: 0,
            gs: 0,
            privilege_level: 3,
            has_57_bits: false,
            features: Features::ALL,
            system: None,
            star: 0,
            kernel_gs: 0,
            changes: SystemChanges::default(),
            memory,
            races: 0,
        }
    }

    /// The region, and the index in the region, of each byte of an access.
    fn locate(&self, at: Gva, len: usize, access: Access) -> Result<Vec<(usize, usize)>, Fault> {
        (0..len as u64)
            .map(|offset| self.locate_byte(at.wrapping_add(offset), access))
            .collect()
    }

    fn locate_byte(&self, at: Gva, access: Access) -> Result<(usize, usize), Fault> {
        for (number, region) in self.memory.iter().enumerate() {
            let index = usize::try_from(at.0.wrapping_sub(region.start)).unwrap_or(usize::MAX);
            if index < region.bytes.len() {
                if access == Access::Write && !region.writable {
                    return Err(Fault::Forbidden { at, access });
                }
                return Ok((number, index));
            }
        }
        Err(Fault::NotMapped { at, access })
    }
}

/// Steps of tests. A step panics if the test is wrong.
impl Machine {
    /// With `value` in the register.
    pub fn with(mut self, register: Gpr, value: u64) -> Self {
        self.gprs[register.number()] = value;
        self
    }

    /// With the flags, beside those of a program.
    pub fn with_flags(mut self, flags: u64) -> Self {
        self.rflags = 0x202 | flags;
        self
    }

    /// At the privilege level.
    #[must_use]
    pub fn at_level(mut self, level: u8) -> Self {
        self.privilege_level = level;
        self
    }

    /// With a change of the state that system instructions read.
    #[must_use]
    pub fn with_system(mut self, change: impl FnOnce(&mut System)) -> Self {
        change(self.system.as_mut().expect("it has one"));
        self
    }

    /// With `value` at `at`, in the first region.
    pub fn holding(mut self, at: u64, value: u64) -> Self {
        self.put(at, &value.to_le_bytes());
        self
    }

    /// Puts bytes at `at`, in the first region.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let offset = usize::try_from(at - self.memory[0].start).expect("in the data");
        self.memory[0].bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The value of the register.
    pub fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[register.number()]
    }

    /// The eight bytes at `at`, in the first region.
    pub fn quadword(&self, at: u64) -> u64 {
        let offset = usize::try_from(at - self.memory[0].start).expect("in the data");
        let bytes = &self.memory[0].bytes[offset..offset + 8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// The machine after an instruction; the instruction must complete.
    pub fn after(mut self, text: &str, hex: &str) -> Self {
        let decoded = assembled(text, hex, Gva(self.rip));
        assert_eq!(emulate(&mut self, decoded.bytes()), Outcome::Done, "{text}");
        self
    }

    /// The outcome of an incomplete instruction; checks that the instruction changes nothing.
    pub fn refused(mut self, text: &str, hex: &str) -> Outcome {
        let decoded = assembled(text, hex, Gva(self.rip));
        let before = self.clone();
        let outcome = emulate(&mut self, decoded.bytes());
        assert_ne!(outcome, Outcome::Done, "{text}");
        assert_eq!(
            self, before,
            "{text} changed something and was then refused"
        );
        outcome
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

    fn segment_base(&mut self, segment: Segment) -> Result<u64, Fault> {
        Ok(match segment {
            Segment::Fs => self.fs,
            Segment::Gs => self.gs,
        })
    }

    fn privilege_level(&mut self) -> Result<u8, Fault> {
        Ok(self.privilege_level)
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault> {
        let places = self.locate(at, buf.len(), access)?;
        for (byte, (region, index)) in buf.iter_mut().zip(places) {
            *byte = self.memory[region].bytes[index];
        }
        Ok(())
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault> {
        let places = self.locate(at, bytes.len(), Access::Write)?;
        for (byte, (region, index)) in bytes.iter().zip(places) {
            self.memory[region].bytes[index] = *byte;
        }
        Ok(())
    }

    fn compare_exchange(&mut self, at: Gva, old: &[u8], new: &[u8]) -> Result<bool, Fault> {
        let mut found = vec![0; old.len()];
        self.read(at, &mut found, Access::Write)?;
        if self.races > 0 {
            self.races -= 1;
            return Ok(false);
        }
        if found == old {
            self.write(at, new)?;
        }
        Ok(found == old)
    }

    fn system(&mut self) -> Result<System, Fault> {
        self.system.ok_or(Fault::Registers)
    }

    fn msr(&mut self, register: Msr) -> Result<u64, Fault> {
        Ok(match register {
            Msr::Star => self.star,
            Msr::KernelGsBase => self.kernel_gs,
        })
    }

    fn change_system(&mut self, changes: &SystemChanges) -> Result<(), Fault> {
        self.changes = *changes;
        Ok(())
    }

    fn has_57_bits(&mut self) -> Result<bool, Fault> {
        Ok(self.has_57_bits)
    }

    fn features(&self) -> Features {
        self.features
    }
}

/// The instruction with the bytes `hex` at `at`, after a check that `text` is the instruction.
///
/// # Panics
///
/// If `hex` is another instruction.
#[must_use]
pub fn assembled(text: &str, hex: &str, at: Gva) -> Decoded {
    let bytes: Vec<u8> = hex
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
        .collect();
    let decoded = decode(&bytes, at).expect("an instruction");
    assert_eq!(
        decoded.len(),
        bytes.len(),
        "{text} is longer than its instruction"
    );
    assert_eq!(decoded.text(), text);
    decoded
}
