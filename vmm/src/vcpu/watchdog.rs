//! A timer that kicks its own thread, to end the run of a vCPU that runs alone.
#![expect(unsafe_code, reason = "POSIX timers")]

use std::time::Duration;

use super::kick;

/// A timer that kicks the creating thread, periodically or once, until the value is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog(Option<libc::timer_t>);

impl Watchdog {
    /// Starts a timer that kicks at each `period`. If the host has no timer left, no kick comes.
    pub(crate) fn every(period: Duration) -> Self {
        Self::start(period, period)
    }

    /// Starts a timer for a single kick. A period shorter than the cost of a kick would leave the thread no time.
    pub(crate) fn once(after: Duration) -> Self {
        Self::start(after, Duration::ZERO)
    }

    fn start(first: Duration, period: Duration) -> Self {
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
            let spec = |time: Duration| libc::timespec {
                tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
            };
            let every = libc::itimerspec {
                it_interval: spec(period),
                // Zero would stop the timer.
                it_value: spec(first.max(Duration::from_micros(1))),
            };
            libc::timer_settime(timer, 0, &raw const every, std::ptr::null_mut());
            Self(Some(timer))
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(timer) = self.0 {
            // SAFETY: created by `every` and deleted only here.
            unsafe { libc::timer_delete(timer) };
        }
    }
}
