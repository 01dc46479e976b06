//! Tests of forbidden calls in each kind of thread. A forbidden call ends the process, so each try is a separate process: the test program,
//! started again.

#![expect(
    unsafe_code,
    reason = "no library makes a system call of another interface"
)]

use std::io::{ErrorKind, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hyprobe_confine::{ThreadKind, begin, enter, filter_process, load_filters};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, getpid, pidfd_getfd, pidfd_open};

/// Time limit for processes. On an idle host, the processes end at once.
const PATIENCE: Duration = Duration::from_secs(60);
/// Marks the calls of the x32 interface.
const X32_BIT: libc::c_long = 0x4000_0000;
/// `KVM_CREATE_VM` and `KVM_GET_REGS`.
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
const KVM_GET_REGS: libc::c_ulong = 0x8090_ae81;
/// Names the thread kind and the call in the environment of the started process.
const VARIABLE: &str = "HYPROBE_CONFINE_TEST";

/// A process in which a thread of `kind` makes `call`.
fn command(kind: &str, call: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "started_process_makes_the_call", "--nocapture"])
        .env(VARIABLE, format!("{kind} {call}"));
    command
}

/// Runs `call` in a thread of `kind`, in a separate process.
fn try_call(kind: &str, call: &str) -> Output {
    command(kind, call).output().expect("it starts")
}

/// The body of the started process. Without the variable the test runner has started the test: nothing is to be done.
#[test]
fn started_process_makes_the_call() {
    let Ok(wanted) = std::env::var(VARIABLE) else {
        return;
    };
    let (kind, call) = wanted.split_once(' ').expect("kind and call");
    begin().expect("rights given up");
    load_filters().expect("filters");
    filter_process().expect("filters of all threads");
    let kind = ThreadKind::ALL.into_iter().find(|it| it.name() == kind);
    let call = call.to_owned();
    let thread = std::thread::spawn(move || {
        if let Some(kind) = kind {
            enter(kind);
        }
        match call.as_str() {
            // Locks, memory, time, a message.
            "usual" => {
                let memory: Vec<Vec<u8>> = (0..64).map(|n| vec![1; n << 12]).collect();
                std::thread::sleep(std::time::Duration::from_millis(1));
                eprintln!("{}", memory.len());
                true
            }
            "open" => {
                let opened = std::fs::File::open("/dev/null");
                opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
            }
            "socket" => {
                let bound = std::net::TcpListener::bind("127.0.0.1:0");
                bound.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
            }
            // `getpid` under its number of the x32 interface. A kernel without x32 would answer ENOSYS.
            "x32" => {
                // SAFETY: the call has no arguments and touches no memory.
                let done = unsafe { libc::syscall(X32_BIT | libc::SYS_getpid) };
                let error = std::io::Error::last_os_error();
                done == -1 && error.raw_os_error() == Some(libc::EPERM)
            }
            // A pair has no address.
            "pair" => std::os::unix::net::UnixStream::pair().is_ok(),
            // The first request makes another machine; every run makes the second request. No descriptor has the number.
            "machine" => request(KVM_CREATE_VM) == Err(Some(libc::EBADF)),
            "registers" => request(KVM_GET_REGS) == Err(Some(libc::EBADF)),
            // Another process or thread would get this thread's signals; signals that hyprobe does not use.
            "owner" => control(libc::F_SETOWN) == Err(Some(libc::EBADF)),
            // TIOCSTI: a key for the shell on the same terminal. TIOCLINUX: a paste.
            "type" => [libc::TIOCSTI, libc::TIOCLINUX].map(request) == [Err(Some(libc::EPERM)); 2],
            "flags" => control(libc::F_GETFD) == Err(Some(libc::EBADF)),
            "signal" => signal(libc::SIGURG).is_ok(),
            "panic" => panic!("on purpose"),
            "execute" => Command::new("/bin/true").status().is_err(),
            "thread" => std::thread::Builder::new().spawn(|| ()).is_err(),
            // The call can take another process's file descriptors. The test takes its own descriptor, which the kernel would allow.
            "take" => {
                let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor");
                let taken = pidfd_getfd(own, 0, PidfdGetfdFlags::empty());
                taken.is_err_and(|error| error == Errno::PERM)
            }
            other => panic!("no call {other}"),
        }
    });
    let done = thread.join().expect("the thread ends");
    println!("{}", if done { "done" } else { "not refused" });
}

/// An `ioctl` of no descriptor.
fn request(request: libc::c_ulong) -> Result<(), Option<libc::c_int>> {
    // SAFETY: the kernel finds no file for the descriptor, and looks at no argument.
    outcome(unsafe { libc::syscall(libc::SYS_ioctl, -1, request, 0) })
}

/// An `fcntl` of no descriptor.
fn control(command: libc::c_int) -> Result<(), Option<libc::c_int>> {
    // SAFETY: as above.
    outcome(unsafe { libc::syscall(libc::SYS_fcntl, -1, command, 0) })
}

