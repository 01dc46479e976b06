//! The socket's file: made for its owner alone, never taken from a process that still listens, gone at the end.
//!
//! No lock guards the path, because a lock that other users can find is a lock that they can hold. Two steps of the kernel decide
//! between processes that start at the same path:
//!
//! ```text
//! staged name: bind, listen ──▶ link(staged, path) ── the path is free ──▶ done
//!                                      │ EEXIST
//!                                      ▼
//!                 look at the file at the path ── another user's ──▶ foreign
//!                                      │ the user's own socket
//!                                      ▼
//!                 connect to it ── it listens ──▶ in use
//!                                      │ refused: stale
//!                                      ▼
//!                 exchange(staged, path) ── the stale file has the staged name now ──▶ done
//!                                      │ another file has it: another process was faster
//!                                      ▼
//!                 exchange again, until the staged name has its own file ──▶ in use
//! ```
//!
//! A socket that refuses connections is left over from a process that has ended, or another program has bound it and does not listen yet.
//! hyprobe's own sockets listen before they have the path, so no run takes another run for stale.
//!
//! An exchange removes no name, so the socket of the faster process is not lost, and clients find a listening socket at the path during
//! the replacement.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use files::{CreateError, Owner};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, linkat, openat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;

/// Names that are tried for the staged file.
const TRIES: u32 = 8;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Other processes may come and go at the path so many times.
const ROUNDS: u32 = 100;
/// The pause after an exchange that has met another one.
const EXCHANGE_PAUSE: Duration = Duration::from_millis(1);

