//! The walk from a return address to its landings.

use address::{Gpa, Gva};
use introspect::PatchKind;
use introspect::insn::{Decoded, Step, step};

use crate::engine::returns::following::Following;
use crate::engine::returns::landings::{Found, Landing, NoLandings, Stack};
use crate::engine::running::call_sites::CallSite;

/// The maximum number of instructions walked from a return address.
const MAX_STEPS: usize = 16;
/// The lengths of a nop that the kernel writes instead of a jump.
const JUMP_LENGTHS: [u8; 2] = [2, 5];

/// The walk from a return address to the landings.
#[derive(Debug, Default)]
struct Walk {
    open: Vec<Landing>,
    passed: Vec<Landing>,
    landings: Vec<Landing>,
    read: Vec<Gpa>,
}

impl Following {
    /// Finds the landings of `returns_to`, and remembers the result. If no landing exists now, but instructions on the way
    /// may change, the result holds until the change. The other vCPUs are paused.
    pub(crate) fn find_landings(&self, returns_to: Gva) -> Result<Vec<Gva>, NoLandings> {
        let start = Landing {
            at: returns_to,
            stack: Stack::AboveSlot,
        };
        let mut walk = Walk {
            open: vec![start],
            ..Walk::default()
        };
        let walked = self.walk_to_landings(&mut walk);
        if walked.is_err() {
            walk.landings.clear();
        }
        if walk.landings == [start] {
            return Ok(vec![returns_to]);
        }
        let found = Found {
            landings: walk.landings.into(),
            read: walk.read,
        };
        if walked.is_ok() || !found.read.is_empty() {
            self.return_sites.landings.remember(returns_to, &found)?;
        }
        walked?;
        Ok(found.landings.iter().map(|landing| landing.at).collect())
    }

    fn walk_to_landings(&self, walk: &mut Walk) -> Result<(), NoLandings> {
        while let Some(landing) = walk.open.pop() {
            if walk.landings.contains(&landing) || walk.passed.contains(&landing) {
                continue;
            }
            if walk.passed.len() == MAX_STEPS {
                return Err(NoLandings);
            }
            let on = |at| Landing { at, ..landing };
            match self.running.call_site(landing.at) {
                // The first instruction of a function is behind an `endbr64`.
                CallSite::Free(Some((_, decoded)))
                    if landing.stack != Stack::AboveSlot && step(&decoded) == Step::Next =>
                {
                    walk.open.push(on(decoded.next()));
                }
                CallSite::Free(_) if self.running.can_return_to(landing.at) => {
                    walk.landings.push(landing);
                    continue;
                }
                CallSite::Free(_) => return Err(NoLandings),
                CallSite::PatchedAtBoot(code) => {
                    let (gpa, decoded) = code.ok_or(NoLandings)?;
                    walk.read.push(gpa);
                    if step(&decoded) != Step::Next {
                        return Err(NoLandings);
                    }
                    walk.open.push(on(decoded.next()));
                }
                CallSite::Patched { site, .. } if site.address != landing.at => {
                    return Err(NoLandings);
                }
                CallSite::Patched { site, code } => match (site.kind, site.target) {
                    (PatchKind::JumpLabel, Some(target)) if JUMP_LENGTHS.contains(&site.len) => {
                        walk.open.extend([site.end(), target].map(on));
                    }
                    (PatchKind::Ftrace, _) => walk.open.push(on(site.end())),
                    (PatchKind::StaticCall, _) => {
                        let (gpa, decoded) = code.ok_or(NoLandings)?;
                        walk.read.push(gpa);
                        walk.open.push(behind_static_call(landing, &decoded)?);
                    }
                    _ => return Err(NoLandings),
                },
            }
            walk.passed.push(landing);
        }
        if walk.landings.is_empty() {
            return Err(NoLandings);
        }
        Ok(())
    }
}

/// The landing behind the static call at `landing`.
fn behind_static_call(landing: Landing, decoded: &Decoded) -> Result<Landing, NoLandings> {
    let (at, stack) = match (step(decoded), landing.stack) {
        (Step::Next, stack) => (decoded.next(), stack),
        (Step::Jump(target), stack) => (target, stack),
        (Step::Call(target), Stack::AboveSlot) => {
            let pushed = decoded.next();
            (target, Stack::AtSlot { pushed })
        }
        // The instruction changes RAX, pushes a second return address, or has an unknown target.
        (Step::Call(_), Stack::AtSlot { .. }) | (Step::Other, _) => return Err(NoLandings),
    };
    Ok(Landing { at, stack })
}
