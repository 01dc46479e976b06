//! The gate under real threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::gate::Gate;

/// Threads in the role of vCPUs take turns in holding the gate, and a control thread holds the gate, too. At no time may
/// a thread run beside a holder.
#[test]
fn gate_holder_excludes_all_other_threads() {
    const ROUNDS: usize = 300;
    let gate = Arc::new(Gate::default());
    let inside = Arc::new(AtomicUsize::new(0));
    let vcpus: Vec<_> = (0..3)
        .map(|_| {
            gate.enter();
            let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    match round % 5 {
                        0 => gate.parked(thread::yield_now),
                        _ => gate.checkpoint(|| ()),
                    }
                    inside.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    if round % 7 == 0 {
                        // From here on the thread counts as parked, until the thread holds the gate.
                        inside.fetch_sub(1, Ordering::SeqCst);
                        let closed = gate.close_from_vcpu(|| ());
                        let others = inside.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "another vCPU runs beside the holder");
                        drop(closed);
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
                gate.leave();
            })
        })
        .collect();
    for _ in 0..ROUNDS {
        let closed = gate.close(|| ());
        assert_eq!(
            inside.load(Ordering::SeqCst),
            0,
            "a vCPU runs beside the control thread"
        );
        drop(closed);
    }
    for vcpu in vcpus {
        vcpu.join().expect("no assertion failed on a vCPU thread");
    }
}

#[test]
fn a_vcpu_that_waits_for_room_does_not_hold_up_a_pause() {
    let gate = Gate::default();
    gate.enter();
    let (room, rooms) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let gate = &gate;
        let vcpu = scope.spawn(move || {
            gate.parked(|| rooms.recv().expect("room"));
            gate.leave();
        });
        drop(gate.close(|| ()));
        let closed = gate.close(|| ());
        room.send(()).expect("the vCPU waits");
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(!vcpu.is_finished(), "a vCPU runs beside the holder");
        drop(closed);
    });
}

#[test]
fn a_panic_while_a_vcpu_waits_leaves_the_counts_right() {
    let gate = Gate::default();
    gate.enter();
    let panic = std::panic::AssertUnwindSafe(|| gate.parked(|| panic!("as the test wants")));
    std::panic::catch_unwind(panic).expect_err("it panics");
    let state = gate.lock();
    assert_eq!((state.alive, state.parked), (1, 0));
    drop(state);
    gate.leave();
    drop(gate.close(|| ()));
}