/// The control socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("another process listens at {path}")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A socket of another user is there. It may listen or not.
    #[error(
        "the socket {path} belongs to the user {owner}, and a run replaces no socket of another user: remove it as that user, or name \
         another path"
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// Its owner.
        owner: Owner,
    },
    /// Something else is there.
    #[error("{path} is there already and is no socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The directory of the path cannot be opened, or a link of another user leads there.
    #[error("cannot make the control socket {path}")]
    Parent {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: CreateError,
    },
    /// The path does not fit into a socket's address.
    #[error("the path {path} is too long for a socket: at most 107 bytes")]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// A file system without atomic exchanges.
    #[error(
        "the socket {path} is left over from a run that was killed, and its file system cannot replace it in one step: remove it"
    )]
    Stale {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot make the control socket {path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// A listening socket whose file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The path's directory and the name in it: the path itself may lead elsewhere later.
    directory: OwnedFd,
    name: OsString,
    /// Somebody may have put another file there.
    file: FileId,
}

impl ControlSocket {
    /// Listens at `path`. A socket of the user there at which no process listens is replaced. The file appears when a client can connect,
    /// so a script may wait for the file.
    ///
    /// # Errors
    ///
    /// See [`SocketError`].
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source: io::Error| SocketError::Io {
            path: path.to_owned(),
            source,
        };
        // Clients have to use the path as an address.
        SocketAddrUnix::new(path).map_err(|_| SocketError::TooLong {
            path: path.to_owned(),
        })?;
        let (directory, name) = files::parent(path).map_err(|source| SocketError::Parent {
            path: path.to_owned(),
            source,
        })?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| failed(error.into()))?;
        let socket: OwnedFd = socket;
        // The file gets the mode of the socket, so that there is no moment at which others could connect, whatever the
        // umask is.
        fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(|error| failed(error.into()))?;
        let staged = StagedFile::bind(&directory, &socket).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
        let file = staged.file;
        staged.publish(name, path)?;
        Ok(Self {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            name: name.to_owned(),
            directory,
            file,
        })
    }

    /// A handle to accept with; the file stays until this is dropped.
    ///
    /// # Errors
    ///
    /// When there are no file descriptors left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // No process replaces a socket that listens, and this one still does.
        if FileId::of(&self.directory, &self.name).is_ok_and(|found| found == self.file) {
            // Whoever has removed it first has done what was to be done.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// A file, whatever its names are: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl From<Stat> for FileId {
    fn from(stat: Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

impl FileId {
    fn of(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<Self> {
        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(Self::from)
    }
}

/// The file of a socket under a name that nobody waits for: between `bind` and `listen`, connections are refused. The drop of the
/// value removes the name, if it has this file or the stale one: after exchanges with other processes, it may have one of theirs.
struct StagedFile<'a> {
    directory: &'a OwnedFd,
    name: OsString,
    file: FileId,
    /// The file that an exchange has given the name to, or may have.
    stale: Option<FileId>,
}

impl<'a> StagedFile<'a> {
    fn bind(directory: &'a OwnedFd, socket: &OwnedFd) -> io::Result<Self> {
        let mut tries = 0;
        loop {
            // Other users may write to the directory: they must not know the name.
            let name = format!(
                ".hyprobe-{:016x}",
                RandomState::new().build_hasher().finish()
            );
            // The length of an address is limited. This one is short, whatever the directory's path is.
            let address = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
            match bind(socket, &SocketAddrUnix::new(address)?) {
                Err(Errno::ADDRINUSE) if tries < TRIES => tries += 1,
                bound => {
                    bound?;
                    let name = OsString::from(name);
                    let file = FileId::of(directory, &name)?;
                    return Ok(Self {
                        directory,
                        name,
                        file,
                        stale: None,
                    });
                }
            }
        }
    }

    /// Gives the file the name `name`, whose path is `path`. Only a stale socket is replaced.
    fn publish(mut self, name: &OsStr, path: &Path) -> Result<(), SocketError> {
        let failed = |error: Errno| SocketError::Io {
            path: path.to_owned(),
            source: error.into(),
        };
        for _ in 0..ROUNDS {
            let here = self.directory;
            match linkat(here, &self.name, here, name, AtFlags::empty()) {
                Err(Errno::EXIST) => (),
                linked => return linked.map_err(failed),
            }
            let Some(stale) = StaleSocket::at(here, name, path)? else {
                continue;
            };
            match self.replace(&stale, name) {
                Ok(Replaced::Done) => return Ok(()),
                Ok(Replaced::InUse) => break,
                Err(Errno::NOENT) => (),
                Err(Errno::INVAL) => {
                    return Err(SocketError::Stale {
                        path: path.to_owned(),
                    });
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(SocketError::InUse {
            path: path.to_owned(),
        })
    }

    /// Exchanges the names of this file and of `stale`. If `name` has another file meanwhile, both files get their names back.
    fn replace(&mut self, stale: &StaleSocket, name: &OsStr) -> rustix::io::Result<Replaced> {
        self.stale = Some(stale.file);
        let exchange = || {
            let here = self.directory;
            renameat_with(here, &self.name, here, name, RenameFlags::EXCHANGE)
        };
        exchange()?;
        if FileId::of(self.directory, &self.name)? == stale.file {
            return Ok(Replaced::Done);
        }
        // Exchanges of several processes permute their files and lose none. Each process gives up no file but its own.
        for _ in 0..ROUNDS {
            exchange()?;
            if FileId::of(self.directory, &self.name)? == self.file {
                return Ok(Replaced::InUse);
            }
            std::thread::sleep(EXCHANGE_PAUSE);
        }
        Err(Errno::BUSY)
    }
}

impl Drop for StagedFile<'_> {
    fn drop(&mut self) {
        let found = FileId::of(self.directory, &self.name);
        if found.is_ok_and(|found| found == self.file || Some(found) == self.stale) {
            // If this fails, an empty file stays.
            let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// What came of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replaced {
    /// The path leads to the new socket.
    Done,
    /// Another process was faster, and keeps the path.
    InUse,
}

/// Only the user's own sockets are replaced. In a directory with the sticky bit, a user cannot replace a socket of root's either.
fn refuse_foreign(stat: &Stat, path: &Path) -> Result<(), SocketError> {
    if stat.st_uid == geteuid().as_raw() {
        return Ok(());
    }
    Err(SocketError::Foreign {
        path: path.to_owned(),
        owner: Owner::new(stat.st_uid),
    })
}

/// A socket of the user at which no process listens.
#[derive(Debug)]
struct StaleSocket {
    file: FileId,
    /// While the file is open, no other file gets its inode's number.
    _open: OwnedFd,
}

impl StaleSocket {
    /// The stale socket `name`; none if there is no file any more.
    fn at(directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<Option<Self>, SocketError> {
        let failed = |error: Errno| SocketError::Io {
            path: path.to_owned(),
            source: error.into(),
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let stat = fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(SocketError::NotASocket {
                path: path.to_owned(),
            });
        }
        refuse_foreign(&stat, path)?;
        // A listener that accepts nothing would make a blocking call wait.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let address = format!("/proc/self/fd/{}", file.as_raw_fd());
        let answer = SocketAddrUnix::new(address).and_then(|address| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &address)
        });
        match answer {
            Err(Errno::CONNREFUSED) => Ok(Some(Self {
                file: stat.into(),
                _open: file,
            })),
            // It listens, or it is not ours to know.
            Ok(_) | Err(_) => Err(SocketError::InUse {
                path: path.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// What a process that was killed leaves behind.
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
        // A mask that takes nothing away must not matter; it is the process's, so it is set back at once.
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
    fn what_is_no_socket_is_not_touched() {
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

    /// Only root can give a link to another user. Without root, the link is the user's own, which is followed.
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
}
