//! Kicks: a signal forces a vCPU out of the guest. The signal handler sets `immediate_exit`.
//!
//! A kicker first publishes the reason of the kick, then signals. The vCPU thread first clears `immediate_exit`, then checks
//! for a reason to stop. In every interleaving, either the thread sees the reason or its next `KVM_RUN` returns at once: no
//! kick is lost.
#![expect(
    unsafe_code,
    reason = "installs a signal handler and reaches kvm_run from it"
)]

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use kvm_ioctls::VcpuFd;

thread_local! {
    /// This thread's `kvm_run.immediate_exit`, or null on a thread that runs no vCPU.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
}

pub(super) fn kick_signal() -> libc::c_int {
    libc::SIGRTMIN() + 1
}

extern "C" fn on_kick(_signal: libc::c_int) {
    IMMEDIATE_EXIT.with(|cell| {
        let flag = cell.get();
        if !flag.is_null() {
            // SAFETY: set by `Registration`, which clears it before the mapping can go away, on this very thread.
            unsafe { flag.write_volatile(1) };
        }
    });
}

/// Makes the calling thread's vCPU kickable while the value lives.
#[derive(Debug)]
pub(crate) struct Registration {
    _this_thread_only: std::marker::PhantomData<*const ()>,
}

impl Registration {
    /// Registers the calling thread, which runs `vcpu`; the caller keeps `vcpu` alive and unmoved-from (its mapping
    /// does not move with the value) until the registration is dropped.
    pub(crate) fn new(vcpu: &mut VcpuFd, target: &KickTarget) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install_handler);
        let flag = std::ptr::from_mut(&mut vcpu.get_kvm_run().immediate_exit);
        IMMEDIATE_EXIT.with(|cell| cell.set(flag));
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        target.0.store(tid, Ordering::Release);
        Self {
            _this_thread_only: std::marker::PhantomData,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.with(|cell| cell.set(std::ptr::null_mut()));
    }
}

/// Clears the request that made the last `KVM_RUN` return.
pub(crate) fn clear(vcpu: &mut VcpuFd) {
    set(vcpu, 0);
}

/// Makes the next `KVM_RUN` of this thread's vCPU return at once.
pub(crate) fn request(vcpu: &mut VcpuFd) {
    set(vcpu, 1);
}

fn set(vcpu: &mut VcpuFd, value: u8) {
    let flag = std::ptr::from_mut(&mut vcpu.get_kvm_run().immediate_exit);
    // SAFETY: the flag lies in this vCPU's kvm_run mapping; volatile because the signal handler of this thread
    // writes it too.
    unsafe { flag.write_volatile(value) };
}

/// The thread of a vCPU, as a target of kicks.
#[derive(Debug, Default)]
pub(crate) struct KickTarget(AtomicI32);

impl KickTarget {
    /// Makes the thread's current or next `KVM_RUN` return with EINTR. A kick has no effect on a thread that has ended.
    pub(crate) fn kick(&self) {
        let tid = self.0.load(Ordering::Acquire);
        if tid != 0 {
            // SAFETY: tgkill touches no memory; a stale tid of this process gives ESRCH or an ignored signal, since
            // the handler does nothing on a thread without a vCPU.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, kick_signal()) };
        }
    }
}

fn install_handler() {
    // SAFETY: the all-zero sigaction is valid (no flags: KVM_RUN must return EINTR, so no SA_RESTART), and the
    // handler only writes one byte through a pointer of its own thread.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_kick as *const () as usize;
        libc::sigemptyset(&raw mut action.sa_mask);
        let installed = libc::sigaction(kick_signal(), &raw const action, std::ptr::null_mut());
        assert_eq!(installed, 0, "the kick signal is a valid real-time signal");
    }
}
