//! Tests of a process with rights to some files. The rules are final, so each test needs a separate process, as under nextest. With cargo's
//! runner, each test restricts only its own thread.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use hyprobe_confine::{FileRights, Landlock, begin, landlock};

/// Restricts a new thread to `rights`, and runs `work` there.
fn restricted<T: Send + 'static>(
    rights: FileRights,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    begin().expect("rights given up");
    let thread = std::thread::spawn(move || {
        let rules = rights.rules().expect("rules");
        match rules.restrict().expect("restricted") {
            // A host without Landlock has nothing to show.
            Landlock::Missing => None,
            Landlock::Full | Landlock::Partial => Some(work()),
        }
    });
    thread.join().expect("the thread ends")
}

fn is_denied<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[test]
fn listed_files_can_be_read_and_no_others() {
    let dir = tempfile::tempdir().expect("tempdir");
    let [listed, other] = ["listed", "other"].map(|name| dir.path().join(name));
    fs::write(&listed, "1").expect("written");
    fs::write(&other, "2").expect("written");
    let rights = FileRights {
        read: vec![listed.clone(), "/nonexistent".into()],
        ..FileRights::default()
    };
    let seen = restricted(rights, move || {
        let reads = fs::read(&listed).is_ok();
        let denied = [
            is_denied(fs::read(&other)),
            is_denied(fs::write(&listed, "3")),
        ];
        (reads, denied, is_denied(fs::read("/etc/passwd")))
    });
    if let Some(seen) = seen {
        assert_eq!(seen, (true, [true; 2], true));
    }
}

#[test]
fn files_are_made_and_removed_where_the_rules_say() {
    let dir = tempfile::tempdir().expect("tempdir");
    let [change, remove, other] = ["change", "remove", "other"].map(|name| dir.path().join(name));
    for path in [&change, &remove, &other] {
        fs::create_dir(path).expect("made");
        fs::write(path.join("old"), "1").expect("written");
    }
    let rights = FileRights {
        change: vec![change.clone()],
        remove: vec![remove.clone()],
        ..FileRights::default()
    };
    let seen = restricted(rights, move || {
        let new = |path: &Path| fs::write(path.join("new"), "2");
        let old = |path: &Path| fs::remove_file(path.join("old"));
        let made = fs::create_dir_all(change.join("a/b")).is_ok();
        let allowed = [
            made,
            new(&change).is_ok(),
            old(&change).is_ok(),
            old(&remove).is_ok(),
        ];
        let denied = [new(&remove), new(&other), old(&other)].map(is_denied);
        (allowed, denied)
    });
    if let Some(seen) = seen {
        assert_eq!(seen, ([true; 4], [true; 3]));
    }
}

#[test]
fn programs_are_executed_and_tcp_is_out_of_reach_where_the_rules_say() {
    let rights = FileRights {
        execute: ["/usr", "/bin", "/lib", "/lib64", "/etc"]
            .map(Into::into)
            .to_vec(),
        devices: vec!["/dev/null".into()],
        ..FileRights::default()
    };
    let seen = restricted(rights, || {
        let runs = Command::new("/bin/true")
            .status()
            .is_ok_and(|end| end.success());
        let listens = std::net::TcpListener::bind("127.0.0.1:0");
        (runs, listens.err().map(|error| error.kind()))
    });
    if let Some((runs, listens)) = seen {
        assert!(runs);
        // Older versions of Landlock do not know TCP.
        let expected = (landlock() == Landlock::Full).then_some(ErrorKind::PermissionDenied);
        assert!(expected.is_none() || listens == expected, "{listens:?}");
    }
}
