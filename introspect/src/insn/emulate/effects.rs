//! The changes of an instruction, held back until the instruction is sure to complete.

use address::Gva;
use iced_x86::{Instruction, Mnemonic};

use super::flag_changes::FlagChanges;
use super::flags;
use super::register_changes::RegisterChanges;
use super::width::Width;
use crate::insn::cpu::{Access, Cpu, Fault, Gpr};
use crate::insn::reason::Reason;
use crate::insn::system::SystemChanges;

/// Why an instruction stops short. Nothing has changed then.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    Fault(Fault),
    Unsupported(Reason),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Self::Unsupported(reason)
    }
}

/// The result of committing an instruction's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// The changes are made.
    Done,
    /// Another processor wrote the memory of a locked instruction between the instruction's read
    /// and write. Nothing has changed; the emulator must start the instruction over.
    Raced,
}

/// The processor before the instruction, and the changes that the instruction will make.
///
/// Reads of memory, [`Effects::gpr`] and [`FlagChanges::before`] return the state before the
/// instruction.
pub(super) struct Effects<'a, C: ?Sized> {
    pub(super) cpu: &'a mut C,
    pub(super) insn: &'a Instruction,
    pub(super) flags: FlagChanges,
    pub(super) registers: RegisterChanges,
    rip: u64,
    store: Option<Store>,
    system: Option<SystemChanges>,
    /// The last value read from memory: the value replaced by a locked instruction.
    loaded: u64,
}

struct Store {
    at: Gva,
    content: Content,
}

enum Content {
    Value(u64, Width),
    Bytes(Vec<u8>),
}

impl<'a, C: Cpu + ?Sized> Effects<'a, C> {
    pub(super) fn new(cpu: &'a mut C, insn: &'a Instruction) -> Self {
        Self {
            flags: FlagChanges::new(cpu.rflags()),
            cpu,
            insn,
            registers: RegisterChanges::new(),
            rip: insn.next_ip(),
            store: None,
            system: None,
            loaded: 0,
        }
    }

    /// A register before the instruction.
    pub(super) fn gpr(&self, register: Gpr) -> u64 {
        self.cpu.gpr(register)
    }

    /// A register with the changes up to now.
    fn gpr_after(&self, register: Gpr) -> u64 {
        let changed = self.registers.get(register);
        changed.unwrap_or_else(|| self.cpu.gpr(register))
    }

    /// Changes the low part of a register like the processor's writes of the same width: 32 bits
    /// clear the upper half, fewer leave the rest.
    pub(super) fn set_gpr_low(&mut self, register: Gpr, width: Width, value: u64) {
        let value = width.truncate(value);
        match width {
            Width::B4 | Width::B8 => self.registers.set(register, value),
            Width::B1 | Width::B2 => {
                let rest = self.gpr_after(register) & !width.mask();
                self.registers.set(register, rest | value);
            }
        }
    }

    /// Changes bits 8..16 of a register.
    pub(super) fn set_gpr_second_byte(&mut self, register: Gpr, value: u64) {
        let rest = self.gpr_after(register) & !0xff00;
        self.registers.set(register, rest | (value & 0xff) << 8);
    }

    /// Records changes outside general registers, RIP and the flags. An instruction with system
    /// changes writes no memory.
    pub(super) fn change_system(&mut self, changes: SystemChanges) {
        self.system = Some(changes);
    }

    /// Goes on at `target` instead of behind the instruction.
    pub(super) fn jump(&mut self, target: u64) {
        self.rip = target;
    }

    /// Reads memory as it was before the instruction.
    pub(super) fn read(&mut self, at: u64, width: Width) -> Result<u64, Stop> {
        self.load(at, width, Access::Read)
    }

    /// Reads memory for a later write: checks write access before the read.
    pub(super) fn read_to_write(&mut self, at: u64, width: Width) -> Result<u64, Stop> {
        self.load(at, width, Access::Write)
    }

    fn load(&mut self, at: u64, width: Width, access: Access) -> Result<u64, Stop> {
        check_canonical(self.cpu, at, width.bytes(), access)?;
        self.check_alignment(at, width)?;
        let mut bytes = [0; 8];
        self.cpu
            .read(Gva(at), &mut bytes[..width.bytes()], access)?;
        self.loaded = u64::from_le_bytes(bytes);
        Ok(self.loaded)
    }

