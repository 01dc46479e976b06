//! A fake guest: a vector of bytes as memory, and a vCPU that records requests. Each request can fail on demand.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use address::{Gpa, Gva};
use introspect::insn::Segments;
use introspect::{PagingState, PhysMemory, Unreadable};
use vmm::{DetourSize, HardwareBreakpoint, HardwareBreakpoints, PageRange, Protection};

use crate::{GuestError, GuestMemory, InstructionFault, Paused, SystemState, Unwritable, Vcpu};

/// Counts requests, and lets some of them fail. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    made: usize,
    /// The numbers of the failing requests; the first request has number 1.
    failing: std::ops::Range<usize>,
}

impl Requests {
    fn plan(&self, failing: std::ops::Range<usize>) {
        *self.0.lock().expect("lock") = Plan { made: 0, failing };
    }

    /// Lets the `n`-th request from now on fail; with 0, no request fails.
    pub fn fail(&self, n: usize) {
        self.plan(n..n + usize::from(n > 0));
    }

    /// Lets the `n`-th request from now on fail, and all later requests.
    pub fn fail_from(&self, n: usize) {
        self.plan(n..usize::MAX);
    }

    /// The number of requests.
    pub fn made(&self) -> usize {
        self.0.lock().expect("lock").made
    }

    fn make(&self) -> Result<(), GuestError> {
        let mut plan = self.0.lock().expect("lock");
        plan.made += 1;
        if plan.failing.contains(&plan.made) {
            return Err(GuestError::Injected(plan.made));
        }
        Ok(())
    }
}

/// Memory from guest-physical `base` on. Writes are requests that can fail.
#[derive(Debug)]
pub struct FakeMemory {
    base: u64,
    bytes: Mutex<Vec<u8>>,
    pub requests: Requests,
}

impl FakeMemory {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self::based(0, bytes)
    }

    fn based(base: u64, bytes: Vec<u8>) -> Self {
        Self {
            base,
            bytes: Mutex::new(bytes),
            requests: Requests::default(),
        }
    }

    /// Memory as the guest reads it.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("lock").clone()
    }

    /// Writes without a request.
    pub fn put(&self, gpa: u64, bytes: &[u8]) {
        let at = usize::try_from(gpa - self.base).expect("small");
        self.bytes.lock().expect("lock")[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl FakeMemory {
    fn range(&self, gpa: Gpa, len: usize, size: usize) -> Option<Range<usize>> {
        let start = usize::try_from(gpa.0.checked_sub(self.base)?).ok()?;
        let end = start.checked_add(len)?;
        (end <= size).then_some(start..end)
    }
}

impl PhysMemory for FakeMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let bytes = self.bytes.lock().expect("lock");
        let len = buf.len();
        let range = self
            .range(gpa, len, bytes.len())
            .ok_or(Unreadable { gpa, len })?;
        buf.copy_from_slice(&bytes[range]);
        Ok(())
    }
}

impl GuestMemory for FakeMemory {
    fn write(&self, gpa: Gpa, data: &[u8]) -> Result<(), Unwritable> {
        let failed = Unwritable {
            gpa,
            len: data.len(),
        };
        self.requests.make().map_err(|_| failed)?;
        let mut bytes = self.bytes.lock().expect("lock");
        let range = self.range(gpa, data.len(), bytes.len()).ok_or(failed)?;
        bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        let failed = Unwritable {
            gpa,
            len: new.len(),
        };
        self.requests.make().map_err(|_| failed)?;
        let mut bytes = self.bytes.lock().expect("lock");
        let range = self.range(gpa, new.len(), bytes.len()).ok_or(failed)?;
        let equal = bytes[range.clone()] == *old;
        if equal {
            bytes[range].copy_from_slice(new);
        }
        Ok(equal)
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        let len = self.bytes.lock().expect("lock").len() as u64;
        vec![Gpa(self.base)..Gpa(self.base + len)]
    }
}

/// The address of detour memory.
pub const DETOUR_GPA: u64 = 0x10_0000_0000;

/// A paused machine. Requests can fail.
#[derive(Debug, Default)]
pub struct FakePaused {
    read_only: Mutex<Vec<PageRange>>,
    breakpoints: Mutex<HardwareBreakpoints>,
    detour: Mutex<Option<Arc<FakeMemory>>>,
    /// The protected pages.
    pub protected: Mutex<BTreeMap<Gpa, Protection>>,
    /// Whether the guest may write to the protected pages.
    pub lifted: AtomicBool,
    /// The number of vCPUs besides the first.
    pub further_vcpus: usize,
    /// The RIPs of the vCPUs.
    pub rips: Mutex<Vec<Gva>>,
    /// Whether a vCPU handles an NMI.
    pub in_nmi: AtomicBool,
    pub requests: Requests,
}

