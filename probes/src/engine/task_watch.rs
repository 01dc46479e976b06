//! Watchpoints at data of tasks: pending until the process is started, and gone when the kernel gives up the struct of its first thread.
//!
//! ```text
//!            wake_up_new_task: bound to the task's struct
//!  pending ──────────────────────────────────────────────▶ armed
//!     ▲                                                      │ delayed_put_task_struct
//!     └── gone, with nothing protected ◀─────────────────────┘
//! ```
//!
//! Tasks are watched from the time when the kernel frees its init memory, in front of init: until then, a periodic tick writes to the struct of
//! the task that boots the kernel, and where exits are slow, the ticks would leave no time for the boot.
//!
//! A process that is there when the probe comes is found in the kernel's list of tasks. The kernel puts a task into the list before the task is started: a
//! task that is not in the list yet is started behind it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use address::Gva;
use errors::chain;
use events::ProbeState;
use inspect::{FirstThreads, TaskListError};
use text::{GuestError, Paused};
use vmm::kvm_regs;

use crate::engine::arm::Armer;
use crate::engine::plants::Plants;
use crate::engine::probe_list::ProbeList;
use crate::engine::reporter::Reporter;
use crate::engine::running::Running;
use crate::engine::watch::Watches;
use crate::registry::{KernelEvent, Missed, Probe};
use crate::resolve::{MemoryOwner, TaskMember, in_task};

/// Binds the watchpoints at data of tasks to the tasks, as these come and go.
#[derive(Debug)]
pub(crate) struct TaskWatch {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) probes: Arc<ProbeList>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) armer: Arc<Armer>,
    /// The layout of tasks. Found at the first look.
    pub(crate) layout: OnceLock<Option<FirstThreads>>,
    /// The numbers of processes with watched data that were started before tasks are watched.
    pub(crate) early: Mutex<BTreeSet<u32>>,
}

/// The reason of a watchpoint whose process is started before tasks are watched.
const TOO_EARLY: &str = "tasks are watched from the time when the kernel frees its init memory";

/// A watchpoint, and its data.
type Member = (Arc<Probe>, TaskMember);

fn is_bound_to(probe: &Probe, task: Gva) -> bool {
    probe
        .place()
        .is_some_and(|place| place.owner == MemoryOwner::Task(task))
}

fn bind(probe: &Probe, member: &TaskMember, task: Gva) {
    probe.set_place(Some(in_task(member, task)));
    probe.status.set_state(ProbeState::Pending, None);
}

impl TaskWatch {
    fn layout(&self) -> Option<&FirstThreads> {
        let find = || FirstThreads::new(self.running.kernel.types().ok()?).ok();
        self.layout.get_or_init(find).as_ref()
    }

