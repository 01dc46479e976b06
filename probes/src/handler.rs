//! Handlers: what a program that uses this crate wants to do at a hit.
//!
//! Handlers run in the VMM, on the thread of the vCPU that hit, while the other vCPUs run on. They cannot recurse into
//! the guest. They must not wait for another vCPU.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use introspect::{Gva, read_virt};

use crate::guest::{GuestError, Vcpu};
use crate::hit::{KernelTables, Table};
use crate::plant::Planter;

/// What happens after a pre-handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PreOutcome {
    /// The probed instruction is executed, with the registers as the handler left them.
    #[default]
    Continue,
    /// The vCPU goes on at the RIP that the handler has set: the probed instruction is not executed, no further
    /// pre-handler and no post-handler is called.
    Resume,
}

/// A fault that the probed instruction raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionFault {
    /// The exception's vector: 14 for a page fault.
    pub vector: u8,
    /// Its error code; zero for those that have none.
    pub error_code: u32,
    /// CR2, for a page fault; zero for others.
    pub address: Gva,
}

/// What happens after a fault-handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FaultOutcome {
    /// The guest takes the fault, with the registers as the handler left them.
    #[default]
    ToGuest,
    /// The guest does not learn of it: the vCPU goes on with the registers that the handler has set. Left at the
    /// instruction, it hits again.
    Swallowed,
}

/// Called at the hits of a probe.
pub trait Handler: Send + Sync {
    /// The probed instruction is about to be executed.
    fn pre(&self, _hit: &mut HitContext<'_>) -> PreOutcome {
        PreOutcome::Continue
    }

    /// Whether [`post`](Self::post) does anything. Without, the guest need not be stopped a second time behind an
    /// instruction that its processor has to execute.
    fn has_post(&self) -> bool {
        true
    }

    /// The probed instruction has been executed.
    fn post(&self, _hit: &mut HitContext<'_>) {}

    /// The probed instruction raises a fault, before the guest sees it: any exception but #DB. RIP is the address of the
    /// probed instruction; a repeated one may have been executed in part.
    fn fault(&self, _hit: &mut HitContext<'_>, _fault: InstructionFault) -> FaultOutcome {
        FaultOutcome::ToGuest
    }
}

/// Whether a call is followed to its return.
pub enum EntryOutcome {
    /// It is; the value is handed to [`ReturnHandler::ret`].
    Track(Box<dyn Any + Send>),
    /// It is not.
    Decline,
}

impl fmt::Debug for EntryOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Track(_) => "Track",
            Self::Decline => "Decline",
        })
    }
}

/// Called at the entry and the return of a function.
pub trait ReturnHandler: Send + Sync {
    /// The function is about to run.
    fn entry(&self, _hit: &mut HitContext<'_>) -> EntryOutcome {
        EntryOutcome::Track(Box::new(()))
    }

    /// The function has returned: RAX is what it returned, RIP is behind the call. `data` is what
    /// [`entry`](Self::entry) gave for this call.
    fn ret(&self, hit: &mut HitContext<'_>, data: Box<dyn Any + Send>);
}

/// A handler, as the engine keeps it.
pub(crate) struct Shared<T: ?Sized>(pub(crate) Arc<T>);

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("handler")
    }
}

/// A vCPU at a probe, in the hands of a handler.
pub struct HitContext<'a> {
    pub(crate) vcpu: &'a mut dyn Vcpu,
    pub(crate) planter: &'a Planter,
    /// What is planted: a handler may rewrite probed text.
    pub(crate) table: &'a ArcSwap<Table>,
    pub(crate) regs: vmm::kvm_regs,
    pub(crate) changed: bool,
    /// Where the kernel's half of the address space is looked up, without asking the vCPU.
    pub(crate) kernel: Option<KernelTables<'a>>,
}

impl fmt::Debug for HitContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HitContext")
            .field("regs", &self.regs)
            .finish_non_exhaustive()
    }
}

