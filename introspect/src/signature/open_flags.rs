//! Flags that are macros in the kernel's source, which BTF does not have: those of opened files.

/// Macros of which a number is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Macros {
    /// `O_RDONLY` and the others.
    OpenFlags,
}

/// Access modes are numbers, not bits.
const ACCESS_MODE: u64 = 3;
const ACCESS_MODES: [&str; 4] = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"];
/// Flags behind the access mode, by `include/uapi/asm-generic/fcntl.h`, which x86 has for its own. The interface to programs does not change.
/// Flags of several bits come before those of one of the bits.
const FLAGS: [(&str, u64); 19] = [
    ("O_CREAT", 0o100),
    ("O_EXCL", 0o200),
    ("O_NOCTTY", 0o400),
    ("O_TRUNC", 0o1000),
    ("O_APPEND", 0o2000),
    ("O_NONBLOCK", 0o4000),
    ("O_SYNC", 0o4_010_000),
    ("__O_SYNC", 0o4_000_000),
    ("O_DSYNC", 0o10_000),
    ("O_ASYNC", 0o20_000),
    ("O_DIRECT", 0o40_000),
    ("O_LARGEFILE", 0o100_000),
    ("O_TMPFILE", 0o20_200_000),
    ("__O_TMPFILE", 0o20_000_000),
    ("O_DIRECTORY", 0o200_000),
    ("O_NOFOLLOW", 0o400_000),
    ("O_NOATIME", 0o1_000_000),
    ("O_CLOEXEC", 0o2_000_000),
    ("O_PATH", 0o10_000_000),
];

/// The flags of `open` in C: `O_WRONLY|O_CREAT|0x80000000`.
pub(super) fn open_flags(flags: u64) -> String {
    let mode = usize::try_from(flags & ACCESS_MODE);
    let mode = mode.ok().and_then(|mode| ACCESS_MODES.get(mode));
    let mut text = mode.copied().unwrap_or_default().to_owned();
    let mut rest = flags & !ACCESS_MODE;
    for (name, flag) in FLAGS {
        if rest & flag == flag {
            rest &= !flag;
            text.push('|');
            text.push_str(name);
        }
    }
    if rest != 0 {
        text.push_str(&format!("|{rest:#x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_names_and_the_rest_is_a_number() {
        for (flags, expected) in [
            (0, "O_RDONLY"),
            (0x8000, "O_RDONLY|O_LARGEFILE"),
            (0o1102, "O_RDWR|O_CREAT|O_TRUNC"),
            (3, "O_ACCMODE"),
            (0o4_010_001, "O_WRONLY|O_SYNC"),
            (0o10_000, "O_RDONLY|O_DSYNC"),
            (0o20_200_002, "O_RDWR|O_TMPFILE"),
            (0o2_200_000, "O_RDONLY|O_DIRECTORY|O_CLOEXEC"),
            (1 << 40, "O_RDONLY|0x10000000000"),
        ] {
            assert_eq!(open_flags(flags), expected, "{flags:#o}");
        }
    }
}