    /// Records a write to memory; the commit makes the write. An instruction writes at most once.
    pub(super) fn write(&mut self, at: u64, width: Width, value: u64) -> Result<(), Stop> {
        check_canonical(self.cpu, at, width.bytes(), Access::Write)?;
        self.check_alignment(at, width)?;
        debug_assert!(self.store.is_none(), "{:?} writes twice", self.insn.code());
        let content = Content::Value(value, width);
        self.store = Some(Store {
            at: Gva(at),
            content,
        });
        Ok(())
    }

    /// Reads `count` elements of a string.
    pub(super) fn read_string(
        &mut self,
        at: u64,
        width: Width,
        count: usize,
    ) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; count * width.bytes()];
        check_canonical(self.cpu, at, bytes.len(), Access::Read)?;
        self.check_alignment(at, width)?;
        self.cpu.read(Gva(at), &mut bytes, Access::Read)?;
        Ok(bytes)
    }

    /// Will write the elements of a string.
    pub(super) fn write_string(
        &mut self,
        at: u64,
        width: Width,
        bytes: Vec<u8>,
    ) -> Result<(), Stop> {
        check_canonical(self.cpu, at, bytes.len(), Access::Write)?;
        self.check_alignment(at, width)?;
        let content = Content::Bytes(bytes);
        self.store = Some(Store {
            at: Gva(at),
            content,
        });
        Ok(())
    }

    /// Programs can ask for a fault on misaligned accesses (the fault occurs if CR0.AM is set).
    fn check_alignment(&mut self, at: u64, width: Width) -> Result<(), Stop> {
        let aligned = at.is_multiple_of(width.bytes() as u64);
        if !aligned && self.flags.was_set(flags::ALIGNMENT) && self.cpu.privilege_level()? == 3 {
            return Err(Reason::AlignmentCheck.into());
        }
        Ok(())
    }

    /// Makes the changes.
    pub(super) fn commit(&mut self) -> Result<Commit, Stop> {
        if !is_canonical(self.cpu, self.rip)? {
            return Err(Reason::BranchNotCanonical.into());
        }
        match &self.store {
            None => {}
            Some(Store {
                at,
                content: Content::Value(value, width),
            }) => {
                let (at, width) = (*at, *width);
                let new = &value.to_le_bytes()[..width.bytes()];
                if is_locked(self.insn) {
                    // Across a cache line the hardware would lock the bus.
                    if !at.0.is_multiple_of(width.bytes() as u64) {
                        return Err(Reason::Locked.into());
                    }
                    let old = &self.loaded.to_le_bytes()[..width.bytes()];
                    if !self.cpu.compare_exchange(at, old, new)? {
                        return Ok(Commit::Raced);
                    }
                } else {
                    self.cpu.write(at, new)?;
                }
            }
            Some(Store {
                at,
                content: Content::Bytes(bytes),
            }) => self.cpu.write(*at, bytes)?,
        }
        if let Some(changes) = &self.system {
            self.cpu.change_system(changes)?;
        }
        for (register, value) in self.registers.all() {
            self.cpu.set_gpr(register, value);
        }
        self.cpu.set_rflags(self.flags.after());
        self.cpu.set_rip(self.rip);
        Ok(Commit::Done)
    }
}

/// Whether the access to memory is atomic: by prefix, or as an `xchg`.
fn is_locked(insn: &Instruction) -> bool {
    insn.has_lock_prefix() || insn.mnemonic() == Mnemonic::Xchg
}

/// Whether the upper bits of `at` are copies of the highest bit in use.
pub(super) fn is_canonical<C: Cpu + ?Sized>(cpu: &mut C, at: u64) -> Result<bool, Fault> {
    let is_canonical = |bits: u32| {
        let upper = at.cast_signed() >> (bits - 1);
        upper == 0 || upper == -1
    };
    Ok(is_canonical(48) || (is_canonical(57) && cpu.has_57_bits()?))
}

fn check_canonical<C: Cpu + ?Sized>(
    cpu: &mut C,
    at: u64,
    bytes: usize,
    access: Access,
) -> Result<(), Stop> {
    let last = at.wrapping_add(bytes as u64 - 1);
    if is_canonical(cpu, at)? && is_canonical(cpu, last)? {
        Ok(())
    } else {
        Err(Fault::NotCanonical {
            at: Gva(at),
            access,
        }
        .into())
    }
}
