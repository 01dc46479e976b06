//! Handlers: the code of this crate's user for hits.
//!
//! Handlers run in the VMM, on the thread of the vCPU with the hit, while the other vCPUs run on. Handlers cannot recurse into the guest,
//! and must not wait for another vCPU.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use address::{Gpa, Gva};
use text::{GuestError, InstructionFault, KernelTables, Planter, Vcpu};

use crate::hit_state::HitState;

/// The vCPU's action after a pre-handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PreOutcome {
    /// The vCPU executes the probed instruction, with the registers as set by the handler.
    #[default]
    Continue,
    /// The vCPU resumes at the RIP set by the handler. The probed instruction is not executed, and no further pre-handler or post-handler
    /// is called.
    Resume,
}

/// The vCPU's action after a fault-handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FaultOutcome {
    /// The guest takes the fault, with the registers as set by the handler.
    #[default]
    ToGuest,
    /// The guest does not see the fault: the vCPU resumes with the registers as set by the handler. If RIP stays at the instruction, the
    /// probe hits again.
    Swallowed,
}

/// Called at the hits of a probe.
pub trait Handler: Send + Sync {
    /// Called before the probed instruction is executed.
    fn pre(&self, _hit: &mut HitContext<'_>) -> PreOutcome {
        PreOutcome::Continue
    }

    /// Whether [`post`](Self::post) does anything. Otherwise the guest need not stop a second time behind an instruction that its processor
    /// has to execute.
    fn has_post(&self) -> bool {
        true
    }

    /// Called after the probed instruction was executed.
    fn post(&self, _hit: &mut HitContext<'_>) {}

    /// Called when the probed instruction raises a fault, before the guest sees the fault: any exception but #DB. RIP is the address of the
    /// probed instruction; a repeated instruction may have been executed in part.
    fn fault(&self, _hit: &mut HitContext<'_>, _fault: InstructionFault) -> FaultOutcome {
        FaultOutcome::ToGuest
    }
}

/// Whether the engine follows a call to its return.
pub enum EntryOutcome {
    /// The engine follows the call, and passes the value to [`ReturnHandler::ret`].
    Track(Box<dyn Any + Send>),
    /// The engine does not follow the call.
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
    /// Called before the function runs.
    fn entry(&self, _hit: &mut HitContext<'_>) -> EntryOutcome {
        EntryOutcome::Track(Box::new(()))
    }

    /// Called after the function returned: RAX is the return value, RIP is behind the call. `data` is the value from [`entry`](Self::entry)
    /// for the same call.
    fn ret(&self, hit: &mut HitContext<'_>, data: Box<dyn Any + Send>);
}

/// A handler, as stored by the engine.
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

/// The instructions under plants, for a handler that rewrites probed text.
pub(crate) trait PlantedInstructions {
    /// Decodes the instructions anew that may have bytes in `len` bytes from `gpa` on.
    fn refresh(&self, planter: &Planter, gpa: Gpa, len: usize);
}

/// A vCPU at a probe, for use by a handler.
pub struct HitContext<'a> {
    pub(crate) vcpu: &'a mut dyn Vcpu,
    pub(crate) planter: &'a Planter,
    pub(crate) planted: &'a dyn PlantedInstructions,
    pub(crate) regs: vmm::kvm_regs,
    pub(crate) changed: bool,
    /// The page tables for the kernel's half of the address space, without a request to the vCPU.
    pub(crate) kernel: Option<KernelTables<'a>>,
    /// The system registers, once requested.
    state: Option<HitState>,
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
        planted: &'a dyn PlantedInstructions,
        regs: vmm::kvm_regs,
    ) -> Self {
        Self {
            vcpu,
            planter,
            planted,
            regs,
            changed: false,
            kernel: None,
            state: None,
        }
    }

