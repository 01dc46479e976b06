//! Faults of the instruction on the host's processor: results of a run, and not the end of the process.

#![expect(unsafe_code, reason = "it handles signals")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use address::PAGE_LEN;

/// The signals for exceptions of the processor.
const SIGNALS: [libc::c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// The handler's stack: the instruction may have any RSP. A frame has all vector registers.
const STACK_BYTES: usize = 16 * PAGE_LEN;

/// The code page, and the place at which a run goes on after a fault.
static CODE: AtomicU64 = AtomicU64::new(0);
static LEAVE: AtomicU64 = AtomicU64::new(0);

/// The last fault: the signal, or 0, and the address in the signal's information.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicU64 = AtomicU64::new(0);

/// A fault on the host's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFault {
    /// The number of the signal.
    pub signal: i32,
    /// The address in the signal's information: the accessed address of a page fault, else mostly 0.
    pub at: u64,
}

/// Handlers of the exceptions on a code page. The process has its former handlers again after the drop.
#[derive(Debug)]
pub(crate) struct FaultHandlers {
    stack: *mut libc::c_void,
    former_stack: libc::stack_t,
    former: [libc::sigaction; SIGNALS.len()],
}

impl FaultHandlers {
    /// Handles the exceptions on the page at `code`, on this thread: a run goes on at `leave`, with the registers of the fault.
    ///
    /// # Panics
    ///
    /// If the host gives no memory, or refuses the handlers.
    pub(crate) fn new(code: u64, leave: u64) -> Self {
        CODE.store(code, Ordering::Relaxed);
        LEAVE.store(leave, Ordering::Relaxed);
        let stack = super::native::map(STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE).cast();
        let new_stack = libc::stack_t {
            ss_sp: stack,
            ss_flags: 0,
            ss_size: STACK_BYTES,
        };
        let mut former_stack = MaybeUninit::uninit();
        // SAFETY: the stack is mapped until after the former stack is this thread's again.
        let done = unsafe { libc::sigaltstack(&raw const new_stack, former_stack.as_mut_ptr()) };
        assert_eq!(done, 0, "the host refuses a stack for signals");
        Self {
            stack,
            // SAFETY: the call has succeeded and so has filled the structure.
            former_stack: unsafe { former_stack.assume_init() },
            former: SIGNALS.map(handle),
        }
    }

    /// The fault since the last call.
    pub(crate) fn take(&self) -> Option<HostFault> {
        match SIGNAL.swap(0, Ordering::Relaxed) {
            0 => None,
            signal => Some(HostFault {
                signal,
                at: ADDRESS.load(Ordering::Relaxed),
            }),
        }
    }
}

impl Drop for FaultHandlers {
    fn drop(&mut self) {
        for (signal, former) in SIGNALS.into_iter().zip(&self.former) {
            // SAFETY: the structure is the former action as returned by the kernel.
            unsafe { libc::sigaction(signal, former, ptr::null_mut()) };
        }
        // SAFETY: the former stack is this thread's own; then nothing uses the mapped stack.
        unsafe {
            libc::sigaltstack(&raw const self.former_stack, ptr::null_mut());
            libc::munmap(self.stack, STACK_BYTES);
        }
    }
}

fn handle(signal: libc::c_int) -> libc::sigaction {
    let mut former = MaybeUninit::uninit();
    // SAFETY: zeros are an action without flags and with an empty mask; the handler has the type that SA_SIGINFO asks for, and
    // the call fills the former action.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = leave_code as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let done = libc::sigaction(signal, &raw const action, former.as_mut_ptr());
        assert_eq!(done, 0, "the host refuses a handler of signal {signal}");
        former.assume_init()
    }
}

/// Notes a fault on the code page, and goes on behind the run. A fault elsewhere, which is one of the test itself, occurs again
/// without a handler.
extern "C" fn leave_code(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a signal's information and the interrupted context, which belong to the handler until it returns.
    // `sigaction` may be called in a handler.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let rip = &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        let code = CODE.load(Ordering::Relaxed);
        if (*rip).cast_unsigned().wrapping_sub(code) >= PAGE_LEN as u64 {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            return;
        }
        ADDRESS.store((*info).si_addr() as u64, Ordering::Relaxed);
        SIGNAL.store(signal, Ordering::Relaxed);
        *rip = LEAVE.load(Ordering::Relaxed).cast_signed();
    }
}
