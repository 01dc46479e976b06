//! Watchpoints at data of tasks.

use std::sync::Arc;

use address::Gva;
use events::ProbeState;
use introspect::PagingState;
use introspect::btf::synthetic::Blob;

use super::{MOV, Watched};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::tests::{DATA, PLAIN, ROOT, Rig, vcpu};
use crate::resolve::synthetic::SyntheticKernel;

/// The page with the structs of two tasks, and the first task of the kernel, in front of it.
const FIRST: u64 = DATA + 0x1000;
const SECOND: u64 = FIRST + 0x400;
const SWAPPER: u64 = DATA;
/// The places of members.
const LINKS: u64 = 0x10;
const TID: u64 = 0x30;
const PID: u64 = 0x34;
const LEADER: u64 = 0x38;
/// The member that the kernel gives to the callback.
const RCU: u64 = 0x70;
const FLAGS: u64 = 0x40;
const OF_PROCESS: &str = "watch:struct task_struct.flags@pid:7";

fn types() -> Blob {
    let mut blob = Blob::new();
    let char = blob.int("char", 1);
    let int = blob.int("int", 4);
    let pointer = blob.pointer(char);
    let links = [("next", pointer, 0), ("prev", pointer, 8)];
    let list = blob.structure("list_head", 16, &links);
    let comm = blob.array(char, 16);
    let user = blob.structure("kuid_t", 4, &[("val", int, 0)]);
    blob.structure("cred", 16, &[("uid", user, 0), ("euid", user, 8)]);
    let head = [("next", pointer, 0), ("func", pointer, 8)];
    let head = blob.structure("callback_head", 16, &head);
    blob.structure("signal_struct", 32, &[("thread_head", list, 16)]);
    let task = [
        ("__state", int, 0),
        ("exit_state", int, 8),
        ("tasks", list, 0x10),
        ("thread_node", list, 0x20),
        ("pid", int, 0x30),
        ("tgid", int, 0x34),
        ("group_leader", pointer, 0x38),
        ("flags", int, 0x40),
        ("real_parent", pointer, 0x48),
        ("real_cred", pointer, 0x50),
        ("signal", pointer, 0x58),
        ("mm", pointer, 0x60),
        ("rcu", head, 0x70),
        ("comm", comm, 0x80),
    ];
    blob.structure("task_struct", 0x100, &task);
    blob
}

/// A guest whose kernel has tasks.
struct Guest {
    watched: Watched,
    frees: Gva,
    starts: Gva,
    ends: Gva,
}

impl Guest {
    /// A guest with a watchpoint from the start on, whose kernel has booted.
    fn watching() -> Self {
        let guest = Self::new(&[OF_PROCESS], "wake_up_new_task");
        guest.boot();
        guest
    }

    fn new(probes: &[&str], starter: &str) -> Self {
        let mut kernel = SyntheticKernel::new();
        let at = kernel.function("writer", &MOV);
        let frees = kernel.function("free_initmem", &PLAIN);
        let starts = kernel.function(starter, &PLAIN);
        let ends = kernel.function("delayed_put_task_struct", &PLAIN);
        kernel.symbol("init_task", Gva(SWAPPER));
        kernel.types(&types().finish());
        let rig = Rig::new(&kernel, probes);
        let paging = Arc::new(PagingState::four_level(ROOT));
        rig.engine.running.modules.paging.store(Some(paging));
        let watched = Watched {
            rig,
            at,
            data: FIRST + FLAGS,
        };
        let guest = Self {
            watched,
            frees,
            starts,
            ends,
        };
        guest.link(&[]);
        guest
    }

    /// The kernel is about to start the first program.
    fn boot(&self) {
        assert!(self.calls(self.frees, 0));
    }

    fn put(&self, at: u64, value: u64) {
        self.watched.rig.memory.put(at, &value.to_le_bytes());
    }

    /// Makes a task a thread of a process.
    fn number(&self, task: u64, tid: u32, pid: u32) {
        self.watched.rig.memory.put(task + TID, &tid.to_le_bytes());
        self.watched.rig.memory.put(task + PID, &pid.to_le_bytes());
        self.put(task + LEADER, task);
    }

