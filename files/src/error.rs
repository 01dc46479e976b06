//! The error of an output named by the user.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::owner::Owner;

/// An output cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The system's answer.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path ends in `/`, `.` or `..`.
    #[error("it names a directory: name a file")]
    NoName,
    /// The descriptor is closed or not for writing, or hyprobe itself has opened the descriptor.
    #[error(
        "the descriptor {number} is not one that hyprobe was started with and may write to: redirect it, as in `{number}>FILE`"
    )]
    Descriptor {
        /// The number.
        number: i32,
    },
    /// The name is a symbolic link.
    #[error(
        "it is a symbolic link to {target:?}, and no output is written through a link, which another user or program may have \
         put there: remove the link, or name the file itself"
    )]
    Link {
        /// The link's text.
        target: PathBuf,
    },
    /// A link in the path belongs to another user.
    #[error(
        "{link:?} is a symbolic link of the user {owner}, who could choose the file that is written: name the directory itself, \
         without the link"
    )]
    ForeignLink {
        /// The link.
        link: PathBuf,
        /// Its owner.
        owner: Owner,
    },
    /// The file belongs to another user.
    #[error(
        "the {found} belongs to the user {owner}, who could read what is written: remove it, or name another file"
    )]
    ForeignFile {
        /// The type of the file.
        found: &'static str,
        /// Its owner.
        owner: Owner,
    },
    /// The file has other names, and the output would replace the contents under all names.
    #[error(
        "the file has {links} names (hard links), and its contents would be lost under each of them, one of which another user may \
         have put here: remove this name, or name another file"
    )]
    HardLink {
        /// The number of names.
        links: u64,
    },
    /// The opened folder is not the new folder, or has a file already.
    #[error(
        "another process has put its folder in place of the new one, or a file into it: name a folder in a directory that no other user \
         can write to"
    )]
    Exchanged,
    /// Another process replaces the file all the time.
    #[error("another process keeps replacing it: name a file in a directory of your own")]
    Replaced,
}

impl From<Errno> for CreateError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}