impl FakePaused {
    /// The detour memory, if mapped.
    pub fn detour(&self) -> Option<Arc<FakeMemory>> {
        self.detour.lock().expect("lock").clone()
    }

    /// A machine that shares the request count of `memory`.
    pub fn beside(memory: &FakeMemory) -> Self {
        Self {
            requests: memory.requests.clone(),
            ..Self::default()
        }
    }

    /// The start and the end of each read-only range.
    pub fn read_only(&self) -> Vec<(u64, u64)> {
        let ranges = self.read_only.lock().expect("lock");
        ranges
            .iter()
            .map(|range| (range.start.0, range.end.0))
            .collect()
    }

    /// The addresses of the debug registers for execution.
    pub fn breakpoints(&self) -> [Option<Gva>; 4] {
        self.registers().map(|register| match register {
            Some(HardwareBreakpoint::Execute(at)) => Some(at),
            Some(HardwareBreakpoint::Write(..)) | None => None,
        })
    }

    /// The uses of all debug registers.
    pub fn registers(&self) -> [Option<HardwareBreakpoint>; 4] {
        self.breakpoints.lock().expect("lock").0
    }
}

impl Paused for FakePaused {
    fn vcpus(&self) -> usize {
        1 + self.further_vcpus
    }

    fn set_read_only(&self, ranges: &[PageRange]) -> Result<(), GuestError> {
        self.requests.make()?;
        *self.read_only.lock().expect("lock") = ranges.to_vec();
        Ok(())
    }

    fn protect_pages(&self, pages: &BTreeMap<Gpa, Protection>) -> Result<(), GuestError> {
        self.requests.make()?;
        self.protected.lock().expect("lock").clone_from(pages);
        Ok(())
    }

    fn lift_protection(&self, lifted: bool) -> Result<(), GuestError> {
        self.requests.make()?;
        self.lifted.store(lifted, Ordering::Relaxed);
        Ok(())
    }

    fn map_detour(&self, size: DetourSize) -> Result<(Gpa, Arc<dyn GuestMemory>), GuestError> {
        self.requests.make()?;
        let bytes = usize::try_from(size.read_only + size.writable).expect("small");
        let memory = Arc::new(FakeMemory::based(DETOUR_GPA, vec![0; bytes]));
        *self.detour.lock().expect("lock") = Some(Arc::clone(&memory));
        Ok((Gpa(DETOUR_GPA), memory))
    }

    fn vcpu_rips(&self) -> Vec<Gva> {
        self.rips.lock().expect("lock").clone()
    }

    fn vcpu_states(&self) -> Result<Vec<vmm::VcpuState>, GuestError> {
        let rips = self.rips.lock().expect("lock");
        let at = |rip: &Gva| {
            let regs = vmm::kvm_regs {
                rip: rip.0,
                ..Default::default()
            };
            vmm::VcpuState {
                regs,
                ..Default::default()
            }
        };
        Ok(rips.iter().map(at).collect())
    }

    fn is_in_nmi(&self) -> bool {
        self.in_nmi.load(Ordering::Relaxed)
    }

    fn set_breakpoints(&self, breakpoints: HardwareBreakpoints) {
        *self.breakpoints.lock().expect("lock") = breakpoints;
    }
}

/// An exception injected into a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    Breakpoint(Gva),
    /// #DB, with the bits of DR6.
    OwnBreakpoint(u64),
    PageFault {
        address: Gva,
        error_code: u32,
    },
    Exception {
        vector: u8,
        error_code: u32,
    },
}

/// A stopped vCPU.
#[derive(Debug, Default)]
pub struct FakeVcpu {
    pub index: usize,
    pub regs: vmm::kvm_regs,
    pub state: SystemState,
    /// The system registers, except the paging registers, which are in `state`.
    pub sregs: vmm::kvm_sregs,
    pub msrs: BTreeMap<u32, u64>,
    pub xcr0: u64,
    pub pkru: u32,
    pub injected: Vec<Injected>,
    /// The port writes: port and data.
    pub ports: Vec<(u16, Vec<u8>)>,
    /// Whether the vCPU exited at an `outs` in front of RIP.
    pub behind_outs: bool,
    pub blocking: vmm::Blocking,
    /// The vector of an event that is delivered again.
    pub undelivered: Option<u8>,
    pub halted: bool,
    /// The guest's own debug registers.
    pub debug_registers: vmm::kvm_debugregs,
    pub requests: Requests,
}

