//! Tests with several processes and users at the same path.

use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::*;

/// Any user but root.
const OTHER: u32 = 65_534;

/// Leaves a stale socket at `path`, as a killed process does.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).expect("bound"));
    assert!(path.exists());
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
}

fn names(folder: &Path) -> Vec<OsString> {
    let entries = std::fs::read_dir(folder).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.collect()
}

#[test]
fn the_file_is_for_its_owner_alone_and_goes_away() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    // The socket's mode must not depend on the umask. The umask belongs to the whole process, so the test restores it at once.
    let before = rustix::process::umask(Mode::empty());
    let socket = ControlSocket::bind(&path);
    rustix::process::umask(before);
    let socket = socket.expect("bound");
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    UnixStream::connect(&path).expect("it listens");
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_client_can_connect_as_soon_as_the_file_is_there() {
    let folder = tempfile::tempdir().expect("tempdir");
    for round in 0..500 {
        let path = folder.path().join(format!("{round}.sock"));
        let name = path.as_path();
        let socket = std::thread::scope(|scope| {
            let client = scope.spawn(move || {
                let began = Instant::now();
                while !name.exists() {
                    assert!(began.elapsed() < Duration::from_secs(60), "no file");
                }
                UnixStream::connect(name)
            });
            let socket = ControlSocket::bind(name).expect("bound");
            let connected = client.join().expect("no panic");
            connected.expect("the socket listens");
            socket
        });
        let names = names(folder.path());
        assert_eq!(names.len(), 1, "only the socket's own file: {names:?}");
        drop(socket);
    }
}

#[test]
fn a_socket_with_a_full_backlog_is_in_use() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    let address = SocketAddrUnix::new(&path).expect("short");
    let open = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let busy = open(SocketFlags::CLOEXEC).expect("socket");
    bind(&busy, &address).expect("bound");
    listen(&busy, 0).expect("listens");
    let mut waiting = Vec::new();
    loop {
        let client = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).expect("socket");
        match connect(&client, &address) {
            Ok(()) => waiting.push(client),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    let error = ControlSocket::bind(&path).expect_err("in use");
    assert!(matches!(error, SocketError::InUse { .. }), "{error}");
}

#[test]
fn a_live_socket_stays_and_a_stale_one_goes() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    let live = ControlSocket::bind(&path).expect("bound");
    let error = ControlSocket::bind(&path).expect_err("in use");
    assert!(matches!(error, SocketError::InUse { .. }), "{error}");
    UnixStream::connect(live.path()).expect("it still listens");
    drop(live);
    leave_stale(&path);
    let socket = ControlSocket::bind(&path).expect("the stale one is replaced");
    UnixStream::connect(socket.path()).expect("it listens");
    assert_eq!(names(folder.path()), ["x.sock"]);
}

#[test]
fn lock_of_another_process_on_the_directory_does_not_hold_up_a_start() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    let directory = std::fs::File::open(folder.path()).expect("open");
    flock(&directory, FlockOperation::LockExclusive).expect("locked");
    leave_stale(&path);
    let began = Instant::now();
    ControlSocket::bind(&path).expect("bound");
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn stale_socket_is_replaced_without_a_moment_without_a_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    let began = Instant::now();
    let looks = AtomicU64::new(0);
    let mut looks_at_binds = 0;
    let mut binds = 0;
    while binds < 50 || looks_at_binds < 1000 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no look at a bind"
        );
        leave_stale(&path);
        let is_over = AtomicBool::new(false);
        let socket = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(path.symlink_metadata().is_ok(), "no file");
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            let earlier = looks.load(Ordering::Relaxed);
            while looks.load(Ordering::Relaxed) == earlier && !looking.is_finished() {
                std::thread::yield_now();
            }
            let before = looks.load(Ordering::Relaxed);
            let socket = ControlSocket::bind(&path);
            looks_at_binds += looks.load(Ordering::Relaxed) - before;
            is_over.store(true, Ordering::Relaxed);
            looking.join().expect("there was a file at each look");
            socket.expect("bound")
        });
        binds += 1;
        drop(socket);
    }
}

#[test]
fn of_several_starts_at_a_stale_socket_one_listens_and_the_others_are_refused() {
    const STARTS: usize = 4;
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    for _ in 0..200 {
        leave_stale(&path);
        let barrier = Barrier::new(STARTS);
        let mut started: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                ControlSocket::bind(&path)
            };
            let starts: Vec<_> = (0..STARTS).map(|_| scope.spawn(start)).collect();
            let ends = starts.into_iter().map(|start| start.join());
            ends.map(|end| end.expect("no panic")).collect()
        });
        started.sort_by_key(|started| started.is_err());
        let [Ok(socket), others @ ..] = started.as_slice() else {
            panic!("none listens: {started:?}");
        };
        for other in others {
            let in_use = matches!(other, Err(SocketError::InUse { .. }));
            assert!(in_use, "{other:?}");
        }
        let _client = UnixStream::connect(&path).expect("a socket that listens");
        socket.listener.set_nonblocking(true).expect("set");
        socket.listener.accept().expect("it is the winner's");
        assert_eq!(names(folder.path()), ["x.sock"]);
    }
}

