//! The emulator's view of the stopped vCPU.

use address::{Gpa, Gva, PAGE_LEN};
use introspect::insn::{
    Access, CastShadow, Cpu, Fault, Features, Gpr, MOST_ACCESSED_BYTES, Msr, Segment, System,
    SystemChanges,
};
use introspect::{Translation, WalkFault, walk};

use vmm::{Blocking, Shadow};

use super::kernel_half::KernelTables;
use crate::guest::{GuestError, GuestMemory, SystemState, Vcpu};
use crate::plant::Planter;

const RFLAGS_AC: u64 = 1 << 18;
/// The bits of a key in PKRU: no access, no write.
const KEY_ACCESS: u32 = 1;
const KEY_WRITE: u32 = 2;

const MSR_STAR: u32 = 0xc000_0081;
const MSR_FS_BASE: u32 = 0xc000_0100;
const MSR_GS_BASE: u32 = 0xc000_0101;
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

/// A vCPU's registers, taken out for the emulation, and the memory visible to the vCPU.
///
/// Reads of memory return the original bytes of planted pages. The emulation refuses accesses that need unmodelled work of the hardware
/// (setting accessed or dirty bits, a forbidding protection key, SMAP, devices) with [`Fault::NotMemory`], and leaves the accesses to the hardware.
pub(super) struct VcpuCpu<'a> {
    pub(super) regs: vmm::kvm_regs,
    vcpu: &'a mut dyn Vcpu,
    state: Option<SystemState>,
    /// The rights of the protection keys, once needed.
    pkru: Option<u32>,
    /// Whether the instruction is not emulated, and only its target is read: the hardware does its own work at the access.
    pub(super) peeks: bool,
    /// The page tables for the kernel's half, used before `state` is read.
    pub(super) kernel: Option<KernelTables<'a>>,
    memory: &'a dyn GuestMemory,
    planter: &'a Planter,
    features: Features,
    /// The changes by a system instruction, for [`VcpuCpu::finish`].
    changes: SystemChanges,
    /// The error of a request to the vCPU: not a fault of the guest.
    failed: Option<GuestError>,
}

impl<'a> VcpuCpu<'a> {
    pub(super) fn new(
        vcpu: &'a mut dyn Vcpu,
        regs: vmm::kvm_regs,
        memory: &'a dyn GuestMemory,
        planter: &'a Planter,
        features: Features,
    ) -> Self {
        Self {
            regs,
            vcpu,
            state: None,
            pkru: None,
            peeks: false,
            kernel: None,
            memory,
            planter,
            features,
            changes: SystemChanges::default(),
            failed: None,
        }
    }

    pub(super) fn state(&mut self) -> Result<SystemState, Fault> {
        if self.state.is_none() {
            match self.vcpu.system_state() {
                Ok(state) => self.state = Some(state),
                Err(error) => self.failed = Some(error),
            }
        }
        self.state.ok_or(Fault::Registers)
    }

    /// The guest-physical address of an access within one page.
    fn translate(&mut self, at: Gva, access: Access) -> Result<Gpa, Fault> {
        let write = access == Access::Write;
        if let Some(found) = self
            .kernel
            .and_then(|kernel| kernel.translate(self.memory, at))
            && found.accessed
            && (!write || (found.writable && found.dirty))
        {
            // Ring 0 may access the page with any control registers, and the hardware has no bit left to set.
            return Ok(found.gpa);
        }
        let state = self.state()?;
        let Translation {
            gpa,
            writable,
            user,
            accessed,
            dirty,
            key,
            ..
        } = walk(&self.planter.own(), &state.paging, at).map_err(|fault| match fault {
            WalkFault::NotPresent { .. } => Fault::NotMapped { at, access },
            WalkFault::NonCanonical { .. } => Fault::NotCanonical { at, access },
            _ => Fault::NotMemory { at, access },
        })?;
        if state.privilege == 3 && !user {
            return Err(Fault::Forbidden { at, access });
        }
        if write && !writable && (state.privilege == 3 || state.write_protect) {
            return Err(Fault::Forbidden { at, access });
        }
        let needs_hardware = !accessed
            || (write && !dirty)
            || (user && state.privilege < 3 && state.smap && self.regs.rflags & RFLAGS_AC == 0)
            || (user && state.protection_keys && self.key_forbids(key, write));
        if needs_hardware && !self.peeks {
            return Err(Fault::NotMemory { at, access });
        }
        Ok(gpa)
    }

