//! Points in the guest's life at which the engine has something to do of its own.

use std::sync::PoisonError;
use std::time::Instant;

use introspect::{Gva, read_virt};

use super::{Engine, Panicked};
use crate::ProbeState;
use crate::guest::{GuestError, Paused, Vcpu};
use crate::hit::Plant;
use crate::registry::{Milestone, Purpose};

/// No panic message is longer.
const MAX_MESSAGE_BYTES: usize = 256;

impl Engine {
    /// Does what the milestones at `plant` ask for. The vCPU stands at it, and the others are paused.
    pub(super) fn reach_milestones(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        plant: &Plant,
    ) -> Result<(), GuestError> {
        for (probe, _) in &plant.probes {
            let Purpose::Milestone(milestone) = probe.purpose else {
                continue;
            };
            match milestone {
                Milestone::BootPatched => {
                    self.boot_patched.set();
                    if let Err(error) = self.arm_pending(paused) {
                        self.refuse_pending(&error);
                    }
                }
                Milestone::InitFreed => {
                    let slide = self.located.get().map_or(0, |located| located.slide);
                    let in_init = |plant: &Plant| {
                        self.kernel
                            .is_init(Gva(plant.at.0.wrapping_sub(slide.cast_unsigned())))
                    };
                    if let Err(error) = self.disarm(paused, ProbeState::Gone, in_init) {
                        self.note(None, format!("plants in the init text stay: {error}"));
                    }
                }
                Milestone::Panic => self.record_panic(vcpu)?,
            }
        }
        Ok(())
    }

    fn record_panic(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let format = Gva(vcpu.regs()?.rdi);
        let state = vcpu.system_state()?;
        let mut message = Vec::new();
        for i in 0..MAX_MESSAGE_BYTES as u64 {
            let mut byte = [0];
            let read = read_virt(
                &self.memory.as_ref(),
                &state.paging,
                format.wrapping_add(i),
                &mut byte,
            );
            if read.is_err() || byte == [0] {
                break;
            }
            message.push(byte[0]);
        }
        let message = String::from_utf8_lossy(&message).trim_end().to_owned();
        self.note(None, format!("the kernel panics: {message}"));
        let mut panicked = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        panicked.get_or_insert(Panicked {
            message,
            at: Instant::now(),
        });
        Ok(())
    }
}
