//! Follows calls to their return.
//!
//! At a function's entry the engine reads the return address, and does not replace the address. The engine plants the return site, and
//! stores the call with the address of the stack slot that holds the return address. If a vCPU executes the plant with the stack pointer
//! just above the slot, the call has returned. The guest's stack is never changed.
//!
//! ```text
//!   entry of f:  rsp ─▶ slot │ ra │        instance {slot, ra}        at ra:  rsp - 8 == slot  ⇒  f has returned
//! ```
//!
//! Slots lie on kernel stacks of 16 KiB, aligned to their size. A call that never returns leaves its instance behind. The engine finds the
//! instance when the same stack is used above the slot again, or when the call's task ends.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use text::AddressHash;

use crate::registry::Probe;

/// Size and alignment of a kernel stack (THREAD_SIZE).
const STACK_BYTES: u64 = 16 << 10;
/// The number of locks, so that vCPUs on different stacks rarely contend.
const SHARDS: usize = 64;

/// A followed call.
pub(crate) struct Instance {
    pub(crate) probe: Arc<Probe>,
    /// The address of the stack slot with the return address.
    pub(crate) slot: u64,
    /// The return address.
    pub(crate) returns_to: Gva,
    /// The time of the call in nanoseconds, for calls reported as events.
    pub(crate) entered_ns: u64,
    /// The value from the entry handler.
    pub(crate) data: Box<dyn Any + Send>,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("probe", &self.probe.name)
            .field("slot", &format_args!("{:#x}", self.slot))
            .field("returns_to", &self.returns_to)
            .finish_non_exhaustive()
    }
}

/// The calls of one shard, by stack.
#[derive(Debug, Default)]
struct Stacks {
    calls: HashMap<u64, Vec<Instance>, AddressHash>,
    /// Empty vectors, for the next stacks: if each call returns before the next is entered, no call allocates memory.
    spare: Vec<Vec<Instance>>,
}

/// The maximum number of spare vectors.
const MOST_SPARE: usize = 16;

impl Stacks {
    fn of(&mut self, stack: u64) -> &mut Vec<Instance> {
        let spare = &mut self.spare;
        let calls = self.calls.entry(stack);
        calls.or_insert_with(|| spare.pop().unwrap_or_default())
    }

    /// Removes the entry of a stack without calls.
    fn forget_if_empty(&mut self, stack: u64) {
        if self.calls.get(&stack).is_some_and(Vec::is_empty)
            && let Some(empty) = self.calls.remove(&stack)
            && self.spare.len() < MOST_SPARE
        {
            self.spare.push(empty);
        }
    }
}

/// Calls that have ended together: mostly one, without an allocation.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    first: Option<Instance>,
    others: Vec<Instance>,
}

impl Ended {
    fn push(&mut self, call: Instance) {
        match self.first {
            None => self.first = Some(call),
            Some(_) => self.others.push(call),
        }
    }

    /// The calls, the last entered first.
    pub(crate) fn last_entered_first(self) -> impl Iterator<Item = Instance> {
        self.others.into_iter().rev().chain(self.first)
    }
}

/// All calls in flight, by stack.
#[derive(Debug)]
pub(crate) struct Calls {
    shards: Vec<Mutex<Stacks>>,
    /// Whether a call has ever been entered. Until then, events need no lock for their depth.
    any: AtomicBool,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            any: AtomicBool::new(false),
        }
    }
}

fn stack_of(slot: u64) -> u64 {
    slot & !(STACK_BYTES - 1)
}

impl Calls {
    /// Locks a shard. The lock is held only for a look at one stack's few calls, never during a wait.
    fn shard(&self, stack: u64) -> MutexGuard<'_, Stacks> {
        let index = usize::try_from(stack / STACK_BYTES).unwrap_or(0) % SHARDS;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call that was just entered. Calls further up the same stack that have not returned never will: the result holds them as
    /// abandoned.
    pub(crate) fn entered(&self, instance: Instance) -> Vec<Instance> {
        let stack = stack_of(instance.slot);
        // Most calls find the mark set, and leave the cache line to the other vCPUs.
        if !self.any.load(Ordering::Relaxed) {
            self.any.store(true, Ordering::Relaxed);
        }
        let mut shard = self.shard(stack);
        let calls = shard.of(stack);
        let stale = |old: &Instance| {
            old.slot < instance.slot
                || (old.slot == instance.slot
                    && (old.returns_to != instance.returns_to
                        || Arc::ptr_eq(&old.probe, &instance.probe)))
        };
        let abandoned = calls.extract_if(.., |old| stale(old)).collect();
        calls.push(instance);
        abandoned
    }

    /// Takes the calls that have returned: a plant that shows returns to some addresses was executed, with the stack pointer at or just
    /// above `slot`.
    pub(crate) fn returned(&self, slot: u64, shows: impl Fn(Gva) -> bool) -> Ended {
        let stack = stack_of(slot);
        let mut shard = self.shard(stack);
        let mut returned = Ended::default();
        let Some(calls) = shard.calls.get_mut(&stack) else {
            return returned;
        };
        for call in calls.extract_if(.., |call| call.slot == slot && shows(call.returns_to)) {
            returned.push(call);
        }
        shard.forget_if_empty(stack);
        returned
    }

    /// The number of calls in flight further up the stack than `slot`; calls with the same slot, of a tail call for instance, are one.
    pub(crate) fn enclosing(&self, slot: u64) -> usize {
        if !self.any.load(Ordering::Relaxed) {
            return 0;
        }
        let stack = stack_of(slot);
        let shard = self.shard(stack);
        let (mut last, mut enclosing) = (None, 0);
        for call in shard.calls.get(&stack).into_iter().flatten() {
            // A call further down the stack was entered later.
            if call.slot > slot && last.replace(call.slot) != Some(call.slot) {
                enclosing += 1;
            }
        }
        enclosing
    }

    /// Takes the calls on the stack of a task that ends: they will not return.
    pub(crate) fn task_ends(&self, rsp: u64) -> Vec<Instance> {
        let stack = stack_of(rsp);
        self.shard(stack).calls.remove(&stack).unwrap_or_default()
    }

    /// Takes the calls of these probes.
    pub(crate) fn forget(&self, is_gone: impl Fn(&Arc<Probe>) -> bool) -> Vec<Instance> {
        self.take(|call| is_gone(&call.probe))
    }

    /// Takes the calls that return to `site`.
    pub(crate) fn returning_to(&self, site: Gva) -> Vec<Instance> {
        self.take(|call| call.returns_to == site)
    }

    /// The return addresses of the calls in flight.
    pub(crate) fn return_sites(&self) -> BTreeSet<Gva> {
        let mut sites = BTreeSet::new();
        for shard in &self.shards {
            let stacks = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let calls = stacks.calls.values().flatten();
            sites.extend(calls.map(|call| call.returns_to));
        }
        sites
    }

    fn take(&self, which: impl Fn(&Instance) -> bool) -> Vec<Instance> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut stacks = shard.lock().unwrap_or_else(PoisonError::into_inner);
            stacks.calls.retain(|_, calls| {
                taken.extend(calls.extract_if(.., |call| which(call)));
                !calls.is_empty()
            });
        }
        taken
    }
}