impl<'a> HitContext<'a> {
    pub(crate) fn new(
        vcpu: &'a mut dyn Vcpu,
        planter: &'a Planter,
        table: &'a ArcSwap<Table>,
        regs: vmm::kvm_regs,
    ) -> Self {
        Self {
            vcpu,
            planter,
            table,
            regs,
            changed: false,
            kernel: None,
        }
    }

    /// Which vCPU, from 0.
    #[must_use]
    pub fn vcpu(&self) -> usize {
        self.vcpu.index()
    }

    /// The registers. RIP is the address of the probed instruction before it is executed, and of the next one after.
    #[must_use]
    pub fn regs(&self) -> &vmm::kvm_regs {
        &self.regs
    }

    /// The registers, to change them. A changed RIP counts with [`PreOutcome::Resume`] only.
    pub fn regs_mut(&mut self) -> &mut vmm::kvm_regs {
        self.changed = true;
        &mut self.regs
    }

    /// Reads guest-virtual memory as the guest sees it, without plants.
    ///
    /// # Errors
    ///
    /// When it is not mapped, or not memory.
    pub fn read(&mut self, at: Gva, buf: &mut [u8]) -> Result<(), AccessError> {
        if let Some(kernel) = &self.kernel
            && kernel.read(self.planter, at, buf)
        {
            return Ok(());
        }
        let state = self.vcpu.system_state()?;
        read_virt(&self.planter.own(), &state.paging, at, buf)
            .map_err(|_| AccessError::NotReadable { at, len: buf.len() })
    }

    /// Reads a 64-bit value.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_u64(&mut self, at: Gva) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes guest-virtual memory, whatever the page tables permit the guest.
    ///
    /// # Errors
    ///
    /// When it is not mapped, or not memory; some of it may have been written then.
    pub fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), AccessError> {
        let state = self.vcpu.system_state()?;
        let failed = AccessError::NotWritable {
            at,
            len: bytes.len(),
        };
        let mut done = 0;
        while done < bytes.len() {
            let here = at.wrapping_add(done as u64);
            let room = usize::try_from(0x1000 - here.page_offset()).unwrap_or(1);
            // A write onto a planted page is merged, at most 8 bytes at a time.
            let len = room.min(bytes.len() - done).min(8);
            let gpa = introspect::walk(&self.planter, &state.paging, here)
                .map_err(|_| failed.clone())?
                .gpa;
            self.planter
                .write_own(gpa, &bytes[done..done + len])
                .map_err(|_| failed.clone())?;
            for plant in self.table.load().touched(gpa, len) {
                plant.refresh(self.planter);
            }
            done += len;
        }
        Ok(())
    }

    /// At a function's entry: leaves the function at once, as if it had returned `value`. Answer
    /// [`PreOutcome::Resume`] then.
    ///
    /// # Errors
    ///
    /// When the return address cannot be read.
    pub fn return_now(&mut self, value: u64) -> Result<(), AccessError> {
        let target = self.read_u64(Gva(self.regs.rsp))?;
        let regs = self.regs_mut();
        regs.rip = target;
        regs.rsp = regs.rsp.wrapping_add(8);
        regs.rax = value;
        Ok(())
    }
}

/// Guest memory could not be reached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read.
    #[error("cannot read {len} bytes at {at}")]
    NotReadable {
        /// Guest-virtual address.
        at: Gva,
        /// Bytes.
        len: usize,
    },
    /// It cannot be written.
    #[error("cannot write {len} bytes at {at}")]
    NotWritable {
        /// Guest-virtual address.
        at: Gva,
        /// Bytes.
        len: usize,
    },
    /// The vCPU's registers cannot be had.
    #[error("{0}")]
    Vcpu(String),
}

impl From<GuestError> for AccessError {
    fn from(error: GuestError) -> Self {
        Self::Vcpu(error.to_string())
    }
}
