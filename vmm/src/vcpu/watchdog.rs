//! A bound on a single step: a timer that kicks its own thread.
//!
//! A step normally ends in a debug exit after one instruction. When the instruction faults, the guest's fault handler
//! runs on, with TF off, and nothing would ever bring the vCPU back: the timer does.
#![expect(unsafe_code, reason = "POSIX timers")]

use std::time::Duration;

use super::kick;

/// How long one instruction may take before it is taken for one that faulted.
const STEP_LIMIT: Duration = Duration::from_millis(5);

/// Kicks the thread that made it, from when it is made until it is dropped, every [`STEP_LIMIT`].
#[derive(Debug)]
pub(crate) struct StepWatchdog(Option<libc::timer_t>);

impl StepWatchdog {
    /// Starts the timer. Without timers to be had, steps are unbounded.
    pub(crate) fn start() -> Self {
        // SAFETY: an all-zero sigevent is valid; the fields that SIGEV_THREAD_ID needs are set, and the pointers are
        // to locals that outlive the calls.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = kick::kick_signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::ptr::null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) != 0 {
                return Self(None);
            }
            let nanos = libc::c_long::from(STEP_LIMIT.subsec_nanos().cast_signed());
            let period = libc::timespec {
                tv_sec: 0,
                tv_nsec: nanos,
            };
            let every = libc::itimerspec {
                it_interval: period,
                it_value: period,
            };
            libc::timer_settime(timer, 0, &raw const every, std::ptr::null_mut());
            Self(Some(timer))
        }
    }
}

impl Drop for StepWatchdog {
    fn drop(&mut self) {
        if let Some(timer) = self.0 {
            // SAFETY: created by `start` and deleted only here.
            unsafe { libc::timer_delete(timer) };
        }
    }
}