/// Sends the calling thread a signal.
fn signal(number: libc::c_int) -> Result<(), Option<libc::c_int>> {
    // SAFETY: the call touches no memory; the signal's default is to be ignored.
    outcome(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), number) })
}

fn outcome(done: libc::c_long) -> Result<(), Option<libc::c_int>> {
    match done {
        -1 => Err(std::io::Error::last_os_error().raw_os_error()),
        _ => Ok(()),
    }
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}: {out}{err}", output.status)
}

#[test]
fn threads_of_all_kinds_do_their_usual_work_and_open_no_file() {
    for kind in ThreadKind::ALL {
        for call in ["usual", "open"] {
            let output = try_call(kind.name(), call);
            let text = text(&output);
            assert!(
                output.status.success() && text.contains("done\n"),
                "{kind:?} {call}: {text}"
            );
        }
    }
}

#[test]
fn forbidden_call_ends_the_process_and_is_named() {
    for kind in ThreadKind::ALL {
        // The C library blocks signals while it starts programs and threads: then the kernel ends the process without a message.
        for call in ["execute", "thread"] {
            let output = try_call(kind.name(), call);
            let signal = output.status.signal();
            assert_eq!(
                signal,
                Some(Signal::SYS.as_raw()),
                "{kind:?}: {}",
                text(&output)
            );
        }
        let output = try_call(kind.name(), "socket");
        let text = text(&output);
        assert_eq!(output.status.code(), Some(3), "{kind:?}: {text}");
        let named = format!("thread `{}` made the system call ", kind.name());
        assert!(text.contains(&named), "{text}");
    }
}

#[test]
fn arguments_that_hyprobe_does_not_use_end_the_process() {
    for kind in ThreadKind::ALL {
        for call in ["machine", "owner", "signal"] {
            let output = try_call(kind.name(), call);
            assert_eq!(
                output.status.code(),
                Some(3),
                "{kind:?} {call}: {}",
                text(&output)
            );
        }
        let output = try_call(kind.name(), "flags");
        assert!(
            text(&output).contains("done\n"),
            "{kind:?}: {}",
            text(&output)
        );
        let reads_registers =
            [ThreadKind::Vcpu, ThreadKind::Engine, ThreadKind::Clients].contains(&kind);
        let output = try_call(kind.name(), "registers");
        let code = if reads_registers { 0 } else { 3 };
        assert_eq!(
            output.status.code(),
            Some(code),
            "{kind:?}: {}",
            text(&output)
        );
    }
}

#[test]
fn panic_of_each_thread_is_reported_with_its_backtrace() {
    for kind in ThreadKind::ALL {
        for backtrace in ["0", "1", "full"] {
            let output = command(kind.name(), "panic")
                .env("RUST_BACKTRACE", backtrace)
                .output()
                .expect("it starts");
            let text = text(&output);
            // The started process waits for its thread, and panics then: no filter has ended it.
            assert_eq!(output.status.code(), Some(101), "{kind:?}: {text}");
            assert!(text.contains("on purpose"), "{kind:?}: {text}");
            let has_backtrace = text.contains("stack backtrace:");
            assert_eq!(has_backtrace, backtrace != "0", "{kind:?}: {text}");
        }
    }
}

#[test]
fn forbidden_call_ends_the_process_with_its_message_unread() {
    for kind in ThreadKind::ALL {
        let (_unread, mut full) = std::io::pipe().expect("a pipe");
        let flags = fcntl_getfl(&full).expect("flags");
        fcntl_setfl(&full, flags | OFlags::NONBLOCK).expect("set");
        for page in [&[0; 4096][..], &[0]] {
            while full.write(page).is_ok() {}
        }
        fcntl_setfl(&full, flags).expect("set");
        let mut process = command(kind.name(), "socket")
            .stdout(Stdio::null())
            .stderr(full)
            .spawn()
            .expect("it starts");
        let began = Instant::now();
        let end = loop {
            match process.try_wait().expect("a process") {
                Some(end) => break Some(end),
                None if began.elapsed() > PATIENCE => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        // An error means that the process has ended.
        let _ = process.kill();
        let _ = process.wait();
        assert_eq!(end.and_then(|end| end.code()), Some(3), "{kind:?}");
    }
}

#[test]
fn filter_of_all_threads_fails_forbidden_calls_and_allows_the_others() {
    for call in ["take", "usual", "socket", "pair", "x32", "type"] {
        let output = try_call("main", call);
        let text = text(&output);
        assert!(
            output.status.success() && text.contains("done\n"),
            "{call}: {text}"
        );
    }
    for call in ["execute", "thread", "open"] {
        let text = text(&try_call("main", call));
        assert!(text.contains("not refused"), "{call}: {text}");
    }
}
