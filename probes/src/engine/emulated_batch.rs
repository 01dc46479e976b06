//! A batch: the instructions that one exit at a hidden page executes.

use address::{Gpa, Gva, PAGE_BYTES};
use introspect::insn::MAX_LENGTH_BYTES;
use text::{GuestError, OwnBreakpoints, Spot, SystemState, Vcpu};
use vmm::Shadow;

/// RFLAGS.IF.
const INTERRUPT_FLAG: u64 = 1 << 9;

/// Whether the vCPU accepts interrupts, and NMIs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    interrupts: bool,
    nmis: bool,
}

impl Attention {
    pub(super) fn of(vcpu: &mut dyn Vcpu) -> Result<Self, GuestError> {
        let blocking = vcpu.blocking()?;
        let is_enabled = vcpu.regs()?.rflags & INTERRUPT_FLAG != 0;
        Ok(Self {
            interrupts: is_enabled && blocking.shadow == Shadow::None,
            nmis: !blocking.nmis,
        })
    }

    /// Whether the vCPU accepts more `now`.
    pub(super) const fn rises(self, now: Self) -> bool {
        (now.interrupts && !self.interrupts) || (now.nmis && !self.nmis)
    }
}

/// The page of the last instruction, while one exit executes several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FetchedPage {
    pub(super) at: Gva,
    /// `None` outside of RAM.
    pub(super) gpa: Option<Gpa>,
    pub(super) privilege: u8,
}

impl FetchedPage {
    /// The location of an instruction that is on the page as a whole.
    pub(super) fn spot(&self, state: &SystemState, at: Gva) -> Option<Spot> {
        let is_whole = at.page_offset() <= PAGE_BYTES - MAX_LENGTH_BYTES as u64;
        let gpa = self.gpa.filter(|_| is_whole)?;
        let is_here = at.page() == self.at && state.privilege == self.privilege;
        is_here.then(|| Spot {
            gpa: gpa.wrapping_add(at.page_offset()),
            beyond: None,
        })
    }
}

/// The most instructions that one exit executes on hidden pages: interrupts for the vCPU wait as long.
pub(super) const MOST_EMULATED: usize = 256;

/// Raises the guest's own breakpoint at the instruction at `at`, which is about to be emulated, if a debug register of the guest has one.
pub(super) fn raise_own_breakpoint(vcpu: &mut dyn Vcpu, at: Gva) -> Result<bool, GuestError> {
    let fired = OwnBreakpoints::new(vcpu.debug_registers()?).at_instruction(at);
    if fired == 0 || vcpu.blocking()?.shadow == Shadow::MovSs {
        return Ok(false);
    }
    vcpu.inject_own_breakpoint(fired)?;
    Ok(true)
}