    /// Whether the page's protection key forbids the access.
    fn key_forbids(&mut self, key: u8, write: bool) -> bool {
        if self.pkru.is_none() {
            self.pkru = self.vcpu.pkru().ok();
        }
        let Some(pkru) = self.pkru else {
            // KVM refuses the register: the hardware decides.
            return true;
        };
        let rights = pkru >> (2 * u32::from(key));
        rights & KEY_ACCESS != 0 || (write && rights & KEY_WRITE != 0)
    }

    /// The guest-physical ranges of an access: consecutive pages may lie anywhere in guest-physical memory.
    fn stretches(&mut self, at: Gva, len: usize, access: Access) -> Result<Stretches, Fault> {
        let mut stretches = Stretches {
            each: [(Gpa(0), 0); MOST_STRETCHES],
            count: 0,
        };
        let mut done = 0;
        while done < len {
            let here = at.wrapping_add(done as u64);
            let in_page = (PAGE_LEN - page_offset(here)).min(len - done);
            let refused = Fault::NotMemory { at, access };
            let next = stretches.each.get_mut(stretches.count).ok_or(refused)?;
            *next = (self.translate(here, access)?, in_page);
            stretches.count += 1;
            done += in_page;
        }
        Ok(stretches)
    }
}

/// The maximum number of pages of the longest access.
const MOST_STRETCHES: usize = MOST_ACCESSED_BYTES / PAGE_LEN + 1;

fn page_offset(at: Gva) -> usize {
    usize::try_from(at.page_offset()).unwrap_or(0)
}

/// Ranges of guest-physical memory, each within a page.
struct Stretches {
    each: [(Gpa, usize); MOST_STRETCHES],
    count: usize,
}

impl Stretches {
    fn iter(&self) -> impl Iterator<Item = (Gpa, usize)> {
        self.each[..self.count].iter().copied()
    }
}

/// The value of `register` in KVM's structure.
#[must_use]
pub const fn general_register(regs: &vmm::kvm_regs, register: Gpr) -> u64 {
    match register {
        Gpr::Rax => regs.rax,
        Gpr::Rcx => regs.rcx,
        Gpr::Rdx => regs.rdx,
        Gpr::Rbx => regs.rbx,
        Gpr::Rsp => regs.rsp,
        Gpr::Rbp => regs.rbp,
        Gpr::Rsi => regs.rsi,
        Gpr::Rdi => regs.rdi,
        Gpr::R8 => regs.r8,
        Gpr::R9 => regs.r9,
        Gpr::R10 => regs.r10,
        Gpr::R11 => regs.r11,
        Gpr::R12 => regs.r12,
        Gpr::R13 => regs.r13,
        Gpr::R14 => regs.r14,
        Gpr::R15 => regs.r15,
    }
}

