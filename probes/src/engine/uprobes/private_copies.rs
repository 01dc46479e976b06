//! Private copies of probed pages. If a program writes to a page of a file that it maps, for instance with a debugger's breakpoint, the kernel
//! copies the page for the program. The copy is not hidden: executions there are no hits, so each copy is a miss.
//!
//! The kernel reads the hidden page for the copy, and each read of a hidden page exits. The functions on the kernel's stack tell this read from
//! a read of the file.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use events::ProbeId;
use text::{GuestError, Vcpu};

use crate::engine::reporter::Reporter;
use crate::engine::stacks::Stacks;
use crate::registry::{Missed, Probe};

/// The functions that copy pages without an event: for a program at a page fault, for a probe of the guest's own, and into a huge page.
const COPIERS: [&str; 3] = ["handle_mm_fault", "uprobe_write_opcode", "collapse_file"];

/// Counts private copies.
#[derive(Debug)]
pub(crate) struct PrivateCopies {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) stacks: Arc<Stacks>,
    /// The probes that have had a note.
    pub(crate) noted: Mutex<BTreeSet<ProbeId>>,
}

impl PrivateCopies {
    /// Counts a miss for each of `probes`, on pages that the vCPU has read, if the read makes a private copy. If the stack cannot be read up to
    /// its end, a copy is assumed.
    pub(crate) fn on_read<'p>(
        &self,
        vcpu: &mut dyn Vcpu,
        probes: impl Iterator<Item = &'p Arc<Probe>>,
    ) -> Result<(), GuestError> {
        let mut probes = probes.peekable();
        if probes.peek().is_none() {
            return Ok(());
        }
        let regs = vcpu.regs()?;
        let is_kernel = regs.rip >> 63 != 0;
        if !is_kernel {
            return Ok(());
        }
        let paging = vcpu.system_state()?.paging;
        if self.stacks.is_within(&paging, &regs, &COPIERS) != Some(false) {
            // A probe may be on several pages.
            let mut missed = BTreeSet::new();
            probes
                .filter(|probe| missed.insert(probe.id))
                .for_each(|probe| self.miss(probe));
        }
        Ok(())
    }

    /// Counts a private copy.
    pub(crate) fn miss(&self, probe: &Probe) {
        probe.counters.miss(Missed::Unprotected);
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.insert(probe.id) {
            let text = "the kernel has copied a page of the file, for a program that writes to the page or into a huge page: executions of the copy are no hits, and each copy is a miss";
            self.reporter.note(Some(probe), text.to_owned());
        }
    }
}
