//! The vCPUs that use the kernel's handler of `int3`: an injected `int3` may be in the text only while all of them do.
//!
//! ```text
//!            INIT, SIPI: no interrupt table, then that of the bring-up      the kernel's own
//!  offline ───────────────────────────────────────────────────────▶ online ── cpu_startup_entry ──▶ idle, tasks
//!     ▲                                                               │
//!     └──────────── arch_cpu_idle_dead ◀── offline in the mask ◀──────┘
//! ```
//!
//! A CPU that starts executes kernel code long before loading the kernel's interrupt table, and an `int3` there is a triple
//! fault. No exit reports the start: KVM handles INIT and SIPI itself. The engine therefore reads the kernel's own account. The
//! kernel sets a CPU's bit of `__cpu_online_mask` after loading the table, and clears the bit before the CPU dies; all online
//! CPUs use the same table. `cpu_startup_entry` and `arch_cpu_idle_dead` trigger the next check.
//!
//! A guest that has neither `arch_cpu_idle_dead` nor `takedown_cpu` takes no CPU offline. There each vCPU is checked at an exit
//! at a plant. A guest with only `takedown_cpu` may take a CPU offline unseen: with more than one vCPU the guest gets no `int3`.
//!
//! Each vCPU's thread writes the result of its own check; `int3`s are written and removed with all vCPUs paused.

use address::Gva;
use text::Paused;

use crate::engine::optimise::int3::Int3Handler;
use crate::engine::optimise::vcpu_set::WORD_BITS;
use crate::registry::KernelEvent;

/// The kernel's mask of online CPUs, a bit each.
const ONLINE_MASK: &str = "__cpu_online_mask";
/// The function that takes a CPU offline; only a table of hotplug steps refers to the function, so no compiler inlines it.
const TAKES_OFFLINE: &str = "takedown_cpu";

impl Int3Handler {
    /// The first vCPU of the machine that is not known to use the kernel's handler of `int3`; `None` if all are.
    pub(crate) fn vcpu_without_handler(&self, paused: &dyn Paused) -> Option<usize> {
        let users = &self.users;
        let mut vcpus = 0..paused.vcpus();
        if !self.takes_cpus_offline() {
            return vcpus.find(|vcpu| !users.contains(*vcpu));
        }
        if users.is_empty() {
            return Some(0);
        }
        if vcpus.len() == 1 {
            return None;
        }
        let is_watched = self.plants.is_planted(KernelEvent::CpuOffline);
        vcpus.find(|vcpu| !(is_watched && self.is_online(*vcpu)))
    }

    /// The same before `rest_init`: only one CPU runs, and starts the others behind `rest_init`.
    pub(crate) fn early_vcpu_without_handler(&self) -> Option<usize> {
        self.users.is_empty().then_some(0)
    }

    /// Whether CPUs may go offline, possibly without reaching the kernel event probe: a compiler may inline its function.
    fn takes_cpus_offline(&self) -> bool {
        let symbols = self.running.kernel.symbols();
        let mut functions = [KernelEvent::CpuOffline.function(), TAKES_OFFLINE].into_iter();
        functions.any(|function| symbols.address_of(function).is_some())
    }

    /// Whether the kernel counts CPU `cpu` as online. The order of the vCPUs does not matter: all of them have to be online.
    fn is_online(&self, cpu: usize) -> bool {
        let word = || {
            let located = self.running.located.get()?;
            let mask = self.running.kernel.symbols().address_of(ONLINE_MASK)?;
            let at = Gva(mask.0.checked_add((cpu / WORD_BITS * 8) as u64)?);
            self.running
                .memory
                .read_u64(self.running.gpa_of(at, located)?)
                .ok()
        };
        word().is_some_and(|word| word >> (cpu % WORD_BITS) & 1 != 0)
    }
}
