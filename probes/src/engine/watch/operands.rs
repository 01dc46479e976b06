//! The watched bytes that an instruction for the hardware reads, by the instruction's operands.

use address::PAGE_LEN;
use introspect::insn::{Decoded, is_repeated};
use introspect::walk;
use text::{GuestError, Vcpu, read_operands};

use super::Watches;
use super::lifted::OperandReads;

impl Watches {
    /// The memory that the instruction at the vCPU's RIP reads: [`OperandReads::NONE`] if no watchpoint has reads.
    pub(crate) fn reads_of(
        &self,
        vcpu: &mut dyn Vcpu,
        decoded: Option<&Decoded>,
    ) -> Result<OperandReads, GuestError> {
        if !self.table.load().has_reads() {
            return Ok(OperandReads::NONE);
        }
        let Some(decoded) = decoded else {
            return Ok(OperandReads::Unknown);
        };
        if self.detour.is_own(decoded.at()) {
            return Ok(OperandReads::NONE);
        }
        let (memory, planter) = (self.running.memory.as_ref(), &self.running.planter);
        let features = self.running.abilities.features;
        let Some(operands) = read_operands(vcpu, memory, planter, features, decoded)? else {
            return Ok(match is_repeated(decoded) {
                true => OperandReads::Repeated,
                false => OperandReads::Unknown,
            });
        };
        let paging = vcpu.system_state()?.paging;
        let mut ranges = Vec::new();
        for (at, len) in operands {
            let mut done = 0;
            while done < len {
                let at = at.wrapping_add(done as u64);
                let in_page = PAGE_LEN - usize::try_from(at.page_offset()).unwrap_or(0);
                let part = in_page.min(len - done);
                // The read of a page that is not mapped faults, and the instruction is executed again.
                if let Ok(found) = walk(&planter.own(), &paging, at) {
                    ranges.push((found.gpa, part));
                }
                done += part;
            }
        }
        Ok(OperandReads::Known(ranges))
    }
}
