//! Calls of functions in programs that have not returned.
//!
//! The stack of a program can be anywhere, and a program may have many, so a call is known by its process, its address space and the stack
//! pointer at the function's first instruction: the `ret` of the call has the same, in whichever thread. A call that leaves the function in another way stays until a
//! task calls the function with the same stack pointer again, or the task ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use events::ProbeId;

use crate::registry::Probe;

/// The most bytes of a stack, for calls whose stacks are compared: the default limit of Linux. The stacks of threads may follow each other.
const STACK_BYTES: u64 = 8 << 20;

/// A call in flight.
#[derive(Clone, Debug)]
pub(crate) struct ProgramCall {
    pub(crate) probe: Arc<Probe>,
    /// The `task_struct` of the task that has made the call, if known.
    pub(crate) task: Option<Gva>,
    /// The time of the call in nanoseconds, for calls reported as events.
    pub(crate) entered_ns: u64,
    /// Whether the function has jumped to its first instruction, which is next, and no call.
    pub(crate) restarts: bool,
}

/// A call, of a probe's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey {
    /// The stack pointer at the first instruction, and at the `ret`.
    pub(crate) rsp: u64,
    /// The root of the program's page tables.
    pub(crate) space: Gpa,
    /// The number of the process, if known: a new program may get the page tables of one that has ended, or executed another file.
    pub(crate) process: Option<u32>,
    pub(crate) probe: ProbeId,
    /// The offset of the function in its file: a probe with a pattern is in several functions, and one may be a part of another.
    pub(crate) function: u64,
}

/// All calls in flight. Any vCPU's thread enters and leaves calls.
#[derive(Debug, Default)]
pub(crate) struct ProgramCalls {
    calls: Mutex<BTreeMap<CallKey, ProgramCall>>,
    /// The number of calls: the ends of tasks need no lock while there is none.
    len: AtomicUsize,
}