#[test]
fn live_socket_in_place_of_the_stale_one_keeps_the_path() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (path, other) = (folder.path().join("x.sock"), folder.path().join("y.sock"));
    leave_stale(&path);
    let (directory, name) = files::parent(&path).expect("open");
    let stale = StaleSocket::at(&directory, name, &path).expect("a socket");
    let stale = stale.expect("stale");
    // Another process is faster.
    let live = ControlSocket::bind(&path).expect("bound");
    let late = ControlSocket::bind(&other).expect("bound");
    let mut staged = StagedFile {
        directory: &directory,
        name: "y.sock".into(),
        file: late.file,
        stale: None,
    };
    let replaced = staged.replace(&stale, name).expect("exchanged twice");
    assert_eq!(replaced, Replaced::InUse);
    let found = FileId::of(&directory, name).expect("there");
    assert_eq!(found, live.file);
}

#[test]
fn file_that_is_no_socket_is_not_touched() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("file");
    std::fs::write(&path, "mine").expect("write");
    let error = ControlSocket::bind(&path).expect_err("a file");
    assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&path).expect("read"), b"mine");
    let long = folder.path().join("x".repeat(120));
    let error = ControlSocket::bind(&long).expect_err("long");
    assert!(matches!(error, SocketError::TooLong { .. }), "{error}");
}

#[test]
fn another_file_at_the_path_is_left_alone_at_the_end() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    let first = ControlSocket::bind(&path).expect("bound");
    std::fs::remove_file(&path).expect("removed");
    let second = ControlSocket::bind(&path).expect("bound");
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

/// Only root can give a link to another user. Without root, the link is the user's own, and is followed.
#[test]
fn link_of_another_user_before_the_name_is_refused() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    std::fs::create_dir(&real).expect("mkdir");
    symlink(&real, &link).expect("link");
    let path = link.join("x.sock");
    drop(ControlSocket::bind(&path).expect("the user's link"));
    if geteuid().is_root() {
        lchown(&link, Some(OTHER), None).expect("given away");
        let error = ControlSocket::bind(&path).expect_err("another user's link");
        let source = match &error {
            SocketError::Parent { source, .. } => source,
            other => panic!("{other}"),
        };
        assert!(
            matches!(source, CreateError::ForeignLink { .. }),
            "{source}"
        );
    }
    assert!(names(&real).is_empty());
}

/// Only root can give a socket to another user. Without root, the rule itself gets the other user's number.
#[test]
fn stale_socket_of_another_user_is_refused_and_stays() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    leave_stale(&path);
    let own = geteuid().as_raw();
    let (directory, name) = files::parent(&path).expect("open");
    let mut stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).expect("there");
    refuse_foreign(&stat, &path).expect("the user's own");
    stat.st_uid = OTHER;
    let mut refused = vec![refuse_foreign(&stat, &path)];
    if own == 0 {
        for mode in [0o600, 0o777] {
            allow(&path, mode);
            chown(&path, Some(OTHER), None).expect("given away");
            refused.push(ControlSocket::bind(&path).map(drop));
            assert_eq!(FileId::of(&directory, name), Ok(stat.into()));
            chown(&path, Some(own), None).expect("taken back");
        }
    }
    for result in refused {
        match result.expect_err("another user's") {
            SocketError::Foreign { owner, .. } => assert_eq!(owner.uid(), OTHER),
            other => panic!("{other}"),
        }
    }
    ControlSocket::bind(&path).expect("the user's own");
}

/// Only root can become another user. Without root, the test above has the rule.
#[test]
fn stale_socket_of_root_is_refused_to_a_user() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("x.sock");
    leave_stale(&path);
    if !geteuid().is_root() {
        return drop(ControlSocket::bind(&path).expect("the user's own"));
    }
    allow(folder.path(), 0o1777);
    for mode in [0o600, 0o777] {
        allow(&path, mode);
        let user = || {
            let uid = Uid::from_raw(OTHER);
            // The call changes this thread alone.
            set_thread_res_uid(uid, uid, uid).expect("another user");
            ControlSocket::bind(&path)
        };
        let bound = std::thread::scope(|scope| scope.spawn(user).join());
        match bound.expect("no panic").expect_err("root's") {
            SocketError::Foreign { owner, .. } => assert_eq!(owner.uid(), 0),
            other => panic!("{other}"),
        }
        assert_eq!(names(folder.path()), ["x.sock"]);
    }
}

#[test]
fn file_of_another_process_at_the_staged_name_stays() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (directory, _) = files::parent(&folder.path().join("x")).expect("open");
    let staged = |name: &str, file, stale| StagedFile {
        directory: &directory,
        name: name.into(),
        file,
        stale,
    };
    let [ours, stale, theirs] = ["ours", "stale", "theirs"].map(|name| {
        leave_stale(&folder.path().join(name));
        FileId::of(&directory, OsStr::new(name)).expect("there")
    });
    drop(staged("theirs", ours, Some(stale)));
    assert_eq!(FileId::of(&directory, OsStr::new("theirs")), Ok(theirs));
    drop(staged("ours", ours, None));
    drop(staged("stale", ours, Some(stale)));
    assert_eq!(names(folder.path()), ["theirs"]);
}
