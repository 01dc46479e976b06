//! Handler of system calls outside a thread's filter.
//!
//! The kernel raises SIGSYS in the thread (`SECCOMP_RET_TRAP`). The handler names thread and call on standard error and ends the process
//! at once: a thread with unexpected calls may be under a guest's control.

#![expect(
    unsafe_code,
    reason = "a signal handler is installed, and reads the interrupted registers"
)]

use std::cell::Cell;
use std::io;
use std::ptr;

/// Exit code after a failure of hyprobe itself.
pub(crate) const EXIT_CODE: i32 = 3;

/// Code of a SIGSYS raised by a filter.
const SYS_SECCOMP: libc::c_int = 1;

thread_local! {
    static NAME: Cell<&'static str> = const { Cell::new("main") };
}

/// Notes the name of the calling thread, for messages.
pub(crate) fn name_thread(name: &'static str) {
    NAME.set(name);
}

/// Signals that end a run. A thread working for a guest does not take the signals.
const ENDS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Blocks the signals that end a run in the calling thread: the kernel delivers the signals to another thread.
pub(crate) fn leave_signals_to_others() {
    // SAFETY: all bits zero is a valid `sigset_t`, which `sigemptyset` initialises in any case; the pointers are to this set, which
    // outlives the calls, and the old mask is not asked for.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDS {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
}

/// Installs the handler.
pub(crate) fn report() -> io::Result<()> {
    // SAFETY: all bits zero is a valid `sigaction`: no handler, no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_violation as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: `action` is initialised, and its handler has the signature that SA_SIGINFO asks for and calls only
    // async-signal-safe functions. The old action is not asked for.
    let done = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_violation(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO, the kernel passes the signal's information as the second argument, valid while the handler runs.
    let is_filtered = unsafe { (*info).si_code } == SYS_SECCOMP;
    // SAFETY: with SA_SIGINFO, the kernel passes the interrupted context as the third argument, valid while the handler runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    // The kernel restores RAX, which held the number of the call.
    let call = context.uc_mcontext.gregs[libc::REG_RAX as usize];
    let mut line = Line::default();
    if is_filtered {
        line.add(b"hyprobe: thread `");
        line.add(NAME.get().as_bytes());
        line.add(b"` made the system call ");
        line.add_number(call);
        line.add(
            b", which its filter forbids: hyprobe ends. This is a bug of hyprobe or an attack by the guest; please report \
              it. `--no-sandbox` runs without filters.\n",
        );
    } else {
        line.add(b"hyprobe: a process has sent SIGSYS: hyprobe ends.\n");
    }
    if has_room(libc::STDERR_FILENO) {
        let bytes = line.bytes();
        // SAFETY: the pointer and the length are those of a slice; `write` is async-signal-safe.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    }
    // SAFETY: `_exit` is async-signal-safe.
    unsafe { libc::_exit(EXIT_CODE) }
}

/// Whether a write of a line returns at once. A pipe without a reader must not keep the process alive; the exit code is enough. A pipe is
/// ready if the pipe has room for a page, which is more than a line.
fn has_room(file: libc::c_int) -> bool {
    let mut asked = libc::pollfd {
        fd: file,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the pointer is to one entry, which outlives the call; the call does not wait, and `poll` is async-signal-safe.
    let ready = unsafe { libc::poll(&raw mut asked, 1, 0) };
    ready == 1 && asked.revents & libc::POLLOUT != 0
}

const LINE_BYTES: usize = 320;

/// A line of limited length, built without allocations.
struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; LINE_BYTES],
            len: 0,
        }
    }
}

impl Line {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn add(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(free) = self.bytes.get_mut(self.len) {
                *free = *byte;
                self.len += 1;
            }
        }
    }

    fn add_number(&mut self, number: i64) {
        if number < 0 {
            self.add(b"-");
        }
        let mut digits = [0; 20];
        let (mut rest, mut at) = (number.unsigned_abs(), digits.len());
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 || at == 0 {
                break;
            }
        }
        self.add(&digits[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_holds_numbers_and_drops_bytes_without_room() {
        let mut line = Line::default();
        line.add(b"call ");
        line.add_number(-i64::MAX);
        line.add(b", ");
        line.add_number(0);
        assert_eq!(line.bytes(), b"call -9223372036854775807, 0");
        line.add(&[b'x'; 2 * LINE_BYTES]);
        assert_eq!(line.bytes().len(), LINE_BYTES);
    }
}
