//! The socket's file: made for its owner alone, never taken from a process that still listens, gone at the end.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, fchmod, flock, linkat, open, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Names that are tried for the staged file.
const TRIES: u32 = 8;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Another hyprobe that starts at the same path takes less.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// The control socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("another process listens at {path}")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{path} is there already and is no socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The path does not fit into a socket's address.
    #[error("the path {path} is too long for a socket: at most 107 bytes")]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The directory is kept locked.
    #[error("another process keeps the directory of {path} locked")]
    Locked {
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
    /// Device and inode: somebody may have put another file there.
    file: (u64, u64),
}

impl ControlSocket {
    /// Listens at `path`. A socket there that nobody listens at any more is replaced. The file appears when a client can connect,
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
        // Between the look at what is there and its replacement no other hyprobe may do the same.
        let directory = lock_directory(path)?;
        clear_stale(path)?;
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
        staged.link(path).map_err(failed)?;
        let made = std::fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            file: (made.dev(), made.ino()),
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
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if ours {
            // Whoever has removed it first has done what was to be done.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The file of a socket under a name that nobody waits for: between `bind` and `listen`, connections are refused. The drop of the
/// value removes the name.
struct StagedFile<'a> {
    directory: &'a File,
    name: String,
}

impl<'a> StagedFile<'a> {
    fn bind(directory: &'a File, socket: &OwnedFd) -> io::Result<Self> {
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
                    return bound
                        .map(|()| Self { directory, name })
                        .map_err(io::Error::from);
                }
            }
        }
    }

    /// Gives the file the name `path` in addition. Fails if there is a file.
    fn link(&self, path: &Path) -> io::Result<()> {
        let here = rustix::fs::CWD;
        Ok(linkat(
            self.directory,
            &self.name,
            here,
            path,
            AtFlags::empty(),
        )?)
    }
}

impl Drop for StagedFile<'_> {
    fn drop(&mut self) {
        // If this fails, an empty file stays.
        let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
    }
}

fn lock_directory(path: &Path) -> Result<File, SocketError> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let failed = |error: rustix::io::Errno| SocketError::Io {
        path: path.to_owned(),
        source: error.into(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(parent, flags, Mode::empty()).map_err(failed)?;
    let began = Instant::now();
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory.into()),
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < LOCK_LIMIT => {
                std::thread::sleep(LOCK_LOOK);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(SocketError::Locked {
                    path: path.to_owned(),
                });
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Removes a socket that nobody listens at.
fn clear_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |source: io::Error| SocketError::Io {
        path: path.to_owned(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => (),
    }
    // A listener that accepts nothing would make a blocking call wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let answer = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    match answer {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        // It listens, or it is not ours to know.
        Ok(_) | Err(_) => Err(SocketError::InUse {
            path: path.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

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
            let names = std::fs::read_dir(folder.path()).expect("a directory");
            assert_eq!(names.count(), 1, "only the socket's own file is there");
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
        // What a process that was killed leaves behind.
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        ControlSocket::bind(&path).expect("the stale one is replaced");
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
}
