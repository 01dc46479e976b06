//! The levels of `--stealth` on this host, and what a guest finds at each.

use invisibility::{LEVELS, LOOKS, columns, is_seen};
use manifest::{Stealth, Word as _};
use vmm::HostFacts;

use super::Verdict::No;
use super::{Check, Group, Trace};
use crate::nested::Unusable;

/// All looks, in the order of the table.
pub(super) fn traces() -> Vec<Trace> {
    let of_look = |look: invisibility::Look| {
        columns().map(move |(level, kind)| Trace {
            look: look.name(),
            looker: look.looker().words(),
            level,
            probe: kind.words(),
            seen: is_seen(look, kind, level),
        })
    };
    LOOKS.into_iter().flat_map(of_look).collect()
}

/// Which levels this host's KVM has.
pub(super) fn checks(facts: &Result<HostFacts, Unusable>) -> Vec<Check> {
    let Ok(facts) = facts else {
        return Vec::new();
    };
    let check = |level: Stealth| Check::new(Group::Stealth, level.word(), level.word());
    // Stops of instructions that run alone are planted at each level.
    let plants = facts.int3.is_usable() || facts.port.is_usable();
    let obstacle = match facts.obstacle() {
        Some(obstacle) => Some(obstacle.to_string()),
        None if !plants => Some("no byte exits that could be planted".to_owned()),
        None => None,
    };
    let found = |level: Stealth| match level {
        Stealth::Writes => "plants and jumps; the default",
        Stealth::Registers => "four instructions, in debug registers",
        Stealth::Reads => "any number of instructions; code on their pages is slow",
    };
    let of_level = |level: Stealth| match &obstacle {
        None if level == Stealth::Registers && !facts.debug_execute => {
            let why = "debug registers do not stop the guest's kernel".to_owned();
            check(level).found("does not work").verdict(No, why)
        }
        None => check(level).found(found(level)),
        Some(why) => check(level).found("does not work").verdict(No, why.clone()),
    };
    LEVELS.into_iter().map(of_level).collect()
}
