//! The machine of the self-test.
#![expect(unsafe_code, reason = "makes KVM forget what it has mapped")]

use std::time::Duration;

use address::Gpa;
use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_GUESTDBG_ENABLE, KVM_MAX_CPUID_ENTRIES, kvm_enable_cap,
    kvm_guest_debug, kvm_msi, kvm_regs, kvm_segment, kvm_sregs, kvm_vcpu_events,
};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use vm_memory::{Bytes, GuestAddress};

use super::SelfTestError;
use crate::devices::IOAPIC_PINS;
use crate::kvm::Host;
use crate::memory::{PageRange, Ram, Slots};
use crate::vcpu::kick::{self, KickTarget};
use crate::vcpu::watchdog::Watchdog;

const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const PML4: u64 = 0x3000;
const PDPT: u64 = 0x4000;
const PD: u64 = 0x5000;
/// The second entry of [`PD`], and the address that it maps.
const ALIAS_ENTRY: u64 = PD + 8;
pub(super) const ALIAS: u32 = 0x20_0000;
/// Present, writable, user, accessed, dirty, a page of 2 MiB.
const ALIAS_MAPPED: u64 = 0xe7;
const TSS: u64 = 0x6000;
const KERNEL_STACK: u64 = 0x9000;
const USER_STACK: u64 = 0xb000;
/// The address of a question's code.
pub(super) const CODE: u64 = 0x10000;
/// Memory for a question's data.
pub(super) const DATA: u32 = 0x14000;
/// A page in a read-only slot.
pub(super) const READ_ONLY: u32 = 0x18000;
const STUBS: u64 = 0x1a000;
const STUB_BYTES: u64 = 8;
const MEMORY_BYTES: usize = 0x20_0000;
const PAGE_BYTES: usize = 0x1000;
const RFLAGS_IF: u64 = 1 << 9;

/// The port to which the stub of an interrupt vector writes the vector.
pub(super) const VECTOR_PORT: u8 = 0xe0;
/// The port to which a question's code writes at its end.
pub(super) const END_PORT: u8 = 0xe1;

/// The interrupt that a question may raise, and the value that the stub of its vector reports.
const INTERRUPT: u8 = 0x35;
pub(super) const REPORTED_INTERRUPT: u8 = INTERRUPT % 32;
/// The address of the first local APIC for messages.
const MSI_ADDRESS: u32 = 0xfee0_0000;
/// Offset of the spurious-interrupt register in a local APIC, and its bit to enable the APIC.
const APIC_SPURIOUS: usize = 0xf0;
const APIC_ON: i8 = 1;

const KICK_EVERY: Duration = Duration::from_millis(5);
/// After this number of kicks by the watchdog, a question has no answer.
const PATIENCE_KICKS: u32 = 60;

/// Privilege level of a question's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    Kernel,
    User,
}

/// The exit of the tiny guest's vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// A port write to a port other than `VECTOR_PORT` and `END_PORT`.
    Port {
        port: u16,
    },
    /// An exception or interrupt with this vector has reached the guest's own handler.
    Vector(u8),
    /// A question's code has reached its end.
    End,
    Debug {
        exception: u32,
        dr6: u64,
    },
    Write {
        gpa: u64,
    },
    EmulationFailure,
    MsrWrite {
        index: u32,
    },
    /// The vCPU did not exit in time.
    None,
    Other,
}

pub(super) struct TinyGuest {
    pub(super) fd: VcpuFd,
    pub(super) vm: VmFd,
    memory: Ram,
    pristine: kvm_sregs,
}

