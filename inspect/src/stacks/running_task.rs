//! The task on a processor.

use address::Gva;
use introspect::{PagingState, PhysMemory, TaskLayout, read_virt};

use super::kernel::StackKernel;
use super::vcpu::StoppedVcpu;
use crate::reads::until_zero;

/// The kernel's list of per-CPU areas, as distances from the first.
const AREAS: &str = "__per_cpu_offset";
/// The most processors whose areas are compared: hyprobe's machines have at most 254.
const MAX_PROCESSORS: u64 = 256;
const AREA_BYTES: u64 = size_of::<u64>() as u64;

/// The task that a processor runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningTask {
    /// The number of the thread (the kernel's `pid`).
    pub tid: i32,
    /// The number of the process (the kernel's `tgid`).
    pub pid: i32,
    /// The name.
    pub comm: String,
}

impl RunningTask {
    /// The task of a processor with the base `gs` in a kernel moved by `slide`; `None` if its memory cannot be read.
    #[must_use]
    pub fn read(
        memory: &dyn PhysMemory,
        paging: &PagingState,
        layout: TaskLayout,
        slide: i64,
        gs: u64,
    ) -> Option<Self> {
        let read = |at: Gva, bytes: &mut [u8]| read_virt(memory, paging, at, bytes).ok();
        let (mut task, mut numbers, mut comm) = ([0; 8], [0; 8], vec![0; layout.comm_bytes]);
        read(layout.current(gs, slide), &mut task)?;
        let task = Gva(u64::from_le_bytes(task));
        read(task.wrapping_add(layout.tid), &mut numbers)?;
        read(task.wrapping_add(layout.comm), &mut comm)?;
        let [t0, t1, t2, t3, p0, p1, p2, p3] = numbers;
        Some(Self {
            tid: i32::from_le_bytes([t0, t1, t2, t3]),
            pid: i32::from_le_bytes([p0, p1, p2, p3]),
            comm: until_zero(&comm),
        })
    }

    /// The task of a stopped vCPU; `None` before the kernel's per-CPU areas are there. A program can set its own `gs` to any value, so in the kernel its
    /// list of per-CPU areas decides. In the first instructions of entry code, a program that has set its own to another processor's area gets that
    /// processor's task.
    pub(super) fn of_stopped(
        kernel: &dyn StackKernel,
        paging: &PagingState,
        vcpu: &StoppedVcpu,
    ) -> Option<Self> {
        let is_area = |gs: u64| {
            let processors = 0..MAX_PROCESSORS;
            let mut areas = processors.map_while(|number| per_cpu_area(kernel, paging, number));
            gs != 0 && areas.any(|area| area == gs)
        };
        let gs = vcpu.gs_bases.iter().copied().find(|gs| is_area(*gs))?;
        let layout = kernel.tasks()?;
        Self::read(kernel.memory(), paging, layout, kernel.slide()?, gs)
    }
}

/// The base that `gs` has in the kernel on the processor `number`; `None` if the kernel's list of per-CPU areas cannot be read.
pub fn per_cpu_area(kernel: &dyn StackKernel, paging: &PagingState, number: u64) -> Option<u64> {
    let areas = kernel.symbols().address_of(AREAS)?;
    let areas = areas.wrapping_add(kernel.slide()?.cast_unsigned());
    let at = areas.wrapping_add(number.checked_mul(AREA_BYTES)?);
    let mut area = [0; 8];
    read_virt(kernel.memory(), paging, at, &mut area).ok()?;
    Some(u64::from_le_bytes(area))
}