    fn early(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether tasks are watched: the kernel has freed its init memory, or hyprobe does not see when it does.
    fn has_booted(&self) -> bool {
        self.running.modules.paging().is_some()
            && (self.running.init_freed.get() || !self.plants.is_armed(KernelEvent::InitFreed))
    }

    /// Unbinds the probe. If another thread has taken the place of the task, the process has gone on unseen.
    fn unbind(&self, probe: &Probe) {
        self.miss_replaced(probe);
        probe.set_place(None);
        if matches!(
            probe.status.state(),
            ProbeState::Armed | ProbeState::Pending
        ) {
            probe.status.set_state(ProbeState::Gone, None);
        }
    }

    /// Counts a miss if another thread has taken the place of the task of the probe.
    fn miss_replaced(&self, probe: &Probe) {
        let owner = probe.place().map(|place| place.owner);
        if let Some(MemoryOwner::Task(task)) = owner
            && self.is_replaced(task)
        {
            probe.counters.miss(Missed::Unprotected);
        }
    }

    fn is_replaced(&self, task: Gva) -> bool {
        self.layout().is_some_and(|layout| {
            let is_replaced = self
                .running
                .with_view(|view| layout.is_replaced(view, task));
            is_replaced == Some(true)
        })
    }

    /// Counts the misses of tasks that hyprobe has not seen start or end. Called at the end of the run.
    pub(crate) fn miss_unseen(&self) {
        let event_probes = self.plants.kernel_event_probes.iter();
        let event_probes = event_probes.filter(|probe| probe.sees_tasks());
        let lost = event_probes.map(|probe| probe.counters.missed_in_all());
        let lost = lost.fold(0, u64::saturating_add);
        for (probe, _) in self.members() {
            probe.counters.add_missed(Missed::Unprotected, lost);
            self.miss_replaced(&probe);
        }
    }

    /// The watchpoints at data of tasks.
    fn members(&self) -> Vec<Member> {
        let list = self.probes.list.load();
        let members = list.iter().filter_map(|probe| {
            let member = probe.in_task.clone()?;
            Some((Arc::clone(probe), member))
        });
        members.collect()
    }

    /// The number of the process whose first thread is about to run: the first argument of the function at the event.
    fn started(&self, regs: &kvm_regs) -> Option<u32> {
        let layout = self.layout()?;
        self.running
            .with_view(|view| layout.process_of(view, Gva(regs.rdi)))?
    }

    /// The task whose struct the kernel gives up. The first argument of the function at the event is a member of the struct.
    fn ended(&self, regs: &kvm_regs) -> Option<Gva> {
        Some(self.layout()?.task_of(Gva(regs.rdi)))
    }

    /// Whether the task that is about to run is one whose data is to be watched. The other vCPUs run.
    pub(crate) fn concerns_start(&self, regs: &kvm_regs) -> bool {
        let Some(pid) = self.started(regs) else {
            return false;
        };
        let list = self.probes.list.load();
        let of_process = |probe: &Arc<Probe>| {
            let member = probe.in_task.as_ref();
            member.is_some_and(|member| member.pid == pid)
        };
        list.iter().any(of_process)
    }

    /// Whether the kernel gives up the struct of a task with watched data. The other vCPUs run.
    pub(crate) fn concerns_end(&self, regs: &kvm_regs) -> bool {
        self.ended(regs).is_some_and(|task| {
            let list = self.probes.list.load();
            list.iter()
                .any(|probe| probe.in_task.is_some() && is_bound_to(probe, task))
        })
    }

    /// Binds the watchpoints of the process whose first thread is about to run. A former process of the number has ended, but its struct may still be there.
    /// The other vCPUs are paused.
    ///
    /// # Errors
    ///
    /// If pages stay protected.
    pub(crate) fn on_start(&self, paused: &dyn Paused, regs: &kvm_regs) -> Result<(), GuestError> {
        let Some(pid) = self.started(regs) else {
            return Ok(());
        };
        let mut members = self.members();
        members.retain(|(_, member)| member.pid == pid);
        if members.is_empty() {
            // Another probe at the function has paused the vCPUs.
            return Ok(());
        }
        if !self.has_booted() {
            self.early().insert(pid);
            let pending = ProbeState::Pending;
            members.retain(|(probe, _)| probe.status.state() == pending);
            for (probe, _) in &members {
                probe.status.set_state(pending, Some(TOO_EARLY.to_owned()));
            }
            return Ok(());
        }
        let task = Gva(regs.rdi);
        for (probe, member) in &members {
            if !is_bound_to(probe, task) {
                self.miss_replaced(probe);
                bind(probe, member, task);
            }
        }
        let probes: Vec<_> = members.into_iter().map(|(probe, _)| probe).collect();
        // Also those that were bound when the task was in the list, but not started yet.
        self.rearm(paused, &probes)
    }

    /// Unbinds the watchpoints of the task whose struct the kernel gives up. The other vCPUs are paused.
    ///
    /// # Errors
    ///
    /// If pages stay protected.
    pub(crate) fn on_end(&self, paused: &dyn Paused, regs: &kvm_regs) -> Result<(), GuestError> {
        let Some(task) = self.ended(regs) else {
            return Ok(());
        };
        let mut members = self.members();
        members.retain(|(probe, _)| is_bound_to(probe, task));
        let probes: Vec<_> = members.iter().map(|(probe, _)| Arc::clone(probe)).collect();
        probes.iter().for_each(|probe| self.unbind(probe));
        if !probes.is_empty() && self.is_replaced(task) {
            // The process may go on: another thread has called `execve`, and is the first thread now.
            self.bind_to_present(&members);
        }
        self.rearm(paused, &probes)
    }

    /// Looks for processes: tasks are watched from now on. A process that was started before, and is not there any more, is missed. The other
    /// vCPUs are paused.
    pub(crate) fn on_booted(&self) {
        self.look_for_tasks();
        let early = std::mem::take(&mut *self.early());
        for (probe, member) in self.members() {
            if early.contains(&member.pid) && probe.place().is_none() {
                probe.counters.miss(Missed::Unprotected);
            }
        }
    }

    /// Looks for the processes of all watchpoints: after a time without events, and for new watchpoints. The caller arms the probes. The other vCPUs are
    /// paused.
    pub(crate) fn look_for_tasks(&self) {
        if !self.has_booted() {
            return;
        }
        let mut members = self.members();
        let has_seen_all = self.plants.see_tasks_now();
        members.retain(|(probe, _)| {
            // A task whose end is still to come may have left the list.
            let stays = has_seen_all && probe.place().is_some();
            if !stays && probe.place().is_some() {
                self.unbind(probe);
            }
            !stays
        });
        self.bind_to_present(&members);
    }

    /// Binds the watchpoints to the processes that the guest has now, as far as it has them.
    fn bind_to_present(&self, members: &[Member]) {
        let pids: BTreeSet<u32> = members.iter().map(|(_, member)| member.pid).collect();
        if pids.is_empty() {
            return;
        }
        let found = self.layout().and_then(|layout| {
            let found = self.running.with_view(|view| layout.find(view, &pids))?;
            found.map_err(|error| self.cannot_read(&error)).ok()
        });
        for (probe, member) in members {
            match &found {
                // The process may be there.
                None => probe.counters.miss(Missed::Unprotected),
                Some(found) => {
                    if let Some(task) = found.get(&member.pid) {
                        bind(probe, member, *task);
                    }
                }
            }
        }
    }

    fn cannot_read(&self, error: &TaskListError) {
        let text = format!("the guest's tasks cannot be read: {}", chain(error));
        self.reporter.note(None, text);
    }

    /// Arms the watchpoints at their present tasks, and nowhere else. If that fails, they are refused.
    fn rearm(&self, paused: &dyn Paused, probes: &[Arc<Probe>]) -> Result<(), GuestError> {
        if probes.is_empty() {
            return Ok(());
        }
        let Err(error) = self.armer.change_probes(paused, probes, &[]) else {
            return Ok(());
        };
        for probe in probes {
            probe.set_place(None);
            self.probes.refuse(probe, chain(&error));
        }
        // The memory of former tasks is about to be used for other data.
        self.watches.forget(paused, probes)
    }
}