    /// Makes the tasks all processes of the kernel's list.
    fn link(&self, tasks: &[u64]) {
        let mut last = SWAPPER;
        for task in tasks.iter().chain(&[SWAPPER]) {
            self.put(last + LINKS, task + LINKS);
            last = *task;
        }
    }

    /// The process has ended, and the kernel gives up its struct.
    fn end(&self, task: u64) {
        self.link(&[]);
        assert!(self.calls(self.ends, task + RCU));
    }

    /// The kernel calls the function with the task. Returns whether the others were paused.
    fn calls(&self, function: Gva, task: u64) -> bool {
        let rig = &self.watched.rig;
        let mut vcpu = vcpu(function);
        vcpu.regs.rdi = task;
        let outcome = rig.engine.hits.on_hit(&mut vcpu, function);
        if outcome.expect("handled") == HitOutcome::Resume {
            return false;
        }
        let run = |_: &mut _, _: text::To<'_>| panic!("nothing to step");
        let hits = &rig.engine.paused_hits;
        let handled = hits.on_paused_hit(&mut vcpu, &rig.paused, function, run);
        handled.expect("handled");
        true
    }

    /// The guest writes 5 to the flags of the task.
    fn write(&self, task: u64) {
        self.watched.exit(&mut self.watched.vcpu(task + FLAGS, 5));
    }

    fn state(&self) -> ProbeState {
        self.watched.rig.states()[0]
    }

    fn missed(&self) -> Option<u64> {
        let summary = self.watched.rig.probe(0);
        summary.missed.get("unprotected").copied()
    }
}

#[test]
fn write_to_a_task_is_a_hit_from_its_start_to_its_end() {
    let guest = Guest::watching();
    assert_eq!(guest.state(), ProbeState::Pending);
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.watched.protected(), [FIRST]);
    guest.write(FIRST);
    guest.end(FIRST);
    assert_eq!(guest.state(), ProbeState::Gone);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
    assert_eq!(guest.missed(), None);
}

#[test]
fn task_that_boots_the_kernel_is_watched_once_the_kernel_has_booted() {
    let guest = Guest::new(&[OF_PROCESS], "wake_up_new_task");
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    let reason = guest.watched.rig.probe(0).reason.expect("a reason");
    assert!(reason.starts_with("tasks are watched from"), "{reason}");
    guest.boot();
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.watched.protected(), [FIRST]);
    assert_eq!(guest.missed(), None);
}

#[test]
fn task_that_has_ended_before_the_kernel_has_booted_is_missed() {
    let guest = Guest::new(&[OF_PROCESS], "wake_up_new_task");
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    guest.link(&[]);
    guest.boot();
    assert_eq!(guest.state(), ProbeState::Pending);
    assert_eq!(guest.missed(), Some(1));
}

#[test]
fn other_probe_that_pauses_at_the_start_of_a_task_does_not_watch_it_early() {
    let probes = [OF_PROCESS, "kretprobe:wake_up_new_task"];
    let guest = Guest::new(&probes, "wake_up_new_task");
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.calls(guest.starts, FIRST);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
}

#[test]
fn next_process_of_the_number_is_watched() {
    let guest = Guest::watching();
    for task in [FIRST, SECOND] {
        guest.number(task, 7, 7);
        guest.link(&[task]);
        assert!(guest.calls(guest.starts, task));
        assert_eq!(guest.state(), ProbeState::Armed);
        guest.write(task);
        guest.end(task);
    }
    assert_eq!(guest.watched.writes(), [(0, 5), (0, 5)]);
    // The kernel gives up the struct of a former process later.
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert!(!guest.calls(guest.ends, SECOND + RCU));
    assert_eq!(guest.watched.protected(), [FIRST]);
}

#[test]
fn process_of_a_number_whose_former_struct_is_still_there_is_watched() {
    let guest = Guest::watching();
    for task in [FIRST, SECOND] {
        guest.number(task, 7, 7);
        guest.link(&[task]);
        assert!(guest.calls(guest.starts, task));
    }
    assert!(!guest.calls(guest.ends, FIRST + RCU));
    guest.write(SECOND);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
    assert_eq!(guest.missed(), None);
}