    /// The system registers and the walks of the page tables, by one request to the vCPU.
    pub(crate) fn state(&mut self) -> Result<&HitState, GuestError> {
        Ok(match &mut self.state {
            Some(state) => state,
            none => none.insert(self.vcpu.system_state()?.into()),
        })
    }

    /// Sets the system registers for all reads of the hit, in place of those of the vCPU.
    pub(crate) fn set_state(&mut self, state: HitState) {
        self.state = Some(state);
    }

    /// The number of the vCPU, from 0.
    #[must_use]
    pub fn vcpu(&self) -> usize {
        self.vcpu.index()
    }

    /// The registers. RIP is the address of the probed instruction before its execution, and of the next instruction afterwards.
    #[must_use]
    pub fn regs(&self) -> &vmm::kvm_regs {
        &self.regs
    }

    /// The registers, for changes. A changed RIP has an effect only with [`PreOutcome::Resume`].
    pub fn regs_mut(&mut self) -> &mut vmm::kvm_regs {
        self.changed = true;
        &mut self.regs
    }

    /// Reads guest-virtual memory with the original bytes under plants.
    ///
    /// # Errors
    ///
    /// If the address is not mapped, or not memory.
    pub fn read(&mut self, at: Gva, buf: &mut [u8]) -> Result<(), AccessError> {
        if let Some(kernel) = &self.kernel
            && kernel.read(self.planter, at, buf)
        {
            return Ok(());
        }
        let planter = self.planter;
        let walks = &self.state()?.walks;
        walks
            .read(&planter.own(), at, buf)
            .map_err(|_| AccessError::NotReadable { at, len: buf.len() })
    }

    /// Reads a 64-bit value.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_u64(&mut self, at: Gva) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes guest-virtual memory, even if the page tables forbid the guest to write.
    ///
    /// # Errors
    ///
    /// If the address is not mapped, or not memory; some bytes may have been written then.
    pub fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), AccessError> {
        let paging = self.state()?.registers.paging;
        let failed = AccessError::NotWritable {
            at,
            len: bytes.len(),
        };
        let mut done = 0;
        while done < bytes.len() {
            let here = at.wrapping_add(done as u64);
            let room = usize::try_from(0x1000 - here.page_offset()).unwrap_or(1);
            // A write to a planted page is merged, at most 8 bytes at a time.
            let len = room.min(bytes.len() - done).min(8);
            let gpa = introspect::walk(&self.planter, &paging, here)
                .map_err(|_| failed.clone())?
                .gpa;
            self.planter
                .write_own(gpa, &bytes[done..done + len])
                .map_err(|_| failed.clone())?;
            self.planted.refresh(self.planter, gpa, len);
            if let Some(state) = &mut self.state {
                state.forget_tables();
            }
            done += len;
        }
        Ok(())
    }

    /// Returns from the function at its entry, with the return value `value`. The handler must answer [`PreOutcome::Resume`] then.
    ///
    /// # Errors
    ///
    /// If the return address cannot be read.
    pub fn return_now(&mut self, value: u64) -> Result<(), AccessError> {
        let target = self.read_u64(Gva(self.regs.rsp))?;
        let regs = self.regs_mut();
        regs.rip = target;
        regs.rsp = regs.rsp.wrapping_add(8);
        regs.rax = value;
        Ok(())
    }
}

/// A failed access to guest memory.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccessError {
    /// The memory cannot be read.
    #[error("cannot read {len} bytes at {at}")]
    NotReadable {
        /// Guest-virtual address.
        at: Gva,
        /// Bytes.
        len: usize,
    },
    /// The memory cannot be written.
    #[error("cannot write {len} bytes at {at}")]
    NotWritable {
        /// Guest-virtual address.
        at: Gva,
        /// Bytes.
        len: usize,
    },
    /// A request to the vCPU failed.
    #[error("{0}")]
    Vcpu(String),
}

impl From<GuestError> for AccessError {
    fn from(error: GuestError) -> Self {
        Self::Vcpu(error.to_string())
    }
}
