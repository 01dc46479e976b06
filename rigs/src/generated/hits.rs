//! Where the probes are, and how often each must have been hit.

use std::collections::BTreeMap;

use address::Gva;
use events::{Hex, Registers, Tier};

use super::boot::Booted;
use super::compare::Mismatch;
use super::layout::{Layout, TAKEN_OFFSET};
use super::program::Program;
use super::record::{How, Record, TRAP_RIP, VECTOR};
use super::snippet::Snippet;

/// #DB and #BP, which are raised behind the instruction.
const TRAPS: [u64; 2] = [1, 3];

/// The addresses of all instructions of the snippets to run, with the jumps.
pub(super) fn probes(layout: &Layout, program: &Program) -> Vec<Gva> {
    let run = program.snippets.iter().filter(|snippet| !snippet.skipped);
    run.flat_map(|snippet| layout.boundaries(snippet.at, &snippet.code))
        .collect()
}

/// Probes and hits of a boot by address.
pub(super) type Counted = BTreeMap<u64, (u64, Option<String>)>;

/// The hits and the reason in the summary, for each address.
pub(super) fn counted(booted: &Booted) -> Counted {
    let probes = booted.summary.probes.iter();
    probes
        .filter_map(|probe| {
            let at = Gva(u64::from_str_radix(probe.probe.split_once("0x")?.1, 16).ok()?);
            Some((at.0, (probe.hits, probe.reason.clone())))
        })
        .collect()
}

/// Reports each probe of a snippet that was hit more or less often than the snippet's end implies, reported otherwise than counted, or
/// refused. Reports a first hit with other registers than the snippet was given.
pub(super) fn mismatches(
    layout: &Layout,
    snippet: &Snippet,
    unprobed: Record<'_>,
    booted: &Booted,
    counted: &Counted,
) -> Vec<Mismatch> {
    let mut wrong = Vec::new();
    for at in layout.boundaries(snippet.at, &snippet.code) {
        let expected = u64::from(is_executed(layout, snippet, unprobed, at.0));
        let (hits, reason) = counted.get(&at.0).cloned().unwrap_or_default();
        let told = booted.told.get(&at.0);
        let told_hits = told.map_or(0, |(told, _)| *told);
        if hits != expected || told_hits != hits {
            wrong.push(Mismatch {
                kind: "hits".to_owned(),
                text: format!(
                    "{at}: {hits} hits and {told_hits} told, {expected} expected {}",
                    reason.unwrap_or_default()
                ),
            });
        }
        if at.0 == snippet.at
            && let Some((_, Some(regs))) = told
            && *regs != initial_registers(snippet)
        {
            wrong.push(Mismatch {
                kind: "registers of a hit".to_owned(),
                text: format!("{at}: hit with {regs:?}"),
            });
        }
    }
    wrong
}

/// The registers at the snippet's first instruction.
fn initial_registers(snippet: &Snippet) -> Registers {
    let [
        rax,
        rcx,
        rdx,
        rbx,
        rsp,
        rbp,
        rsi,
        rdi,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
    ] = snippet.state.gprs.map(Hex);
    Registers {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rbp,
        rsp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip: Hex(snippet.at),
        rflags: Hex(snippet.state.rflags),
    }
}

/// Whether the instruction at `at` is executed, or faults, given how the snippet is left. Only the last instruction of a
/// snippet branches, and none of them twice.
fn is_executed(layout: &Layout, snippet: &Snippet, unprobed: Record<'_>, at: u64) -> bool {
    let behind = snippet.at + snippet.code.len() as u64;
    let target = snippet.at + TAKEN_OFFSET as u64;
    let left = match unprobed.how() {
        How::Next => return at <= behind,
        How::Taken => return at < behind || at == target,
        _ => unprobed.word(&TRAP_RIP, 0),
    };
    // With the guest's own trap flag, #DB comes after each repetition of a repeated instruction, and not behind the instruction.
    let repeats = snippet.instructions().any(|decoded| {
        decoded.at().0 == left
            && decoded.instruction().is_string_instruction()
            && (decoded.instruction().has_rep_prefix() || decoded.instruction().has_repne_prefix())
    });
    let faults = repeats || !TRAPS.contains(&unprobed.word(&VECTOR, 0));
    if (snippet.at..behind).contains(&left) {
        at < left || (faults && at == left)
    } else if left == behind || left == target {
        at < behind
    } else if left == layout.next() {
        // The guest's own trap flag: the jump was executed.
        at <= behind
    } else if left == layout.taken() {
        at < behind || at == target
    } else {
        at < behind
    }
}

/// How many probes were stepped.
pub(super) fn stepped(booted: &Booted) -> usize {
    let probes = booted.summary.probes.iter();
    probes
        .filter(|probe| probe.tier == Some(Tier::Stepped))
        .count()
}

#[cfg(test)]
mod tests {
    use super::super::program::Chosen;
    use super::super::record::{HOW, RECORD_BYTES};
    use super::*;

    /// The executed instructions, of four, of `nop; nop` with the jump behind, for a record with `how`, `vector` and `rip`.
    fn executed(how: u64, vector: u64, rip: impl Fn(&Layout, u64) -> u64) -> [bool; 4] {
        let layout = Layout::example();
        let mut program = Program::generate(&layout, 1, 1, Chosen::default());
        let snippet = &mut program.snippets[0];
        snippet.code = vec![0x90, 0x90];
        let at = snippet.at;
        let mut record = vec![0; RECORD_BYTES];
        for (field, word) in [(HOW, how), (VECTOR, vector), (TRAP_RIP, rip(&layout, at))] {
            record[field.offset..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let places = layout.boundaries(at, &snippet.code);
        assert_eq!(places, [0, 1, 2, 43].map(|offset| Gva(at + offset)));
        [0, 1, 2, 3]
            .map(|place: usize| is_executed(&layout, snippet, Record(&record), places[place].0))
    }

    #[test]
    fn hits_follow_from_how_a_snippet_is_left() {
        let nowhere = |_: &Layout, _| 0;
        assert_eq!(executed(1, 0, nowhere), [true, true, true, false], "next");
        assert_eq!(executed(2, 0, nowhere), [true, true, false, true], "taken");
        let second = |_: &Layout, at| at + 1;
        assert_eq!(executed(3, 14, second), [true, true, false, false], "fault");
        assert_eq!(executed(3, 3, second), [true, false, false, false], "trap");
        let behind = |_: &Layout, at| at + 2;
        assert_eq!(executed(3, 1, behind), [true, true, false, false], "trap");
        let next = |layout: &Layout, _| layout.next();
        assert_eq!(executed(3, 1, next), [true, true, true, false], "TF");
        let taken = |layout: &Layout, _| layout.taken();
        assert_eq!(executed(3, 1, taken), [true, true, false, true], "TF");
        let absent = |layout: &Layout, _| layout.absent();
        assert_eq!(executed(3, 14, absent), [true, true, false, false], "gone");
    }
}