impl Cpu for VcpuCpu<'_> {
    fn gpr(&self, register: Gpr) -> u64 {
        general_register(&self.regs, register)
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        let regs = &mut self.regs;
        *match register {
            Gpr::Rax => &mut regs.rax,
            Gpr::Rcx => &mut regs.rcx,
            Gpr::Rdx => &mut regs.rdx,
            Gpr::Rbx => &mut regs.rbx,
            Gpr::Rsp => &mut regs.rsp,
            Gpr::Rbp => &mut regs.rbp,
            Gpr::Rsi => &mut regs.rsi,
            Gpr::Rdi => &mut regs.rdi,
            Gpr::R8 => &mut regs.r8,
            Gpr::R9 => &mut regs.r9,
            Gpr::R10 => &mut regs.r10,
            Gpr::R11 => &mut regs.r11,
            Gpr::R12 => &mut regs.r12,
            Gpr::R13 => &mut regs.r13,
            Gpr::R14 => &mut regs.r14,
            Gpr::R15 => &mut regs.r15,
        } = value;
    }

    fn rip(&self) -> u64 {
        self.regs.rip
    }

    fn set_rip(&mut self, value: u64) {
        self.regs.rip = value;
    }

    fn rflags(&self) -> u64 {
        self.regs.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.regs.rflags = value;
    }

    fn segment_base(&mut self, segment: Segment) -> Result<u64, Fault> {
        let segments = self.state()?.system.segments;
        Ok(match segment {
            Segment::Fs => segments.fs.base,
            Segment::Gs => segments.gs.base,
        })
    }

    fn privilege_level(&mut self) -> Result<u8, Fault> {
        Ok(self.state()?.privilege)
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault> {
        let stretches = self.stretches(at, buf.len(), access)?;
        let mut rest = buf;
        for (gpa, len) in stretches.iter() {
            let (part, behind) = rest.split_at_mut(len);
            self.planter
                .read_own(gpa, part)
                .map_err(|_| Fault::NotMemory { at, access })?;
            self.memory.on_read(gpa, part);
            rest = behind;
        }
        Ok(())
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault> {
        let stretches = self.stretches(at, bytes.len(), Access::Write)?;
        let refused = Fault::NotMemory {
            at,
            access: Access::Write,
        };
        // A read shows whether the address is memory, so that no part can fail after another part is written.
        let mut probe = [0; 1];
        for (gpa, _) in stretches.iter() {
            if self.planter.pages().keeps(gpa) {
                // The guest rewrites probed code: the hardware's write comes back as a trap.
                return Err(refused);
            }
            self.memory.read(gpa, &mut probe).map_err(|_| refused)?;
            if !self.memory.is_writable(gpa) {
                return Err(refused);
            }
        }
        let mut rest = bytes;
        for (gpa, len) in stretches.iter() {
            let (part, behind) = rest.split_at(len);
            self.memory.write(gpa, part).map_err(|_| refused)?;
            rest = behind;
        }
        Ok(())
    }

    fn system(&mut self) -> Result<System, Fault> {
        Ok(self.state()?.system)
    }

    fn msr(&mut self, register: Msr) -> Result<u64, Fault> {
        let index = match register {
            Msr::Star => MSR_STAR,
            Msr::KernelGsBase => MSR_KERNEL_GS_BASE,
        };
        self.vcpu.read_msr(index).map_err(|error| {
            self.failed = Some(error);
            Fault::Registers
        })
    }

    fn change_system(&mut self, changes: &SystemChanges) -> Result<(), Fault> {
        self.changes = *changes;
        Ok(())
    }

    fn has_57_bits(&mut self) -> Result<bool, Fault> {
        Ok(self.state()?.paging.five_levels())
    }

    fn features(&self) -> Features {
        self.features
    }

    fn compare_exchange(&mut self, at: Gva, old: &[u8], new: &[u8]) -> Result<bool, Fault> {
        let gpa = self.translate(at, Access::Write)?;
        if self.planter.pages().keeps(gpa) {
            // The write must be merged with the plants, and the merge is not atomic.
            return Err(Fault::NotAtomic { at });
        }
        self.memory
            .compare_exchange(gpa, old, new)
            .map_err(|_| Fault::NotAtomic { at })
    }
}

impl VcpuCpu<'_> {
    /// The error of a failed request to the vCPU, if any.
    pub(super) fn failure(&mut self) -> Option<GuestError> {
        self.failed.take()
    }

    /// Completes the instruction: writes the registers and all other changes to the vCPU. The former interrupt shadow ends.
    pub(super) fn finish(&mut self) -> Result<(), GuestError> {
        let Self {
            vcpu,
            regs,
            changes,
            ..
        } = self;
        if let Some(segments) = &changes.segments {
            vcpu.set_segments(segments)?;
        }
        let bases = [
            (MSR_FS_BASE, changes.fs_base),
            (MSR_GS_BASE, changes.gs_base),
            (MSR_KERNEL_GS_BASE, changes.kernel_gs_base),
        ];
        if bases.iter().any(|(_, value)| value.is_some()) {
            let bases: Vec<_> = bases
                .into_iter()
                .filter_map(|(index, value)| Some((index, value?)))
                .collect();
            vcpu.write_msrs(&bases)?;
        }
        let before = vcpu.blocking()?;
        let after = Blocking {
            shadow: match changes.shadow {
                None => Shadow::None,
                Some(CastShadow::Sti) => Shadow::Sti,
                Some(CastShadow::MovSs) => Shadow::MovSs,
            },
            nmis: before.nmis && !changes.unmasks_nmis,
        };
        if after != before {
            vcpu.set_blocking(after)?;
        }
        if changes.halts {
            vcpu.halt()?;
        }
        vcpu.set_regs(regs)
    }
}
