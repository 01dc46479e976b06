//! Where the kernel says which task a processor runs.

use address::Gva;
use introspect::{PagingState, read_virt};

use super::kernel::StackKernel;
use super::vcpu::StoppedVcpu;

/// The kernel's list of per-CPU areas, as distances from the first.
const AREAS: &str = "__per_cpu_offset";
/// The most processors whose areas are compared: hyprobe's machines have at most 254.
const MAX_PROCESSORS: u64 = 256;
const AREA_BYTES: u64 = size_of::<u64>() as u64;

/// The `task_struct` of the task of a stopped vCPU; `None` before the kernel's per-CPU areas are there. A program can set its own `gs` to any value, so
/// in the kernel its list of per-CPU areas decides. In the first instructions of entry code, a program that has set its own to another processor's
/// area gets that processor's task.
pub(super) fn task_of_stopped(
    kernel: &dyn StackKernel,
    paging: &PagingState,
    vcpu: &StoppedVcpu,
) -> Option<Gva> {
    let is_area = |gs: u64| {
        let processors = 0..MAX_PROCESSORS;
        let mut areas = processors.map_while(|number| per_cpu_area(kernel, paging, number));
        gs != 0 && areas.any(|area| area == gs)
    };
    let gs = vcpu.gs_bases.iter().copied().find(|gs| is_area(*gs))?;
    let current = kernel.tasks()?.current(gs, kernel.slide()?);
    word(kernel, paging, current).map(Gva)
}

/// The base that `gs` has in the kernel on the processor `number`; `None` if the kernel's list of per-CPU areas cannot be read.
pub fn per_cpu_area(kernel: &dyn StackKernel, paging: &PagingState, number: u64) -> Option<u64> {
    let areas = kernel.symbols().address_of(AREAS)?;
    let areas = areas.wrapping_add(kernel.slide()?.cast_unsigned());
    let at = areas.wrapping_add(number.checked_mul(AREA_BYTES)?);
    word(kernel, paging, at)
}

fn word(kernel: &dyn StackKernel, paging: &PagingState, at: Gva) -> Option<u64> {
    let mut bytes = [0; 8];
    read_virt(kernel.data(), paging, at, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}
