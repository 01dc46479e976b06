//! The general registers of paused vCPUs.
//!
//! Only a vCPU's own thread reads the vCPU's general registers. Each vCPU therefore publishes them before it counts as parked, for
//! the holder of the pause.

use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gva;
use kvm_bindings::kvm_regs;

/// The last published registers and NMI state of each vCPU.
#[derive(Debug)]
pub(crate) struct Rips(Mutex<Vec<Option<Stand>>>);

/// General registers and NMI state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stand {
    pub(super) regs: kvm_regs,
    /// NMIs are held back: the vCPU handles an NMI.
    pub(super) in_nmi: bool,
}

impl Rips {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self(Mutex::new(vec![None; vcpus]))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Stand>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the registers and the NMI state of `vcpu`. Called on the vCPU's thread, before the vCPU parks.
    pub(super) fn say(&self, vcpu: usize, stand: Stand) {
        self.lock()[vcpu] = Some(stand);
    }

    /// The RIPs of all vCPUs that have been started. Called with the vCPUs paused.
    pub(crate) fn all(&self) -> Vec<Gva> {
        self.lock()
            .iter()
            .flatten()
            .map(|stand| Gva(stand.regs.rip))
            .collect()
    }

    /// The general registers of each vCPU; `None` for a vCPU that has not been started. Called with the vCPUs paused.
    pub(crate) fn registers(&self) -> Vec<Option<kvm_regs>> {
        let stands = self.lock();
        stands.iter().map(|stand| Some((*stand)?.regs)).collect()
    }

    /// Whether any vCPU handles an NMI. Called with the vCPUs paused.
    pub(crate) fn is_one_in_nmi(&self) -> bool {
        self.lock().iter().flatten().any(|stand| stand.in_nmi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_that_has_not_started_has_no_rip() {
        let rips = Rips::new(3);
        assert!(rips.all().is_empty());
        let at = |rip, in_nmi| Stand {
            regs: kvm_regs {
                rip,
                ..Default::default()
            },
            in_nmi,
        };
        rips.say(2, at(0x2000, true));
        assert!(rips.is_one_in_nmi());
        rips.say(0, at(0x1000, false));
        rips.say(2, at(0x3000, false));
        assert_eq!(rips.all(), [Gva(0x1000), Gva(0x3000)]);
        assert!(!rips.is_one_in_nmi());
        let rips = rips.registers().into_iter();
        let rips: Vec<Option<u64>> = rips.map(|regs| Some(regs?.rip)).collect();
        assert_eq!(rips, [Some(0x1000), None, Some(0x3000)]);
    }
}
