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

/// The number of names that are tried for the staged file.
const TRIES: u32 = 8;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The number of tries against other processes at the path.
const ROUNDS: u32 = 100;
/// The pause after an exchange that has met another process's.
const EXCHANGE_PAUSE: Duration = Duration::from_millis(1);

/// The control socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens at the path.
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
    /// The path has a file of another type.
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
        /// The system's answer.
        source: io::Error,
    },
}

/// A listening socket. The drop of the value removes the socket's file.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The path's directory and the name in the directory, because the path may lead elsewhere later. None if the file stays.
    directory: Option<OwnedFd>,
    name: OsString,
    /// The socket's file. Another process may have put another file at the name.
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
        // Clients use the path as an address, whose length is limited.
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
        // The file gets the mode of the socket, so other users can connect at no moment, for any umask.
        fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(|error| failed(error.into()))?;
        let staged = StagedFile::bind(&directory, &socket).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
        let file = staged.file;
        staged.publish(name, path)?;
        Ok(Self {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            name: name.to_owned(),
            directory: Some(directory),
            file,
        })
    }

    /// A handle for accepting. The file stays until `self` is dropped.
    ///
    /// # Errors
    ///
    /// If the process has no file descriptors left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Closes the directory of the file, which then stays at the end; the next run replaces it. An open directory would lead out of a
    /// new root directory.
    pub fn leave_file(&mut self) {
        self.directory = None;
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let Some(directory) = &self.directory else {
            return;
        };
        // This socket still listens, so no process has replaced it.
        if FileId::of(directory, &self.name).is_ok_and(|found| found == self.file) {
            // Another process may have removed the file first.
            let _ = unlinkat(directory, &self.name, AtFlags::empty());
        }
    }
}

/// The identity of a file: device and inode.
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

/// The file of a socket under a staged name, because connections between `bind` and `listen` are refused. The drop of the
/// value removes the name, if it has this file or the stale one: after exchanges with other processes, it may have one of theirs.
struct StagedFile<'a> {
    directory: &'a OwnedFd,
    name: OsString,
    file: FileId,
    /// The stale file, if an exchange has given it the staged name, or may have.
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
            // The length of an address is limited. This address is short for any path of the directory.
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

    /// Gives the file the name `name`, whose path is `path`. Replaces only a stale socket.
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

/// The result of a replacement.
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
            // The socket listens, or the answer does not say.
            Ok(_) | Err(_) => Err(SocketError::InUse {
                path: path.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
