//! Construction of a machine: VM, RAM, devices, loaded kernel and vCPUs.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use kvm_bindings::{KVM_CAP_SPLIT_IRQCHIP, kvm_enable_cap, kvm_msi};
use kvm_ioctls::{VcpuFd, VmFd};

use super::Machine;
use super::ending::{End, Ending};
use super::int3_exits::Int3Exits;
use super::shared::Shared;
use crate::boot::{self, BootError, BootMethod, BootRequest, KernelFile, LoadedKernel};
use crate::devices::{
    IOAPIC_PINS, MsiSink, Platform, PlatformConfig, PlatformError, SerialInput, Shutdown,
};
use crate::kvm::{
    CAP_EXIT_ON_EMULATION_FAILURE, Host, HostFacts, disable_quirks, report_msr_writes,
};
use crate::memory::{Ram, RamError, SlotError, Slots, detour_place};
use crate::vcpu::rips::Rips;
use crate::vcpu::state::StateReaders;
use crate::vcpu::{HardwareBreakpoints, VcpuError, cpuid_for_vcpu};

/// The MSR with the address of a 64-bit kernel's system-call entry. The guest's write of the MSR shows where the kernel is.
pub const MSR_LSTAR: u32 = 0xc000_0082;

/// The host's end of the guest's serial console.
pub struct Console {
    /// Takes the guest's output, byte by byte.
    pub output: Box<dyn Write + Send>,
    /// The source of the guest's input, if any.
    pub input: Option<File>,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

/// The machine to build, and the kernel to boot.
#[derive(Debug)]
pub struct MachineConfig<'a> {
    /// The kernel.
    pub kernel: &'a KernelFile,
    /// The ELF `vmlinux`, from [`KernelFile::vmlinux`].
    pub vmlinux: &'a [u8],
    /// How the kernel is started.
    pub method: BootMethod,
    /// The initrd or initramfs archive.
    pub initrd: Option<&'a [u8]>,
    /// The kernel's command line.
    pub cmdline: &'a str,
    /// RAM, bytes.
    pub memory_bytes: u64,
    /// Number of vCPUs.
    pub cpus: u8,
    /// The serial console.
    pub console: Console,
    /// Whether a test guest may end the run through port 0xf4.
    pub debug_exit: bool,
    /// Which `int3`s KVM is asked to intercept.
    pub int3: Int3Exits,
}

