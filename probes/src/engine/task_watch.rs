//! Watchpoints at data of tasks: pending until the process is started, and gone when the kernel releases its first thread.
//!
//! ```text
//!            wake_up_new_task: bound to the task's struct
//!  pending ──────────────────────────────────────────────▶ armed
//!     ▲                                                      │ put_task_struct_rcu_user, the task is released
//!     └── gone, with nothing protected ◀─────────────────────┘
//! ```
//!
//! Tasks are watched from the time when the kernel frees its init memory, in front of the first program: until then, a periodic tick writes to the struct of
//! the task that boots the kernel, and where exits are slow, the ticks would leave no time for the boot.
//!
//! A process that is there when the probe comes is found in the kernel's list of tasks. The kernel puts a task into the list before the task is started, and
//! takes the task out before it is released: a task that is about to be in the list, or is no longer, has its event before it.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use address::Gva;
use errors::chain;
use events::ProbeState;
use inspect::FirstThreads;
use text::Paused;
use vmm::kvm_regs;

use crate::engine::arm::Armer;
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::reporter::Reporter;
use crate::engine::running::Running;
use crate::registry::{KernelEvent, Missed, Probe};
use crate::resolve::{MemoryOwner, TaskMember, in_task};

/// Binds the watchpoints at data of tasks to the tasks, as these come and go.
#[derive(Debug)]
pub(crate) struct TaskWatch {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) armer: Arc<Armer>,
    /// The layout of tasks. Found at the first look.
    pub(crate) layout: OnceLock<Option<FirstThreads>>,
}

/// The task that is the first argument of the function at the event.
const fn argument(regs: &kvm_regs) -> Gva {
    Gva(regs.rdi)
}

fn is_bound_to(probe: &Probe, task: Gva) -> bool {
    probe
        .place()
        .is_some_and(|place| place.owner == MemoryOwner::Task(task))
}

impl TaskWatch {
    fn layout(&self) -> Option<&FirstThreads> {
        let find = || {
            self.running
                .with_view(|view| FirstThreads::new(view).ok())?
        };
        self.layout.get_or_init(find).as_ref()
    }

    /// Whether the kernel has freed its init memory, or hyprobe does not see when it does.
    fn has_booted(&self) -> bool {
        self.running.init_freed.get() || !self.plants.is_planted(KernelEvent::InitFreed)
    }

    /// The probes at data of tasks.
    fn members(&self) -> Vec<(Arc<Probe>, TaskMember)> {
        let list = self.probes.list.load();
        let members = list.iter().filter_map(|probe| {
            let member = probe.in_task.clone()?;
            Some((Arc::clone(probe), member))
        });
        members.collect()
    }

    /// The number of the process whose first thread is at `task`.
    fn process_of(&self, task: Gva) -> Option<u32> {
        let layout = self.layout()?;
        self.running
            .with_view(|view| layout.process_of(view, task))?
    }

    fn is_released(&self, task: Gva) -> bool {
        let Some(layout) = self.layout() else {
            return true;
        };
        let is_released = self
            .running
            .with_view(|view| layout.is_released(view, task));
        is_released.unwrap_or(true)
    }

    /// Whether the task that is about to run, the argument in `regs`, is one whose data is to be watched. The other vCPUs run.
    pub(crate) fn concerns_start(&self, regs: &kvm_regs) -> bool {
        if !self.has_booted() {
            return false;
        }
        let pid = self.process_of(argument(regs));
        pid.is_some_and(|pid| {
            let list = self.probes.list.load();
            let of_process = |probe: &Arc<Probe>| {
                let member = probe.in_task.as_ref();
                member.is_some_and(|member| member.pid == pid)
            };
            list.iter().any(of_process)
        })
    }

    /// Whether the task that has left its processor or is released, the argument in `regs`, is released and has watched data. The other vCPUs run.
    pub(crate) fn concerns_release(&self, regs: &kvm_regs) -> bool {
        let task = argument(regs);
        let is_watched = |probe: &Arc<Probe>| probe.in_task.is_some() && is_bound_to(probe, task);
        self.probes.list.load().iter().any(is_watched) && self.is_released(task)
    }

    /// Binds the watchpoints of the process whose first thread is about to run. The other vCPUs are paused.
    pub(crate) fn on_start(&self, paused: &dyn Paused, regs: &kvm_regs) {
        let task = argument(regs);
        let pid = self.process_of(task);
        let mut members = self.members();
        members.retain(|(_, member)| Some(member.pid) == pid);
        let mut bound = Vec::new();
        for (probe, member) in members {
            if !is_bound_to(&probe, task) {
                bind(&probe, &member, task);
                bound.push(probe);
            }
        }
        self.rearm(paused, &bound);
    }

    /// Unbinds the watchpoints of the task that is released. The other vCPUs are paused.
    pub(crate) fn on_left(&self, paused: &dyn Paused, regs: &kvm_regs) {
        let task = argument(regs);
        let mut members = self.members();
        members.retain(|(probe, _)| is_bound_to(probe, task));
        if members.is_empty() || !self.is_released(task) {
            return;
        }
        for (probe, _) in &members {
            probe.set_place(None);
            probe.status.set_state(ProbeState::Gone, None);
        }
        // If another thread of the process has called `execve`, the process goes on, and the thread is its first one now.
        for probe in self.bind_to_present(&members) {
            probe.counters.miss(Missed::Unprotected);
        }
        let unbound: Vec<_> = members.into_iter().map(|(probe, _)| probe).collect();
        self.rearm(paused, &unbound);
    }

    /// Looks for the processes of all watchpoints: after the boot, after a time without events, and for new watchpoints. The other vCPUs are paused.
    pub(crate) fn look_for_tasks(&self) {
        let members = self.members();
        if !members.is_empty() && self.has_booted() {
            self.bind_to_present(&members);
        }
    }

    /// Binds the watchpoints of the processes that the guest has now. Returns the probes that are bound anew.
    fn bind_to_present(&self, members: &[(Arc<Probe>, TaskMember)]) -> Vec<Arc<Probe>> {
        let Some(layout) = self.layout() else {
            return Vec::new();
        };
        let pids: BTreeSet<u32> = members.iter().map(|(_, member)| member.pid).collect();
        let found = match self.running.with_view(|view| layout.find(view, &pids)) {
            Some(Ok(found)) => found,
            None => return Vec::new(),
            Some(Err(error)) => {
                let text = format!("the tasks cannot be read: {}", chain(&error));
                self.reporter.note(None, text);
                return Vec::new();
            }
        };
        let mut bound = Vec::new();
        for (probe, member) in members {
            match found.get(&member.pid) {
                Some(task) if is_bound_to(probe, *task) => (),
                Some(task) => {
                    bind(probe, member, *task);
                    bound.push(Arc::clone(probe));
                }
                None if probe.place().is_some() => {
                    probe.set_place(None);
                    probe.status.set_state(ProbeState::Gone, None);
                }
                None => (),
            }
        }
        bound
    }

    fn rearm(&self, paused: &dyn Paused, probes: &[Arc<Probe>]) {
        if probes.is_empty() {
            return;
        }
        if let Err(error) = self.armer.change_probes(paused, probes, &[]) {
            for probe in probes {
                probe.set_place(None);
                self.probes.refuse(probe, chain(&error));
            }
        }
    }
}

fn bind(probe: &Probe, member: &TaskMember, task: Gva) {
    probe.set_place(Some(in_task(member, task)));
    probe.status.set_state(ProbeState::Pending, None);
}
