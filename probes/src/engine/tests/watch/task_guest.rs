//! A guest whose kernel has tasks, for watchpoints at their data.

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
pub(super) const FIRST: u64 = DATA + 0x1000;
pub(super) const SECOND: u64 = FIRST + 0x400;
pub(super) const SWAPPER: u64 = DATA;
/// The places of members.
pub(super) const LINKS: u64 = 0x10;
const TID: u64 = 0x30;
const PID: u64 = 0x34;
pub(super) const LEADER: u64 = 0x38;
/// The member that the kernel gives to the callback.
pub(super) const RCU: u64 = 0x70;
pub(super) const FLAGS: u64 = 0x40;
pub(super) const OF_PROCESS: &str = "watch:struct task_struct.flags@pid:7";

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
pub(super) struct Guest {
    pub(super) watched: Watched,
    frees: Gva,
    pub(super) starts: Gva,
    pub(super) ends: Gva,
}

impl Guest {
    /// A guest with a watchpoint from the start on, whose kernel has booted.
    pub(super) fn watching() -> Self {
        let guest = Self::new(&[OF_PROCESS], "wake_up_new_task");
        guest.boot();
        guest
    }

    pub(super) fn new(probes: &[&str], starter: &str) -> Self {
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
    pub(super) fn boot(&self) {
        assert!(self.calls(self.frees, 0));
    }

    pub(super) fn put(&self, at: u64, value: u64) {
        self.watched.rig.memory.put(at, &value.to_le_bytes());
    }

    /// Makes a task a thread of a process.
    pub(super) fn number(&self, task: u64, tid: u32, pid: u32) {
        self.watched.rig.memory.put(task + TID, &tid.to_le_bytes());
        self.watched.rig.memory.put(task + PID, &pid.to_le_bytes());
        self.put(task + LEADER, task);
    }

    /// Makes the tasks all processes of the kernel's list.
    pub(super) fn link(&self, tasks: &[u64]) {
        let mut last = SWAPPER;
        for task in tasks.iter().chain(&[SWAPPER]) {
            self.put(last + LINKS, task + LINKS);
            last = *task;
        }
    }

    /// The process has ended, and the kernel gives up its struct.
    pub(super) fn end(&self, task: u64) {
        self.link(&[]);
        assert!(self.calls(self.ends, task + RCU));
    }

    /// The kernel calls the function with the task. Returns whether the others were paused.
    pub(super) fn calls(&self, function: Gva, task: u64) -> bool {
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
    pub(super) fn write(&self, task: u64) {
        self.watched.exit(&mut self.watched.vcpu(task + FLAGS, 5));
    }

    pub(super) fn state(&self) -> ProbeState {
        self.watched.rig.states()[0]
    }

    pub(super) fn missed(&self) -> Option<u64> {
        let summary = self.watched.rig.probe(0);
        summary.missed.get("unprotected").copied()
    }
}