fn refused(request: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> SelfTestError {
    move |source| SelfTestError::Request { request, source }
}

impl TinyGuest {
    pub(super) fn new(host: &Host) -> Result<Self, SelfTestError> {
        let vm = host.kvm.create_vm().map_err(refused("KVM_CREATE_VM"))?;
        // Needed by VT-x without unrestricted guests; elsewhere without effect.
        vm.set_tss_address(0xfffb_d000)
            .map_err(refused("KVM_SET_TSS_ADDR"))?;
        crate::kvm::disable_quirks(&vm).map_err(refused("KVM_ENABLE_CAP"))?;
        // Local APICs in KVM and no other devices, as in the machine.
        let mut cap = kvm_enable_cap {
            cap: KVM_CAP_SPLIT_IRQCHIP,
            ..Default::default()
        };
        cap.args[0] = u64::from(IOAPIC_PINS);
        vm.enable_cap(&cap).map_err(refused("KVM_ENABLE_CAP"))?;
        if host.capabilities().exit_on_emulation_failure {
            let mut cap = kvm_enable_cap {
                cap: crate::kvm::CAP_EXIT_ON_EMULATION_FAILURE,
                ..Default::default()
            };
            cap.args[0] = 1;
            vm.enable_cap(&cap).map_err(refused("KVM_ENABLE_CAP"))?;
        }
        let memory = Ram::new(&[(GuestAddress(0), MEMORY_BYTES)])?;
        let page = PageRange::covering(Gpa(READ_ONLY.into()), Gpa(u64::from(READ_ONLY) + 1));
        Slots::new(memory.regions(), usize::MAX)
            .apply(&vm, &[page])
            .map_err(|error| match error {
                crate::SlotError::Refused { source, .. } => {
                    refused("KVM_SET_USER_MEMORY_REGION")(source)
                }
                crate::SlotError::TooMany { .. } => {
                    refused("KVM_SET_USER_MEMORY_REGION")(kvm_ioctls::Error::new(libc::ENOSPC))
                }
            })?;
        let fd = vm.create_vcpu(0).map_err(refused("KVM_CREATE_VCPU"))?;
        let cpuid = host
            .kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(refused("KVM_GET_SUPPORTED_CPUID"))?;
        fd.set_cpuid2(&cpuid).map_err(refused("KVM_SET_CPUID2"))?;
        let pristine = fd.get_sregs().map_err(refused("KVM_GET_SREGS"))?;
        let guest = Self {
            fd,
            vm,
            memory,
            pristine,
        };
        guest.write_tables()?;
        Ok(guest)
    }

    fn write_tables(&self) -> Result<(), SelfTestError> {
        let memory = self.memory.guest();
        let put = |at: u64, value: u64| memory.write_obj(value, GuestAddress(at));
        // Present, writable, user; the last level 2 MiB pages.
        put(PML4, PDPT | 7)?;
        put(PDPT, PD | 7)?;
        for i in 0..512 {
            put(PD + 8 * i, (i << 21) | 0x87)?;
        }
        for (i, descriptor) in [
            0,
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x0000_8b00_6000_0067,
            0,
        ]
        .into_iter()
        .enumerate()
        {
            put(GDT + 8 * i as u64, descriptor)?;
        }
        put(GDT + 0x30, 0x00cf_f300_0000_ffff)?;
        put(GDT + 0x38, 0x00af_fb00_0000_ffff)?;
        put(TSS + 4, KERNEL_STACK)?;
        for vector in 0..256_u64 {
            let stub = STUBS + STUB_BYTES * (vector % 32);
            // Interrupt gate, DPL 3, to the kernel's code segment.
            put(
                IDT + 16 * vector,
                (stub & 0xffff) | (0x10 << 16) | (0xee00 << 32) | ((stub >> 16) << 48),
            )?;
            put(IDT + 16 * vector + 8, 0)?;
        }
        for vector in 0..32_u8 {
            // mov al, vector; out VECTOR_PORT, al; hlt
            let stub = [0xb0, vector, 0xe6, VECTOR_PORT, 0xf4];
            memory.write_slice(&stub, GuestAddress(STUBS + STUB_BYTES * u64::from(vector)))?;
        }
        Ok(())
    }

    /// Writes `code` and leaves the vCPU unchanged.
    pub(super) fn replace_code(&self, code: &[u8]) -> Result<(), SelfTestError> {
        Ok(self.memory.guest().write_slice(code, GuestAddress(CODE))?)
    }

    /// Writes `code` and sets the vCPU to its start.
    pub(super) fn load(&mut self, code: &[u8], ring: Ring) -> Result<(), SelfTestError> {
        self.replace_code(code)?;
        let (code_selector, data_selector, dpl, rsp) = match ring {
            Ring::Kernel => (0x10, 0x18, 0, KERNEL_STACK),
            Ring::User => (0x3b, 0x33, 3, USER_STACK),
        };
        let segment = |selector, type_, long, dpl| kvm_segment {
            limit: 0xffff_ffff,
            selector,
            type_,
            present: 1,
            dpl,
            db: u8::from(long == 0),
            s: 1,
            l: long,
            g: 1,
            ..Default::default()
        };
        let mut sregs = self.pristine;
        sregs.cs = segment(code_selector, 11, 1, dpl);
        let data = segment(data_selector, 3, 0, dpl);
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.tr = kvm_segment {
            base: TSS,
            limit: 0x67,
            selector: 0x20,
            type_: 11,
            present: 1,
            ..Default::default()
        };
        sregs.gdt.base = GDT;
        sregs.gdt.limit = 0x3f;
        sregs.idt.base = IDT;
        sregs.idt.limit = 0xfff;
        sregs.cr3 = PML4;
        sregs.cr0 = 0x8005_0033;
        sregs.cr4 = 0x20;
        sregs.efer = 0x500;
        self.fd
            .set_sregs(&sregs)
            .map_err(refused("KVM_SET_SREGS"))?;
        let regs = kvm_regs {
            rip: CODE,
            rsp,
            rflags: 2,
            ..Default::default()
        };
        self.fd.set_regs(&regs).map_err(refused("KVM_SET_REGS"))?;
        let mut events = self.events()?;
        events.exception = Default::default();
        events.interrupt = Default::default();
        self.set_events(&events)?;
        self.debug(&kvm_guest_debug::default())
    }

    /// Sets the events that KVM intercepts; the enabling bit is added if the set is not empty.
    pub(super) fn debug(&mut self, debug: &kvm_guest_debug) -> Result<(), SelfTestError> {
        let mut debug = *debug;
        if debug.control != 0 {
            debug.control |= KVM_GUESTDBG_ENABLE;
        }
        self.fd
            .set_guest_debug(&debug)
            .map_err(refused("KVM_SET_GUEST_DEBUG"))
    }

    pub(super) fn rip(&self) -> Result<u64, SelfTestError> {
        Ok(self.regs()?.rip)
    }

    pub(super) fn regs(&self) -> Result<kvm_regs, SelfTestError> {
        self.fd.get_regs().map_err(refused("KVM_GET_REGS"))
    }

    pub(super) fn set_rip(&mut self, rip: u64) -> Result<(), SelfTestError> {
        let regs = kvm_regs {
            rip,
            ..self.regs()?
        };
        self.fd.set_regs(&regs).map_err(refused("KVM_SET_REGS"))
    }

    /// Maps all memory a second time at [`ALIAS`], or removes the second mapping, in the tables in memory.
    pub(super) fn map_alias(&self, is_mapped: bool) -> Result<(), SelfTestError> {
        let entry = if is_mapped { ALIAS_MAPPED } else { 0 };
        let memory = self.memory.guest();
        Ok(memory.write_obj(entry, GuestAddress(ALIAS_ENTRY))?)
    }

    /// Enables interrupts and sends one interrupt, which is taken before the next instruction unless held back.
    pub(super) fn raise_interrupt(&mut self) -> Result<(), SelfTestError> {
        let mut lapic = self.fd.get_lapic().map_err(refused("KVM_GET_LAPIC"))?;
        lapic.regs[APIC_SPURIOUS + 1] |= APIC_ON;
        self.fd
            .set_lapic(&lapic)
            .map_err(refused("KVM_SET_LAPIC"))?;
        let message = kvm_msi {
            address_lo: MSI_ADDRESS,
            data: INTERRUPT.into(),
            ..Default::default()
        };
        self.vm
            .signal_msi(message)
            .map_err(refused("KVM_SIGNAL_MSI"))?;
        let mut regs = self.regs()?;
        regs.rflags |= RFLAGS_IF;
        self.fd.set_regs(&regs).map_err(refused("KVM_SET_REGS"))
    }

    pub(super) fn read(&self, at: u64) -> Result<u64, SelfTestError> {
        Ok(self.memory.guest().read_obj(GuestAddress(at))?)
    }

    pub(super) fn events(&self) -> Result<kvm_vcpu_events, SelfTestError> {
        self.fd
            .get_vcpu_events()
            .map_err(refused("KVM_GET_VCPU_EVENTS"))
    }

    pub(super) fn set_events(&mut self, events: &kvm_vcpu_events) -> Result<(), SelfTestError> {
        self.fd
            .set_vcpu_events(events)
            .map_err(refused("KVM_SET_VCPU_EVENTS"))
    }

    /// Makes KVM drop all its mappings: the guest's next access to each page exits, and KVM maps the page.
    pub(super) fn forget_mappings(&self) {
        for region in self.memory.regions() {
            let (Ok(host), Ok(bytes)) =
                (usize::try_from(region.host), usize::try_from(region.bytes))
            else {
                continue;
            };
            let host = host as *mut libc::c_void;
            for access in [libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
                // SAFETY: the mapping belongs to `self.memory` and has exactly this size, and no thread accesses the memory
                // between the two calls: the vCPU belongs to this thread and does not run.
                unsafe { libc::mprotect(host, bytes, access) };
            }
        }
    }

    /// Denies the guest each access to the page at `at`, or allows the accesses again.
    pub(super) fn set_accessible(&self, at: u64, is_accessible: bool) {
        let access = match is_accessible {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_NONE,
        };
        let region = self.memory.regions().first().copied();
        let page = region.and_then(|region| usize::try_from(region.host + at).ok());
        if let Some(page) = page {
            // SAFETY: the page is in the memory's only region, and the VMM does not access the memory before the page is accessible again.
            unsafe { libc::mprotect(page as *mut libc::c_void, PAGE_BYTES, access) };
        }
    }

    /// Runs until the next exit, but for no longer than `time`. Returns whether the time was over first.
    pub(super) fn is_interrupted_after(&mut self, time: Duration) -> bool {
        let target = KickTarget::default();
        let registration = kick::Registration::new(&mut self.fd, &target);
        let watchdog = Watchdog::once(time);
        let ran = self.fd.run();
        let interrupted = matches!(ran, Err(error) if error.errno() == libc::EINTR);
        drop(watchdog);
        drop(registration);
        kick::clear(&mut self.fd);
        interrupted
    }

    /// Runs until the next exit, or until patience ends. Any failure to run is [`Exit::Other`].
    pub(super) fn run(&mut self) -> Exit {
        let target = KickTarget::default();
        let _registration = kick::Registration::new(&mut self.fd, &target);
        let _watchdog = Watchdog::every(KICK_EVERY);
        for _ in 0..PATIENCE_KICKS {
            return match self.fd.run() {
                Ok(VcpuExit::IoOut(port, &[byte])) if port == u16::from(VECTOR_PORT) => {
                    Exit::Vector(byte)
                }
                Ok(VcpuExit::IoOut(port, _)) if port == u16::from(END_PORT) => Exit::End,
                Ok(VcpuExit::IoOut(port, &[_])) => Exit::Port { port },
                Ok(VcpuExit::Debug(debug)) => Exit::Debug {
                    exception: debug.exception,
                    dr6: debug.dr6,
                },
                Ok(VcpuExit::MmioWrite(gpa, _)) => Exit::Write { gpa },
                Ok(VcpuExit::InternalError) => Exit::EmulationFailure,
                Ok(VcpuExit::X86Wrmsr(write)) => {
                    *write.error = 0;
                    Exit::MsrWrite { index: write.index }
                }
                Ok(VcpuExit::Intr) => continue,
                Err(error) if error.errno() == libc::EINTR => {
                    kick::clear(&mut self.fd);
                    continue;
                }
                Ok(_) | Err(_) => Exit::Other,
            };
        }
        Exit::None
    }
}
