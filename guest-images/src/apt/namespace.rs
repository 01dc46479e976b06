//! Whether root can become the sandbox's user: in a user namespace with one user, root cannot.

use std::fs;

/// Whether the user namespace lets the process become the user `uid`.
pub(super) fn can_become(uid: u32) -> bool {
    let file = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).ok();
    // Without /proc, nothing is known against the change.
    let is_mapped = file("uid_map").is_none_or(|map| is_mapped(&map, uid));
    is_mapped && file("setgroups").is_none_or(|answer| answer.trim() != "deny")
}

/// Whether the text of `uid_map` has a line for `uid`. A line has the first number, a number outside, and the count.
fn is_mapped(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (first, count) = (numbers.next(), numbers.nth(1));
        matches!((first, count), (Some(Ok(first)), Some(Ok(count)))
            if (first..first.saturating_add(count)).contains(&uid.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_mapped_if_a_line_has_its_number() {
        let whole = "         0          0 4294967295\n";
        assert!(is_mapped(whole, 0) && is_mapped(whole, 42));
        let one = "         0       1000          1\n";
        assert!(is_mapped(one, 0) && !is_mapped(one, 42));
        let two = "0 1000 1\n1 100000 65536\n";
        assert!(is_mapped(two, 42) && !is_mapped(two, 65_537));
        for nothing in ["", "x y z\n", "0\n", "0 0\n"] {
            assert!(!is_mapped(nothing, 0), "{nothing:?}");
        }
    }

    #[test]
    fn a_process_can_become_itself() {
        let setgroups = fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(can_become(uid), setgroups.trim() != "deny");
    }
}
