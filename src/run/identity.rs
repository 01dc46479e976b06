//! `--user` and `--chroot`: the user and the root directory that a hyprobe of root changes to.
//!
//! Names are looked up in `/etc/passwd` and `/etc/group` only: a static program has no other name services.

use std::fs;
use std::io;
use std::path::PathBuf;

use confine::{Identity, Inherited, Root};
use files::CreateError;
use rustix::process::geteuid;
use thiserror::Error;

use crate::cli::{Account, IdentityArgs};
use crate::config::Accel;
use crate::exit::{Exit, Failure};

/// The reason why hyprobe cannot become the user, in general or for the given command.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    /// Only root can become another user.
    #[error(
        "cannot become another user: hyprobe runs as the user {uid}, and only root can do that"
    )]
    NotRoot {
        /// The user of this process.
        uid: u32,
    },
    /// No such user.
    #[error("no user `{user}` in /etc/passwd")]
    User {
        /// As given.
        user: String,
    },
    /// No such group.
    #[error("no group `{group}` in /etc/group")]
    Group {
        /// As given.
        group: String,
    },
    /// A user given by number, whose group is not known.
    #[error("the user {uid} is not in /etc/passwd, so its group is not known")]
    NoGroup {
        /// The user.
        uid: u32,
    },
    /// A file of users or groups.
    #[error("cannot read {path}")]
    Accounts {
        /// The file.
        path: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The user is root, so all rights of root would stay.
    #[error("the user `{user}` is root, and would keep the rights of root")]
    Root {
        /// As given.
        user: String,
    },
    /// The group is root's, so root's files of the group would stay open to the user.
    #[error("the group of `{user}` is root's, which may read and write files of root")]
    RootGroup {
        /// As given.
        user: String,
    },
    /// The descriptors of the parent process.
    #[error("cannot list the open files in /proc/self/fd, which the user would keep")]
    Descriptors(#[source] io::Error),
    /// The new root directory.
    #[error("cannot open the new root directory {root}")]
    NewRoot {
        /// As given.
        root: PathBuf,
        /// The cause.
        source: CreateError,
    },
    /// A nested run.
    #[error(
        "--user is for runs on this host's KVM: a nested run reads the image cache and starts QEMU after the change of user, from \
         files that only the user who started hyprobe can read"
    )]
    Nested,
    /// `hyprobe test --chroot`.
    #[error(
        "--chroot is for `hyprobe run`: `hyprobe test` reads the kernel again for each boot, and the new root does not have it"
    )]
    TestRoot,
    /// The artifacts of `hyprobe test`.
    #[error("the user {uid} cannot write to the folder {path} of the artifacts")]
    Artifacts {
        /// The user.
        uid: u32,
        /// The folder.
        path: PathBuf,
    },
    /// The image cache, which is the user's alone.
    #[error(
        "the image cache is not the user {uid}'s, and `hyprobe test` reads the programs of the demo from it for each boot"
    )]
    Cache {
        /// The user.
        uid: u32,
    },
    /// A file that is read again after the change of user.
    #[error("the user {uid} cannot read {path}, and `hyprobe test` reads it again for each boot")]
    Unreadable {
        /// The user.
        uid: u32,
        /// The file.
        path: PathBuf,
    },
}

impl Failure for IdentityError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        let advice = match self {
            Self::NotRoot { .. } => "leave --user and --chroot out",
            Self::User { .. } | Self::Group { .. } => {
                "names of other services are not looked up: give numbers, such as --user 1000:1000"
            }
            Self::NoGroup { uid } => {
                return Some(format!("give the group, too: --user {uid}:GROUP"));
            }
            Self::Accounts { .. } => "give numbers, such as --user 1000:1000",
            Self::Root { .. } => "name a user without rights, such as nobody",
            Self::RootGroup { .. } => "name another group: --user USER:GROUP",
            Self::Descriptors(_) => "mount /proc",
            Self::NewRoot { .. } => "name a directory that exists: an empty one of root's is best",
            Self::Artifacts { .. } => {
                "give the folder to the user, or name one that does not exist, in a directory of the user's"
            }
            Self::Cache { .. } => "name the file of an initrd, or use `hyprobe run`",
            Self::Nested => {
                "start hyprobe as that user (setpriv, runuser): a nested run needs neither root nor /dev/kvm; or use --accel kvm"
            }
            Self::TestRoot => "use --user alone, or `hyprobe run` for each manifest",
            Self::Unreadable { .. } => "let the user read it, or use `hyprobe run`",
        };
        Some(advice.to_owned())
    }
}

/// The accelerator of a run with `identity`: another user can run guests only on this host's KVM.
pub(crate) fn place(accel: Accel, identity: Option<&Identity>) -> Result<Accel, IdentityError> {
    match (accel, identity) {
        (accel, None) => Ok(accel),
        (Accel::Auto | Accel::Kvm, Some(_)) => Ok(Accel::Kvm),
        (Accel::Nested, Some(_)) => Err(IdentityError::Nested),
    }
}

