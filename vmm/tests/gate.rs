//! The gate in every order of the threads' steps: loom runs each model once for each order, and finds races and deadlocks that
//! real threads meet once in years.
//!
//! Each model has the threads of a situation, and two rules: no vCPU is in the guest beside a holder of the gate, and every
//! thread ends.

#[path = "../src/vcpu/gate.rs"]
mod gate;

/// The locks of the gate: loom's locks in place of `vcpu/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

use gate::Gate;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use sync::{AtomicBool, Condvar, Mutex, Ordering};

/// A machine: the gate, and the number of vCPUs in the guest.
#[derive(Debug)]
struct Machine {
    gate: Gate,
    inside: AtomicUsize,
}

impl Machine {
    fn new(vcpus: usize) -> Arc<Self> {
        let gate = Gate::default();
        for _ in 0..vcpus {
            gate.enter();
        }
        Arc::new(Self {
            gate,
            inside: AtomicUsize::new(0),
        })
    }

    /// A vCPU enters the guest and exits.
    fn visit(&self) {
        self.gate.checkpoint(|| ());
        self.inside.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn assert_empty(&self) {
        let inside = self.inside.load(Ordering::SeqCst);
        assert_eq!(inside, 0, "a vCPU is in the guest beside a holder");
    }

    /// A vCPU takes the gate for itself.
    fn hold_as_vcpu(&self) {
        let closed = self.gate.close_from_vcpu(|| ());
        self.assert_empty();
        drop(closed);
    }

    /// A control thread takes the gate.
    fn hold(&self) {
        let closed = self.gate.close(|| ());
        self.assert_empty();
        drop(closed);
    }
}

/// A guest that never exits without a kick. A kick ends the current run, or the next run.
#[derive(Debug)]
struct Guest {
    is_kicked: Mutex<bool>,
    kicked: Condvar,
    is_over: AtomicBool,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            is_kicked: Mutex::new(false),
            kicked: Condvar::new(),
            is_over: AtomicBool::new(false),
        }
    }
}

impl Guest {
    fn run(&self) {
        let mut is_kicked = self.is_kicked.lock().expect("no panic");
        while !*is_kicked {
            is_kicked = self.kicked.wait(is_kicked).expect("no panic");
        }
        *is_kicked = false;
    }

    fn kick(&self) {
        *self.is_kicked.lock().expect("no panic") = true;
        self.kicked.notify_one();
    }
}

/// Runs `situation` in each order of the threads' steps with at most `interruptions` preemptions.
fn in_every_order(interruptions: usize, situation: impl Fn() + Sync + Send + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(interruptions);
    model.check(situation);
}

#[test]
fn pause_waits_for_a_vcpu_and_the_vcpu_for_its_end() {
    in_every_order(4, || {
        let machine = Machine::new(1);
        let vcpu = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                machine.visit();
                machine.visit();
                machine.gate.leave();
            }
        });
        machine.hold();
        vcpu.join().expect("no panic");
        // No thread is left to wait for.
        machine.hold();
    });
}

/// A vCPU that exits only if kicked: a kick before the gate is closed would have no effect.
#[test]
fn vcpu_that_leaves_the_guest_only_when_kicked_is_paused() {
    in_every_order(4, || {
        let machine = Machine::new(1);
        let guest = Arc::new(Guest::default());
        let vcpu = thread::spawn({
            let (machine, guest) = (Arc::clone(&machine), Arc::clone(&guest));
            move || {
                loop {
                    machine.gate.checkpoint(|| ());
                    if guest.is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    machine.inside.fetch_add(1, Ordering::SeqCst);
                    guest.run();
                    machine.inside.fetch_sub(1, Ordering::SeqCst);
                }
                machine.gate.leave();
            }
        });
        let closed = machine.gate.close(|| guest.kick());
        machine.assert_empty();
        guest.is_over.store(true, Ordering::SeqCst);
        drop(closed);
        guest.kick();
        vcpu.join().expect("no panic");
    });
}

#[test]
fn two_pauses_and_a_vcpu_come_to_their_ends() {
    in_every_order(3, || {
        let machine = Machine::new(1);
        let control = |machine: &Arc<Machine>| {
            let machine = Arc::clone(machine);
            thread::spawn(move || machine.hold())
        };
        let controls = [control(&machine), control(&machine)];
        machine.visit();
        machine.gate.leave();
        for control in controls {
            control.join().expect("no panic");
        }
    });
}

#[test]
fn two_vcpus_that_want_the_gate_at_once_take_turns() {
    in_every_order(4, || {
        let machine = Machine::new(2);
        let other = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                machine.hold_as_vcpu();
                machine.visit();
                machine.gate.leave();
            }
        });
        machine.visit();
        machine.hold_as_vcpu();
        machine.gate.leave();
        other.join().expect("no panic");
    });
}

#[test]
fn parked_vcpu_passes_before_the_same_vcpu_closes_the_gate_again() {
    in_every_order(4, || {
        let machine = Machine::new(2);
        let has_parked = Arc::new(AtomicBool::new(false));
        let has_passed = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let machine = Arc::clone(&machine);
            let (has_parked, has_passed) = (Arc::clone(&has_parked), Arc::clone(&has_passed));
            move || {
                let park = || has_parked.store(true, Ordering::SeqCst);
                machine.gate.checkpoint(park);
                has_passed.store(true, Ordering::SeqCst);
                machine.gate.leave();
            }
        });
        let closed = machine.gate.close_from_vcpu(|| ());
        let was_parked = has_parked.load(Ordering::SeqCst);
        drop(closed);
        let closed = machine.gate.close_from_vcpu(|| ());
        assert!(!was_parked || has_passed.load(Ordering::SeqCst));
        drop(closed);
        machine.gate.leave();
        other.join().expect("no panic");
    });
}

#[test]
fn vcpu_that_waits_for_room_enters_the_guest_after_the_pause() {
    in_every_order(4, || {
        let machine = Machine::new(1);
        let vcpu = thread::spawn({
            let machine = Arc::clone(&machine);
            move || {
                machine.gate.parked(|| ());
                machine.visit();
                machine.gate.leave();
            }
        });
        machine.hold();
        vcpu.join().expect("no panic");
    });
}