#[test]
fn other_tasks_need_no_pause() {
    let guest = Guest::watching();
    guest.number(FIRST, 8, 8);
    assert!(!guest.calls(guest.starts, FIRST));
    // Another thread of the process.
    guest.number(FIRST, 9, 7);
    assert!(!guest.calls(guest.starts, FIRST));
    assert!(!guest.calls(guest.ends, FIRST + RCU));
    assert!(!guest.calls(guest.starts, 0xdead_0000));
    assert_eq!(guest.state(), ProbeState::Pending);
}

#[test]
fn process_whose_other_thread_calls_execve_is_watched_with_a_miss() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    // The other thread takes the number, and the kernel releases the former first thread.
    guest.number(SECOND, 7, 7);
    guest.number(FIRST, 9, 7);
    guest.put(FIRST + LEADER, SECOND);
    guest.link(&[SECOND]);
    assert!(guest.calls(guest.ends, FIRST + RCU));
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.missed(), Some(1));
    guest.write(SECOND);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
}

#[test]
fn process_that_ends_soon_after_its_other_thread_calls_execve_is_a_miss() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    guest.put(FIRST + LEADER, SECOND);
    // The run may end before the kernel gives up the struct.
    guest.watched.rig.engine.task_watch.miss_unseen();
    assert_eq!(guest.missed(), Some(1));
    guest.end(FIRST);
    assert_eq!(guest.state(), ProbeState::Gone);
    assert_eq!(guest.missed(), Some(2));
}

/// The probe of the same process that a test adds.
const OTHER_MEMBER: &str = "watch:struct task_struct.exit_state@pid:7";

#[test]
fn process_that_is_there_is_watched_at_once() {
    let guest = Guest::new(&[], "wake_up_new_task");
    guest.boot();
    // Without a watchpoint, the kernel's functions have no plants.
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.watched.register(OF_PROCESS);
    assert_eq!(guest.state(), ProbeState::Armed);
    assert_eq!(guest.watched.protected(), [FIRST]);
    guest.write(FIRST);
    assert_eq!(guest.watched.writes(), [(0, 5)]);
}

#[test]
fn probe_added_between_the_list_and_the_start_of_a_task_arms_all() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.watched.register(OTHER_MEMBER);
    let armed = [ProbeState::Armed, ProbeState::Armed];
    assert_eq!(guest.watched.rig.states(), armed);
    guest.write(FIRST);
    guest.calls(guest.starts, FIRST);
    guest.write(FIRST);
    assert_eq!(guest.watched.writes(), [(0, 5), (5, 5)]);
    assert_eq!(guest.watched.rig.states(), armed);
}

#[test]
fn probe_added_behind_the_release_of_a_task_leaves_the_others_at_its_struct_until_its_end() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    guest.link(&[]);
    guest.watched.register(OTHER_MEMBER);
    assert_eq!(guest.state(), ProbeState::Armed);
    guest.end(FIRST);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    let states = guest.watched.rig.states();
    assert_eq!(states, [ProbeState::Gone, ProbeState::Pending]);
}

#[test]
fn knob_forgets_tasks_that_have_gone_meanwhile() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    let rig = &guest.watched.rig;
    let set = |armed| rig.engine.set_armed(&rig.paused, armed).expect("set");
    set(false);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    guest.link(&[]);
    set(true);
    assert_eq!(guest.state(), ProbeState::Pending);
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
    set(false);
    // The process may come and go unseen.
    assert_eq!(guest.state(), ProbeState::Disabled);
    guest.number(SECOND, 7, 7);
    guest.link(&[SECOND]);
    set(true);
    assert_eq!(guest.state(), ProbeState::Armed);
}

