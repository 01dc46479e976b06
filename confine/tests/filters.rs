//! Each kind of thread tries calls that its filter forbids. A forbidden call ends the process, so each try is a process of its own:
//! this test program, started again.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use hyprobe_confine::{ThreadKind, begin, enter, filter_process, load_filters};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, getpid, pidfd_getfd, pidfd_open};

/// Names the thread kind and the call in the environment of the started process.
const VARIABLE: &str = "HYPROBE_CONFINE_TEST";

/// Runs `call` in a thread of `kind`, in a process of its own.
fn try_call(kind: &str, call: &str) -> Output {
    let program = std::env::current_exe().expect("this program");
    Command::new(program)
        .args(["--exact", "started_process_makes_the_call", "--nocapture"])
        .env(VARIABLE, format!("{kind} {call}"))
        .output()
        .expect("it starts")
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
            // A pair has no address.
            "pair" => std::os::unix::net::UnixStream::pair().is_ok(),
            "execute" => Command::new("/bin/true").status().is_err(),
            "thread" => std::thread::Builder::new().spawn(|| ()).is_err(),
            // Another process's file descriptors; this process's own, which the kernel allows.
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
fn filter_of_all_threads_answers_with_an_error_and_lets_other_work_through() {
    for call in ["take", "usual", "socket", "pair"] {
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