impl ProgramCalls {
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<CallKey, ProgramCall>) -> T) -> T {
        let mut calls = self.lock();
        let changed = change(&mut calls);
        self.len.store(calls.len(), Ordering::Release);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<CallKey, ProgramCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first of the calls with the stack pointer, in the order of keys.
    const fn first(rsp: u64) -> CallKey {
        CallKey {
            rsp,
            space: Gpa(0),
            process: None,
            probe: ProbeId(0),
            function: 0,
        }
    }

    /// Whether no call is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Whether a call with the stack pointer is in flight, in any task.
    pub(crate) fn has_any_at(&self, rsp: u64) -> bool {
        let calls = self.lock();
        let mut behind = calls.range(Self::first(rsp)..);
        behind.next().is_some_and(|(key, _)| key.rsp == rsp)
    }

    /// Adds a call, and returns the call in its place.
    pub(crate) fn enter(&self, key: CallKey, call: ProgramCall) -> Option<ProgramCall> {
        self.change(|calls| calls.insert(key, call))
    }

    /// The function of a call has jumped to its first instruction.
    pub(crate) fn restart(&self, key: CallKey) {
        if let Some(call) = self.lock().get_mut(&key) {
            call.restarts = true;
        }
    }

    /// Whether the function of a call has jumped to its first instruction, where it is now.
    pub(crate) fn take_restart(&self, key: CallKey) -> bool {
        let mut calls = self.lock();
        let call = calls.get_mut(&key);
        call.is_some_and(|call| std::mem::take(&mut call.restarts))
    }

    /// Takes a call.
    pub(crate) fn take(&self, key: CallKey) -> Option<ProgramCall> {
        self.change(|calls| calls.remove(&key))
    }

    /// The number of the task's calls further up the stack than `rsp`; calls with one stack pointer are one.
    pub(crate) fn enclosing(&self, space: Gpa, task: Option<Gva>, rsp: u64) -> usize {
        let calls = self.lock();
        let first = Self::first(rsp.saturating_add(1));
        let end = Self::first(rsp.saturating_add(STACK_BYTES));
        let above = calls.range(first..end);
        let of_task = above.filter(|(key, call)| key.space == space && call.task == task);
        let mut stack_pointers: Vec<u64> = of_task.map(|(key, _)| key.rsp).collect();
        stack_pointers.dedup();
        stack_pointers.len()
    }

    /// Takes the calls of the task and the probe of `call` further down its stack than `key`: they were left in another way than by a return.
    pub(crate) fn take_below(&self, key: CallKey, call: &ProgramCall) -> Vec<ProgramCall> {
        if call.task.is_none() {
            return Vec::new();
        }
        let stack = key.rsp.saturating_sub(STACK_BYTES)..key.rsp;
        self.take_all(|other, below| {
            let of = |key: &CallKey| (key.space, key.process, key.probe);
            let is_same = of(other) == of(&key);
            is_same && below.task == call.task && stack.contains(&other.rsp)
        })
    }

    /// Takes the calls of a task that ends.
    pub(crate) fn end_task(&self, task: Gva) -> Vec<ProgramCall> {
        self.take_all(|_, call| call.task == Some(task))
    }

    /// Takes the calls of the probes that `is_gone` names.
    pub(crate) fn forget(&self, is_gone: impl Fn(&Arc<Probe>) -> bool) -> Vec<ProgramCall> {
        self.take_all(|_, call| is_gone(&call.probe))
    }

    fn take_all(&self, which: impl Fn(&CallKey, &ProgramCall) -> bool) -> Vec<ProgramCall> {
        self.change(|calls| {
            let taken = calls.extract_if(.., |key, call| which(key, call));
            taken.map(|(_, call)| call).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Purpose;

    fn call(id: u64) -> ProgramCall {
        let (id, name) = (ProbeId(id), "uretprobe:/bin/x:f".into());
        ProgramCall {
            probe: Arc::new(Probe::new(id, name, Purpose::Trace, None, true)),
            task: Some(Gva(1)),
            entered_ns: 0,
            restarts: false,
        }
    }

    fn key(rsp: u64, space: u64, probe: u64) -> CallKey {
        CallKey {
            rsp,
            space: Gpa(space),
            process: Some(7),
            probe: ProbeId(probe),
            function: 0x123,
        }
    }

    #[test]
    fn calls_of_programs_and_probes_with_one_stack_pointer_are_apart() {
        let calls = ProgramCalls::default();
        calls.enter(key(0x1000, 1, 1), call(1));
        calls.enter(key(0x1000, 2, 1), call(1));
        calls.enter(key(0x1000, 1, 2), call(2));
        assert!(calls.take(key(0x1000, 1, 1)).is_some());
        assert!(calls.take(key(0x1000, 1, 1)).is_none());
        assert!(calls.has_any_at(0x1000) && !calls.has_any_at(0x1008));
        assert_eq!(calls.forget(|probe| probe.id == ProbeId(1)).len(), 1);
        assert_eq!(calls.end_task(Gva(2)).len(), 0);
        assert_eq!(calls.end_task(Gva(1)).len(), 1);
        assert!(calls.is_empty());
    }

    #[test]
    fn depth_is_the_number_of_the_calls_further_up_the_stack() {
        let calls = ProgramCalls::default();
        let others_stack = 0x3000 + STACK_BYTES;
        let entered = [
            (0x3000, 1, 1),
            (0x3000, 1, 2),
            (0x2000, 1, 1),
            (0x4000, 2, 1),
            (others_stack, 1, 1),
        ];
        for (rsp, space, probe) in entered {
            calls.enter(key(rsp, space, probe), call(probe));
        }
        assert_eq!(calls.enclosing(Gpa(1), Some(Gva(1)), 0x1000), 2);
        assert_eq!(calls.enclosing(Gpa(1), Some(Gva(1)), 0x2000), 1);
        assert_eq!(calls.enclosing(Gpa(1), Some(Gva(1)), 0x3000), 0);
    }

    #[test]
    fn calls_below_are_those_of_the_task_on_its_stack() {
        let calls = ProgramCalls::default();
        for rsp in [0x1000, 0x2000, 0x3000] {
            calls.enter(key(STACK_BYTES + rsp, 1, 1), call(1));
        }
        calls.enter(key(0x1000, 1, 1), call(1));
        let other = ProgramCall {
            task: Some(Gva(2)),
            ..call(1)
        };
        calls.enter(key(STACK_BYTES + 0x1800, 1, 1), other);
        let below = calls.take_below(key(STACK_BYTES + 0x2000, 1, 1), &call(1));
        assert_eq!(below.len(), 1);
        assert!(calls.has_any_at(STACK_BYTES + 0x2000) && calls.has_any_at(0x1000));
    }
}