impl FakeVcpu {
    /// A vCPU in ring 0 at `rip`, with 4-level tables at `cr3`.
    pub fn at(rip: Gva, cr3: u64) -> Self {
        Self {
            regs: vmm::kvm_regs {
                rip: rip.0,
                rflags: 2,
                ..Default::default()
            },
            state: SystemState {
                paging: PagingState::four_level(cr3),
                write_protect: true,
                ..SystemState::default()
            },
            ..Self::default()
        }
    }
}

impl Vcpu for FakeVcpu {
    fn set_segments(&mut self, segments: &Segments) -> Result<(), GuestError> {
        self.requests.make()?;
        self.state.system.segments = *segments;
        self.state.privilege = segments.ss.privilege_level().to_le_bytes()[0];
        Ok(())
    }

    fn read_msr(&mut self, index: u32) -> Result<u64, GuestError> {
        self.requests.make()?;
        Ok(self.msrs.get(&index).copied().unwrap_or(0))
    }

    fn write_msrs(&mut self, registers: &[(u32, u64)]) -> Result<(), GuestError> {
        self.requests.make()?;
        self.msrs.extend(registers.iter().copied());
        Ok(())
    }

    fn blocking(&mut self) -> Result<vmm::Blocking, GuestError> {
        self.requests.make()?;
        Ok(self.blocking)
    }

    fn set_blocking(&mut self, blocking: vmm::Blocking) -> Result<(), GuestError> {
        self.requests.make()?;
        self.blocking = blocking;
        Ok(())
    }

    fn undelivered_event(&mut self) -> Result<Option<u8>, GuestError> {
        self.requests.make()?;
        Ok(self.undelivered)
    }

    fn halt(&mut self) -> Result<(), GuestError> {
        self.requests.make()?;
        self.blocking.shadow = vmm::Shadow::None;
        self.halted = true;
        Ok(())
    }

    fn write_port(&mut self, port: u16, data: &[u8]) {
        self.ports.push((port, data.to_vec()));
    }

    fn is_behind_outs(&mut self) -> Result<bool, GuestError> {
        self.requests.make()?;
        Ok(self.behind_outs)
    }

    fn read_port(&mut self, port: u16, data: &mut [u8]) {
        data.fill(port.to_le_bytes()[0]);
    }

    fn index(&self) -> usize {
        self.index
    }

    fn pkru(&mut self) -> Result<u32, GuestError> {
        self.requests.make()?;
        Ok(self.pkru)
    }

    fn xcr0(&mut self) -> Result<u64, GuestError> {
        self.requests.make()?;
        Ok(self.xcr0)
    }

    fn regs(&mut self) -> Result<vmm::kvm_regs, GuestError> {
        self.requests.make()?;
        Ok(self.regs)
    }

    fn set_regs(&mut self, regs: &vmm::kvm_regs) -> Result<(), GuestError> {
        self.requests.make()?;
        self.regs = *regs;
        Ok(())
    }

    fn system_state(&mut self) -> Result<SystemState, GuestError> {
        self.requests.make()?;
        Ok(self.state)
    }

    fn inject_breakpoint(&mut self, at: Gva) -> Result<(), GuestError> {
        self.requests.make()?;
        self.injected.push(Injected::Breakpoint(at));
        Ok(())
    }

    fn debug_registers(&mut self) -> Result<vmm::kvm_debugregs, GuestError> {
        self.requests.make()?;
        Ok(self.debug_registers)
    }

    fn inject_own_breakpoint(&mut self, fired: u64) -> Result<(), GuestError> {
        self.requests.make()?;
        self.injected.push(Injected::OwnBreakpoint(fired));
        Ok(())
    }

    fn inject(&mut self, fault: InstructionFault) -> Result<(), GuestError> {
        self.requests.make()?;
        let InstructionFault {
            vector,
            error_code,
            address,
        } = fault;
        self.injected.push(match vector {
            14 => Injected::PageFault {
                address,
                error_code,
            },
            _ => Injected::Exception { vector, error_code },
        });
        Ok(())
    }

    fn sregs(&mut self) -> Result<vmm::kvm_sregs, GuestError> {
        self.requests.make()?;
        let PagingState {
            cr0,
            cr3,
            cr4,
            efer,
        } = self.state.paging;
        Ok(vmm::kvm_sregs {
            cr0,
            cr3,
            cr4,
            efer,
            ..self.sregs
        })
    }

    fn set_sregs(&mut self, sregs: &vmm::kvm_sregs) -> Result<(), GuestError> {
        self.requests.make()?;
        self.sregs = *sregs;
        Ok(())
    }
}