/// The identity requested by `args`, if any. The process must call the function before it opens a file that it keeps.
pub(crate) fn find(args: &IdentityArgs) -> Result<Option<Identity>, IdentityError> {
    let Some(account) = &args.user else {
        return Ok(None);
    };
    let uid = geteuid();
    if !uid.is_root() {
        return Err(IdentityError::NotRoot { uid: uid.as_raw() });
    }
    let inherited = Inherited::list().map_err(IdentityError::Descriptors)?;
    let (uid, gid) = account.look_up(&accounts("/etc/passwd")?, &accounts("/etc/group")?)?;
    let open = |root: &PathBuf| match files::open_directory(root) {
        Ok(directory) => Ok(Root {
            path: root.clone(),
            directory,
        }),
        Err(source) => Err(IdentityError::NewRoot {
            root: root.clone(),
            source,
        }),
    };
    Ok(Some(Identity {
        uid,
        gid,
        root: args.chroot.as_ref().map(open).transpose()?,
        inherited,
    }))
}

/// A file of users or groups; a system may have none. A name in another encoding is no reason to know none.
fn accounts(path: &'static str) -> Result<String, IdentityError> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(IdentityError::Accounts { path, source }),
    }
}

impl Account {
    /// The numbers of user and group, by the texts of the two files.
    fn look_up(&self, passwd: &str, group: &str) -> Result<(u32, u32), IdentityError> {
        let user = &self.user;
        let by_name = fields(passwd).find(|entry| entry.first() == Some(&user.as_str()));
        let uid = match &by_name {
            Some(entry) => entry.get(2).and_then(|uid| number(uid)),
            None => number(user),
        };
        let uid = uid.ok_or_else(|| IdentityError::User { user: user.clone() })?;
        if uid == 0 {
            return Err(IdentityError::Root { user: user.clone() });
        }
        let gid = match &self.group {
            Some(name) => {
                let entry = fields(group).find(|entry| entry.first() == Some(&name.as_str()));
                let gid = match &entry {
                    Some(entry) => entry.get(2).and_then(|gid| number(gid)),
                    None => number(name),
                };
                gid.ok_or_else(|| IdentityError::Group {
                    group: name.clone(),
                })?
            }
            None => {
                let has_number =
                    |entry: &Vec<&str>| entry.get(2).and_then(|uid| number(uid)) == Some(uid);
                let entry = by_name.or_else(|| fields(passwd).find(has_number));
                let gid = entry.and_then(|entry| number(entry.get(3)?));
                gid.ok_or(IdentityError::NoGroup { uid })?
            }
        };
        match gid {
            0 => Err(IdentityError::RootGroup { user: user.clone() }),
            gid => Ok((uid, gid)),
        }
    }
}

/// The lines of a file in the format of `/etc/passwd`, each split into fields.
fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

/// The number of a user or a group. To the kernel, the largest number means "no change".
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "\
        root:x:0:0:root:/root:/bin/sh\n\
        probe:x:990:980::/:/bin/false\n\
        7:x:70:71::/:/bin/false\n\
        sync:x:4:0::/:/bin/sync\n";
    const GROUP: &str = "root:x:0:\nkvm:x:106:probe\n";

    fn look_up(text: &str) -> Result<(u32, u32), IdentityError> {
        let account: Account = text.parse().expect("USER[:GROUP]");
        account.look_up(PASSWD, GROUP)
    }

    #[test]
    fn names_and_numbers_are_looked_up_names_first() {
        for (text, expected) in [
            ("probe", (990, 980)),
            ("990", (990, 980)),
            ("probe:kvm", (990, 106)),
            ("1000:1001", (1000, 1001)),
            ("7", (70, 71)),
        ] {
            assert_eq!(look_up(text).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn root_and_unknown_names_and_numbers_are_refused() {
        for (text, expected) in [
            (
                "root",
                "the user `root` is root, and would keep the rights of root",
            ),
            (
                "0:1",
                "the user `0` is root, and would keep the rights of root",
            ),
            (
                "sync",
                "the group of `sync` is root's, which may read and write files of root",
            ),
            (
                "probe:root",
                "the group of `probe` is root's, which may read and write files of root",
            ),
            ("nobdy", "no user `nobdy` in /etc/passwd"),
            ("4294967295", "no user `4294967295` in /etc/passwd"),
            ("probe:kwm", "no group `kwm` in /etc/group"),
            ("1:4294967295", "no group `4294967295` in /etc/group"),
            (
                "1000",
                "the user 1000 is not in /etc/passwd, so its group is not known",
            ),
        ] {
            let error = look_up(text).expect_err(text);
            assert_eq!(error.to_string(), expected);
        }
        for text in ["", ":", "a:", ":b", "a:b:c"] {
            text.parse::<Account>().expect_err(text);
        }
    }
}
