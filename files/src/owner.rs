//! Owners of files, for messages.

use std::fmt;
use std::fs;

/// The entry of `/proc/self/uid_map` that maps all users.
const ALL_USERS: &str = "4294967295";

/// The user of a file, shown as a number.
///
/// In a user namespace, all users without a number in the namespace have the same number, the overflow user's. The text of the owner says
/// so, because root's files can be among the files of the overflow user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    uid: u32,
    may_be_unmapped: bool,
}

impl Owner {
    /// The user with the number `uid` in the process's user namespace.
    #[must_use]
    pub fn new(uid: u32) -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let overflow = text("/proc/sys/kernel/overflowuid");
        Self::in_namespace(uid, &overflow, &text("/proc/self/uid_map"))
    }

    fn in_namespace(uid: u32, overflow: &str, map: &str) -> Self {
        let is_overflow = overflow.trim().parse() == Ok(uid);
        let maps_all = map.split_whitespace().nth(2) == Some(ALL_USERS);
        Self {
            uid,
            may_be_unmapped: is_overflow && !maps_all,
        }
    }

    /// The number.
    #[must_use]
    pub fn uid(self) -> u32 {
        self.uid
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            uid,
            may_be_unmapped,
        } = self;
        match may_be_unmapped {
            false => write!(f, "{uid}"),
            true => write!(
                f,
                "{uid} (the number of all users, and perhaps of root, that this user namespace does not map)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_user_of_a_namespace_may_be_unmapped_and_others_are_not() {
        let all = "         0          0 4294967295\n";
        let one = "         0       1000          1\n";
        for (uid, map, expected) in [
            (65_534, one, true),
            (65_534, "", true),
            (65_534, all, false),
            (1000, one, false),
        ] {
            let owner = Owner::in_namespace(uid, "65534\n", map);
            let text = owner.to_string();
            let named = text.contains("does not map");
            assert_eq!((owner.uid(), named), (uid, expected), "{map}: {text}");
            assert!(text.starts_with(&uid.to_string()), "{text}");
        }
    }
}
