//! Probes that stay, on functions whose calls the workload counts: at the entry, by a jump; at the instruction behind it,
//! by an `int3` where it is a short one; and of some of them the returns.

use introspect::Gva;
use introspect::insn::{decode, is_position_independent};
use probes::Kernel;

use super::super::counting::{Counted, function};

pub(super) const GETPID: &str = "__x64_sys_getpid";

/// Functions that are called once for each of the workload's calls.
const SYSCALLS: [(&str, Counted); 13] = [
    ("__x64_sys_openat", Counted::Openat),
    ("do_sys_openat2", Counted::Openat),
    ("__x64_sys_read", Counted::Read),
    ("ksys_read", Counted::Read),
    ("vfs_read", Counted::Read),
    (GETPID, Counted::Getpid),
    ("__x64_sys_nanosleep", Counted::Nap),
    ("hrtimer_nanosleep", Counted::Nap),
    ("do_nanosleep", Counted::Nap),
    ("__x64_sys_clone", Counted::Children),
    ("__x64_sys_wait4", Counted::Children),
    ("__x64_sys_exit_group", Counted::Children),
    ("do_group_exit", Counted::Children),
];
/// Of these, the returns.
const RETURNS: [&str; 3] = ["do_sys_openat2", "ksys_read", "do_nanosleep"];

/// `call rel32`, which is ftrace's at a function's entry.
const CALL: u8 = 0xe8;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// A probe, and what it must have counted.
#[derive(Debug)]
pub(super) struct Stays {
    pub(super) spec: String,
    pub(super) function: Gva,
    pub(super) counted: Counted,
}

pub(super) fn all(kernel: &Kernel) -> Result<Vec<Stays>, String> {
    let mut all = Vec::new();
    for (name, counted) in SYSCALLS {
        let symbol = function(kernel, name)?;
        let function = symbol.address;
        let kind = if RETURNS.contains(&name) {
            "kretprobe"
        } else {
            "kprobe"
        };
        let second = second(kernel.function_bytes(&symbol), function);
        let second = second.map(|offset| format!("kprobe:{name}+{offset}"));
        let specs = [Some(format!("{kind}:{name}")), second];
        all.extend(specs.into_iter().flatten().map(|spec| Stays {
            spec,
            function,
            counted,
        }));
    }
    Ok(all)
}

/// Where in the function the second instruction is, not counting the call of ftrace: each call comes by once.
fn second(code: &[u8], function: Gva) -> Option<u64> {
    let mut at = function;
    let mut is_first = true;
    loop {
        let offset = at.0 - function.0;
        let rest = code.get(usize::try_from(offset).ok()?..)?;
        let decoded = decode(rest, at).ok()?;
        let is_prologue = decoded.bytes() == ENDBR64 || decoded.bytes()[0] == CALL;
        match (is_prologue, is_first) {
            (true, _) => (),
            (false, true) if is_position_independent(&decoded) => is_first = false,
            (false, true) => return None,
            (false, false) => return Some(offset),
        }
        if is_prologue && !is_first {
            return None;
        }
        at = decoded.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_instruction_is_behind_one_that_goes_on() {
        let call = [CALL, 1, 2, 3, 4];
        let at = Gva(0xffff_ffff_8100_0000);
        let second = |code: &[&[u8]]| second(&code.concat(), at);
        let (push, jump, mov) = ([0x55], [0xeb, 0], [0x48, 0x89, 0xe5]);
        assert_eq!(second(&[&call, &push, &mov]), Some(6));
        assert_eq!(second(&[&ENDBR64, &call, &mov, &push]), Some(12));
        assert_eq!(second(&[&push, &mov]), Some(1));
        // A branch first; a call behind; nothing behind.
        assert_eq!(second(&[&call, &jump, &push]), None);
        assert_eq!(second(&[&push, &call, &push]), None);
        assert_eq!(second(&[&call, &push]), None);
    }
}