#[test]
fn disabled_probe_stays_disabled_when_its_task_ends() {
    let guest = Guest::watching();
    let rig = &guest.watched.rig;
    let id = rig.engine.probes.list.load()[0].id;
    let set = |on| rig.engine.set_enabled(&rig.paused, id, on).expect("set");
    set(false);
    assert_eq!(guest.state(), ProbeState::Disabled);
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.calls(guest.starts, FIRST);
    guest.end(FIRST);
    assert_eq!(guest.state(), ProbeState::Disabled);
    set(true);
    assert_eq!(guest.state(), ProbeState::Pending);
    let reason = guest.watched.rig.probe(0).reason.expect("a reason");
    assert!(
        reason.ends_with("since the watchpoint was enabled"),
        "{reason}"
    );
}

#[test]
fn failed_change_at_a_start_leaves_no_page_of_the_former_task_protected() {
    for request in 1..20 {
        let guest = Guest::watching();
        guest.number(FIRST, 7, 7);
        guest.link(&[FIRST]);
        assert!(guest.calls(guest.starts, FIRST));
        let other = FIRST + 0x1000;
        guest.number(other, 7, 7);
        let rig = &guest.watched.rig;
        let regs = vmm::kvm_regs {
            rdi: other,
            ..vmm::kvm_regs::default()
        };
        rig.paused.requests.fail(request);
        let started = rig.engine.task_watch.on_start(&rig.paused, &regs);
        rig.paused.requests.fail(0);
        started.expect("accessible");
        let protected = guest.watched.protected();
        match guest.state() {
            ProbeState::Armed => assert_eq!(protected, [other], "{request}"),
            _ => assert_eq!(protected, [] as [u64; 0], "{request}"),
        }
    }
}

#[test]
fn failed_change_leaves_no_page_of_an_ended_task_protected() {
    for request in 1..20 {
        let guest = Guest::watching();
        guest.number(FIRST, 7, 7);
        guest.link(&[FIRST]);
        assert!(guest.calls(guest.starts, FIRST));
        guest.link(&[]);
        let rig = &guest.watched.rig;
        let regs = vmm::kvm_regs {
            rdi: FIRST + RCU,
            ..vmm::kvm_regs::default()
        };
        rig.paused.requests.fail(request);
        let ended = rig.engine.task_watch.on_end(&rig.paused, &regs);
        rig.paused.requests.fail(0);
        ended.expect("accessible");
        assert_eq!(guest.watched.protected(), [] as [u64; 0], "{request}");
        assert_eq!(rig.engine.watches.table.load().watches().len(), 0);
    }
}

#[test]
fn list_that_cannot_be_read_is_a_miss() {
    let guest = Guest::new(&[], "wake_up_new_task");
    guest.boot();
    guest.put(SWAPPER + LINKS, 0x7fff_0000);
    guest.watched.register(OF_PROCESS);
    assert_eq!(guest.missed(), Some(1));
    let notes = guest.watched.rig.notes();
    let is_told = |text: &str| text.starts_with("the guest's tasks cannot be read: ");
    assert!(notes.iter().any(|note| is_told(&note.text)), "{notes:?}");
}

#[test]
fn data_of_tasks_is_not_watched_if_hyprobe_cannot_see_them_start() {
    let guest = Guest::new(&[], "wake_up_old_task");
    guest.boot();
    guest.number(FIRST, 7, 7);
    guest.link(&[FIRST]);
    guest.watched.register(OF_PROCESS);
    assert_eq!(guest.state(), ProbeState::Refused);
    assert_eq!(guest.missed(), Some(1));
    assert_eq!(guest.watched.protected(), [] as [u64; 0]);
}

#[test]
fn task_without_memory_is_refused_and_the_next_is_watched() {
    let guest = Guest::watching();
    guest.number(FIRST, 7, 7);
    // The guest starts a false task at the end of memory: its flags are not in memory.
    let end = (2 << 20) - FLAGS;
    guest.number(end, 7, 7);
    assert!(guest.calls(guest.starts, end));
    assert_eq!(guest.state(), ProbeState::Refused);
    assert_eq!(guest.missed(), Some(1));
    guest.link(&[FIRST]);
    assert!(guest.calls(guest.starts, FIRST));
    assert_eq!(guest.state(), ProbeState::Armed);
}
