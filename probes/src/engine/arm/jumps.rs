//! Jumps of the guest's optimised kprobes, over several instructions each.
//!
//! A guest that optimises a kprobe replaces five bytes of text by a jump to a copy of the displaced instructions. A plant on
//! any displaced instruction but the first would be part of the jump, and the probe would miss the executions of the copy.
//! The guest writes no jump while another kprobe is on a displaced instruction (`arch_check_optimized_kprobe` checks). The
//! engine makes the check count plants as kprobes.
//!
//! Plants placed after the guest's check remain. Before the guest writes the jump (`arch_optimize_kprobes`), the engine
//! removes such plants. After the write, the engine refuses probes there: the text shows the jump.

use address::{Gpa, Gva};
use introspect::optimise::JUMP_BYTES;
use text::{GuestError, Paused, Vcpu};

use crate::engine::arm::Armer;

/// The maximum number of kprobes optimised at once.
const MAX_OPTIMISED: usize = 4096;

pub(crate) const ELSEWHERE: &str =
    "a kprobe of the guest's own has this instruction executed elsewhere, in a copy";

impl Armer {
    /// Removes the plants under the jumps that the guest is about to write, for a list of kprobes. At the guest's check no
    /// plant was there, so the present plants are newer, and have to go.
    pub(crate) fn make_room_for_jumps(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
    ) -> Result<(), GuestError> {
        let Some(layout) = self.running.kernel.optimised_kprobes() else {
            return Ok(());
        };
        let head = Gva(vcpu.regs()?.rdi);
        let paging = vcpu.system_state()?.paging;
        let mut covered = Vec::new();
        let mut next = self.running.word(&paging, head).map(Gva);
        for _ in 0..MAX_OPTIMISED {
            let Some(link) = next.filter(|link| *link != head) else {
                break;
            };
            let kprobe = link.wrapping_add(layout.next.wrapping_neg());
            if let Some(at) = self
                .running
                .word(&paging, kprobe.wrapping_add(layout.address))
            {
                covered.extend(self.plants.planted_in(
                    &paging,
                    Gva(at.wrapping_add(1)),
                    JUMP_BYTES as u64 - 1,
                ));
            }
            next = self.running.word(&paging, link).map(Gva);
        }
        self.retire_covered(paused, &covered);
        Ok(())
    }

    fn retire_covered(&self, paused: &dyn Paused, covered: &[Gpa]) {
        if covered.is_empty() {
            return;
        }
        let table = self.plants.table.load_full();
        let planted = covered.iter().filter_map(|gpa| table.at_gpa(*gpa));
        let in_registers = table
            .only()
            .filter(|plant| covered.contains(&plant.spot.gpa));
        for plant in planted.chain(in_registers) {
            for (probe, _) in &plant.probes {
                self.probes.refuse(probe, ELSEWHERE.to_owned());
            }
        }
        if let Err(error) = self.reconcile(paused) {
            self.reporter
                .note(None, format!("plants stay where the guest jumps: {error}"));
        }
    }
}
