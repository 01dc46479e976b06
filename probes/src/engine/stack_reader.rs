//! Stacks of a paused machine.

use errors::chain;
use events::VcpuStack;
use inspect::stacks::{NamedStack, StackReader, StoppedVcpu, VcpuMode};
use introspect::PagingState;
use introspect::orc::NoOrc;
use text::Paused;
use vmm::VcpuState;

use crate::engine::event_task::event_task;
use crate::engine::inventory::Inventory;
use crate::engine::stacks::{Stack, general};

/// 64-bit mode is active.
const EFER_LMA: u64 = 1 << 10;

/// Why there are no stacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStacks {
    /// The kernel describes no stacks.
    #[error(transparent)]
    NoOrc(#[from] NoOrc),
    /// The kernel has not booted far enough.
    #[error("the kernel has not said where it runs, so its stacks cannot be unwound")]
    NotLocated,
}

/// The registers of a paused vCPU, as far as stacks need them.
#[must_use]
pub fn stopped_vcpu(vcpu: &VcpuState) -> StoppedVcpu {
    let is_in_program = vcpu.sregs.ss.dpl == 3;
    let of_kernel = (!is_in_program).then_some(vcpu.sregs.gs.base);
    StoppedVcpu {
        mode: match vcpu.sregs.efer & EFER_LMA {
            0 => VcpuMode::NotStarted,
            _ if is_in_program => VcpuMode::User {
                is_long: vcpu.sregs.cs.l != 0,
            },
            _ => VcpuMode::Kernel,
        },
        registers: general(&vcpu.regs),
        gs_bases: of_kernel.into_iter().chain([vcpu.kernel_gs_base]).collect(),
    }
}

impl Inventory {
    /// A reader of stacks for the current pause. Before the kernel's page tables are known, those of `vcpu` are used. The tables that the
    /// reader needs are looked up at the first call, which should be made before the pause.
    ///
    /// # Errors
    ///
    /// If the kernel has no ORC tables, or has not reported where it runs.
    pub fn stack_reader(&self, vcpu: &VcpuState) -> Result<StackReader<'_>, NoStacks> {
        let kernel = &self.running.kernel;
        let table = kernel.unwind_rules().map_err(Clone::clone)?;
        let _ = (kernel.modules(), kernel.trampolines());
        let stacks = &*self.records.stacks;
        stacks.programs.prepare(stacks);
        self.slide().ok_or(NoStacks::NotLocated)?;
        // A program's tables map little of the kernel where the kernel isolates page tables.
        let paging = self.running.modules.paging().unwrap_or(PagingState {
            cr0: vcpu.sregs.cr0,
            cr3: vcpu.sregs.cr3,
            cr4: vcpu.sregs.cr4,
            efer: vcpu.sregs.efer,
        });
        let (named, programs) = (&stacks.named, &stacks.programs);
        Ok(StackReader::new(stacks, table, named, programs, paging))
    }
}

impl Inventory {
    /// The kernel stacks of the vCPUs. If KVM refuses the registers, each is empty and says so.
    pub(crate) fn vcpu_stacks(&self, paused: &dyn Paused) -> Vec<VcpuStack> {
        let vcpus = match paused.vcpu_states() {
            Ok(vcpus) => vcpus,
            Err(why) => {
                let why = chain(&why);
                return (0..paused.vcpus())
                    .map(|number| absent(number, &why))
                    .collect();
            }
        };
        let first = vcpus.first().copied().unwrap_or_default();
        let reader = self.stack_reader(&first);
        let vcpus = (0..).zip(&vcpus);
        vcpus
            .map(|(number, vcpu)| vcpu_stack(number, &stopped_vcpu(vcpu), reader.as_ref()))
            .collect()
    }
}

/// A vCPU about which nothing is known.
fn absent(number: usize, why: &str) -> VcpuStack {
    VcpuStack {
        vcpu: number,
        task: None,
        user_mode: false,
        stack: Vec::new(),
        stack_incomplete: Some(why.to_owned()),
        program_stack: None,
        program_stack_incomplete: None,
    }
}

fn vcpu_stack(
    number: usize,
    vcpu: &StoppedVcpu,
    reader: Result<&StackReader<'_>, &NoStacks>,
) -> VcpuStack {
    let (named, program) = match reader {
        Ok(reader) => match reader.of_vcpu(vcpu) {
            Ok(stack) => (reader.named(&stack), reader.program_of_vcpu(vcpu, &stack)),
            Err(why) => (NamedStack::without_frames(why), None),
        },
        Err(why) => (NamedStack::without_frames(why), None),
    };
    let named = Stack::new(named, program);
    VcpuStack {
        vcpu: number,
        task: reader
            .ok()
            .and_then(|reader| reader.task_of(vcpu))
            .map(event_task),
        user_mode: vcpu.mode.is_user(),
        stack: named.frames,
        stack_incomplete: named.incomplete,
        program_stack: named.program.frames,
        program_stack_incomplete: named.program.incomplete,
    }
}
