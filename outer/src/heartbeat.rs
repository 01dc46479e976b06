//! A thread that interrupts each CPU several times a second, because QEMU loses interrupts of a CPU that runs a guest.
//!
//! QEMU's TCG keeps the requests for interrupts of a CPU in a word. At each VM entry and exit, up to QEMU 10.0, the CPU changes a bit of the
//! word without a lock. Another thread of QEMU may have set the bit for the CPU's timer meanwhile, which is then lost. The kernel arms the
//! timer anew only when the timer has come: the CPU has no time any more, until another interrupt arrives. If its guest executes a loop
//! that waits for another vCPU, and the thread of that vCPU waits for this CPU, both wait forever.
//!
//! The first CPU runs no guest, so its timer comes. From there, the thread moves to each other CPU and back. As a real-time thread, it
//! preempts the thread there at once, by an interrupt, which also delivers the lost one.
#![expect(unsafe_code, reason = "rustix has no sched_setscheduler")]

use std::io;
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

/// The time that a lost interrupt may hold up a CPU.
const PERIOD: Duration = Duration::from_millis(100);
/// QEMU's first CPU: see [`crate::COMMAND_LINE`].
const FIRST: usize = 0;

/// Starts the thread, which ends with the machine.
///
/// # Errors
///
/// If the thread cannot be started.
pub(crate) fn start() -> io::Result<()> {
    let cpus = rustix::thread::sched_getaffinity(None)?;
    let others: Vec<usize> = (FIRST + 1..CpuSet::MAX_CPU)
        .filter(|cpu| cpus.is_set(*cpu))
        .collect();
    thread::Builder::new()
        .name("heartbeat".to_owned())
        .spawn(move || {
            if let Err(error) = beat(&others) {
                eprintln!("hyprobe: lost interrupts of QEMU stay lost: {error}");
            }
        })?;
    Ok(())
}

fn beat(others: &[usize]) -> io::Result<()> {
    become_real_time()?;
    loop {
        move_to(FIRST)?;
        thread::sleep(PERIOD);
        for cpu in others {
            move_to(*cpu)?;
            move_to(FIRST)?;
        }
    }
}

fn move_to(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn become_real_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the parameters, and 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