/// Why a machine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// KVM refused a request.
    #[error("KVM refused {request}")]
    Request {
        /// The ioctl.
        request: &'static str,
        /// KVM's answer.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// The configuration has more vCPUs than KVM runs.
    #[error("{wanted} vCPUs are more than the {available} that this KVM runs")]
    TooManyVcpus {
        /// Number of vCPUs in the configuration.
        wanted: u8,
        /// Largest number of vCPUs that KVM runs.
        available: usize,
    },
    /// A request about a vCPU.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// Guest memory.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// A memory slot.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The kernel, or the data that the kernel gets at boot.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The devices.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The console's input.
    #[error("cannot use the console's input")]
    Input(#[source] io::Error),
}

fn refused(request: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> CreateError {
    move |source| CreateError::Request { request, source }
}

/// Delivers the IOAPIC's interrupts to KVM's local APICs.
struct KvmMsi(Arc<VmFd>);

impl MsiSink for KvmMsi {
    fn signal(&self, address: u64, data: u32) {
        #[expect(clippy::cast_possible_truncation, reason = "split into its halves")]
        let msi = kvm_msi {
            address_lo: address as u32,
            address_hi: (address >> 32) as u32,
            data,
            ..Default::default()
        };
        // 0: no LAPIC accepted the message, for instance because the guest masks the interrupt. An error: the guest's
        // message is invalid. Hardware drops both messages.
        let _ = self.0.signal_msi(msi);
    }
}

impl Machine {
    /// Builds a machine and loads the kernel. No vCPU runs until [`Machine::start`].
    ///
    /// # Errors
    ///
    /// When KVM refuses, memory or descriptors run out, or the kernel does not fit.
    pub fn new(
        host: &Host,
        facts: HostFacts,
        config: MachineConfig<'_>,
    ) -> Result<(Self, LoadedKernel), CreateError> {
        let capabilities = host.capabilities();
        if usize::from(config.cpus) > capabilities.max_vcpus {
            return Err(CreateError::TooManyVcpus {
                wanted: config.cpus,
                available: capabilities.max_vcpus,
            });
        }
        let vm = Arc::new(create_vm(host, facts.msr_exits)?);
        let memory = Ram::new(&boot::ram_regions(config.memory_bytes))?;
        let ram_end = memory.end();
        let mut slots = Slots::new(memory.regions(), capabilities.max_slots);
        slots.apply(&vm, &[])?;

        let (reason, ended) = channel();
        let ending = Arc::new(Ending::new(usize::from(config.cpus), reason));
        let platform = platform(
            &vm,
            &ending,
            config.console.output,
            config.memory_bytes,
            config.debug_exit,
        )?;
        let prepared = boot::prepare(
            memory.guest(),
            &BootRequest {
                kernel: config.kernel,
                vmlinux: config.vmlinux,
                method: config.method,
                initrd: config.initrd,
                cmdline: config.cmdline,
                vcpus: config.cpus,
                ram_bytes: config.memory_bytes,
            },
        )?;
        let vcpus = create_vcpus(host, &vm, config.cpus)?;
        let states =
            StateReaders::new(&vm, &vcpus).map_err(refused("a second descriptor of a vCPU"))?;
        let boot_cpu = &vcpus[0];
        let mut sregs = boot_cpu.get_sregs().map_err(refused("KVM_GET_SREGS"))?;
        boot::set_boot_sregs(&mut sregs);
        boot_cpu
            .set_sregs(&sregs)
            .map_err(refused("KVM_SET_SREGS"))?;
        let regs = boot::boot_regs(prepared.kernel.entry, prepared.zero_page);
        boot_cpu.set_regs(&regs).map_err(refused("KVM_SET_REGS"))?;

        let input = config
            .console
            .input
            .map(|input| SerialInput::new(Arc::clone(&platform.serial), input));
        let shared = Arc::new(Shared {
            vm,
            memory,
            slots: Mutex::new(slots),
            protected: Mutex::default(),
            has_protected: AtomicBool::new(false),
            detour_place: detour_place(ram_end, host.guest_physical_bits()),
            rips: Rips::new(usize::from(config.cpus)),
            states,
            gate: crate::vcpu::gate::Gate::default(),
            facts,
            int3: config.int3.on(&facts),
            sync_regs: capabilities.sync_regs,
            platform,
            ending,
            halted: (0..config.cpus).map(|_| AtomicBool::new(false)).collect(),
            breakpoints: Mutex::new(HardwareBreakpoints::default()),
            breakpoints_changed: AtomicU64::new(0),
        });
        let machine = Self {
            shared,
            vcpus,
            threads: Vec::new(),
            input,
            events: None,
            ended,
        };
        Ok((machine, prepared.kernel))
    }
}

fn create_vm(host: &Host, msr_exits: bool) -> Result<VmFd, CreateError> {
    let vm = host.kvm.create_vm().map_err(refused("KVM_CREATE_VM"))?;
    // VT-x without unrestricted guests needs three pages for the TSS, and a page for the identity map. Both lie below
    // the firmware's range, where no RAM is.
    vm.set_identity_map_address(0xfffb_c000)
        .map_err(refused("KVM_SET_IDENTITY_MAP_ADDR"))?;
    vm.set_tss_address(0xfffb_d000)
        .map_err(refused("KVM_SET_TSS_ADDR"))?;
    enable(&vm, KVM_CAP_SPLIT_IRQCHIP, u64::from(IOAPIC_PINS))?;
    if host.capabilities().exit_on_emulation_failure {
        enable(&vm, CAP_EXIT_ON_EMULATION_FAILURE, 1)?;
    }
    disable_quirks(&vm).map_err(refused("KVM_ENABLE_CAP"))?;
    if msr_exits {
        report_msr_writes(&vm, MSR_LSTAR).map_err(refused("KVM_X86_SET_MSR_FILTER"))?;
    }
    Ok(vm)
}

fn enable(vm: &VmFd, capability: u32, argument: u64) -> Result<(), CreateError> {
    let mut cap = kvm_enable_cap {
        cap: capability,
        ..Default::default()
    };
    cap.args[0] = argument;
    vm.enable_cap(&cap).map_err(refused("KVM_ENABLE_CAP"))
}

fn platform(
    vm: &Arc<VmFd>,
    ending: &Arc<Ending>,
    console: Box<dyn Write + Send>,
    ram_bytes: u64,
    debug_exit: bool,
) -> Result<Platform, PlatformError> {
    let ending = Arc::clone(ending);
    let shutdown = move |request| {
        ending.end(match request {
            Shutdown::PowerOff => End::PowerOff,
            Shutdown::Reset => End::Reset,
            Shutdown::Code(code) => End::Code(code),
        });
    };
    Platform::new(PlatformConfig {
        msi: Arc::new(KvmMsi(Arc::clone(vm))),
        shutdown: Arc::new(shutdown),
        console,
        ram_bytes,
        debug_exit,
    })
}

fn create_vcpus(host: &Host, vm: &VmFd, cpus: u8) -> Result<Vec<VcpuFd>, CreateError> {
    (0..cpus)
        .map(|index| {
            let fd = vm
                .create_vcpu(u64::from(index))
                .map_err(refused("KVM_CREATE_VCPU"))?;
            let cpuid = cpuid_for_vcpu(host, u32::from(index), u32::from(cpus))?;
            fd.set_cpuid2(&cpuid).map_err(refused("KVM_SET_CPUID2"))?;
            Ok(fd)
        })
        .collect()
}
