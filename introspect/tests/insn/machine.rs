//! A processor and memory made of arrays.

use hyprobe_introspect::Gva;
use hyprobe_introspect::insn::{
    Access, Cpu, Fault, Features, Gpr, Msr, Segment, System, SystemChanges,
};

/// A region of memory. Addresses between regions are not mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) writable: bool,
}

/// A processor at privilege level 3 (unless set otherwise) with every feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) gprs: [u64; 16],
    pub(crate) rip: u64,
    pub(crate) rflags: u64,
    pub(crate) fs: u64,
    pub(crate) gs: u64,
    pub(crate) privilege_level: u8,
    pub(crate) features: Features,
    /// `None` if system instructions have no state to read.
    pub(crate) system: Option<System>,
    pub(crate) star: u64,
    pub(crate) kernel_gs: u64,
    /// The changes by system instructions, without effect on the machine.
    pub(crate) changes: SystemChanges,
    pub(crate) memory: Vec<Region>,
    /// The number of atomic exchanges still to be lost to another processor.
    pub(crate) races: usize,
}

impl Machine {
    pub(crate) fn new(rip: u64, memory: Vec<Region>) -> Self {
        Self {
            gprs: [0; 16],
            rip,
            rflags: 0x202,
            fs: 0,
            gs: 0,
            privilege_level: 3,
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

    fn features(&self) -> Features {
        self.features
    }
}
