//! Calls in a stock guest, probed by the guest's own events and by the engine, in the same boot.

use std::time::Duration;

use events::ProbeSummary;
use introspect::Symbol;
use introspect::insn::{Decoded, is_position_independent};
use introspect::optimise::JUMP_BYTES;
use manifest::ProbeConfig;
use probes::{EngineAction, Kernel};

use super::clock::Clock;
use super::test_guest::{ONCE_AROUND, is_optimised};
use super::ways::{counted, histogram};
use super::{Measured, Overhead};
use crate::busy::counting::function;
use crate::busy::guest::{Guest, Live, MEMORY_BYTES};
use crate::contract::{Bench, new_probe};
use crate::line::{Line, Timing};
use errors::chain;
use vmm::boot::KernelFile;

/// The guest's name in the lines.
pub(super) const NAME: &str = "debian-6.1";
/// Probed before and after each loop.
const MARK: &str = "kprobe:__x64_sys_getpgrp";

/// The word with which the guest waits, and the probes to add then.
struct Turn {
    word: &'static str,
    place: Place,
    only_counts: bool,
    /// Whether a jump may replace the plant.
    jumps: bool,
}

/// The probed system call.
const CALL: &str = "__x64_sys_getppid";

/// The site in the function.
#[derive(Clone, Copy)]
enum Place {
    Entry,
    /// The first instruction without room for a jump that every call executes.
    Short,
    Return,
    /// The entry and the return: a probe that counts, a probe with events, a histogram, and a return probe.
    Shared,
    /// The entry, by the system call's name.
    Syscall,
    /// The entry; events have the stack.
    Stack,
    /// The entry of a function of the guest's init, alone on a page.
    Program,
    /// The returns of that function.
    ProgramReturn,
    /// The kernel's variable behind the sysctl that the guest writes.
    Variable,
    /// No probe.
    Unprobed,
}

impl Place {
    fn probes(
        self,
        kernel: &Kernel,
        only_counts: bool,
    ) -> Result<Vec<ProbeConfig<EngineAction>>, String> {
        let new = if only_counts { counted } else { new_probe };
        let entry = format!("kprobe:{CALL}");
        let of_return = format!("kretprobe:{CALL}");
        Ok(match self {
            Self::Entry => vec![new(&entry)],
            Self::Return => vec![new(&of_return)],
            Self::Syscall => vec![new("syscall:getppid")],
            Self::Stack => vec![ProbeConfig {
                stack: true,
                ..new(&entry)
            }],
            Self::Program => vec![new("uprobe:/init:probed_function")],
            Self::ProgramReturn => vec![new("uretprobe:/init:probed_function")],
            Self::Variable => vec![new("watch:panic_timeout")],
            Self::Unprobed => Vec::new(),
            Self::Shared => vec![
                counted(&entry),
                new_probe(&entry),
                histogram(&entry),
                new_probe(&of_return),
            ],
            Self::Short => {
                let offset = short(kernel, &function(kernel, CALL)?);
                let offset =
                    offset.ok_or_else(|| format!("{CALL} begins with no short instruction"))?;
                vec![new(&format!("kprobe:{CALL}+{offset:#x}"))]
            }
        })
    }
}

/// See [`Place::Short`]: how far into the function.
fn short(kernel: &Kernel, function: &Symbol) -> Option<u64> {
    let decoded = kernel.instructions(function).map_while(Result::ok);
    let is_passed = |decoded: &Decoded| is_position_independent(decoded) || is_call(decoded);
    let mut straight = decoded.take_while(is_passed);
    let found = straight.find(|decoded| {
        let is_entry = decoded.at() == function.address;
        !is_entry && decoded.len() < JUMP_BYTES && is_position_independent(decoded)
    });
    found?.at().offset_from(function.address)
}

/// `call rel32`.
fn is_call(decoded: &Decoded) -> bool {
    decoded.bytes()[0] == 0xe8
}

impl Turn {
    /// Whether the probe's hits stop exiting. `has_int3`: on the host, an `int3` may replace a plant.
    fn is_optimised(&self, has_int3: bool) -> bool {
        self.jumps && (has_int3 || !matches!(self.place, Place::Short))
    }
}

const fn turn(word: &'static str, place: Place, only_counts: bool, jumps: bool) -> Turn {
    Turn {
        word,
        place,
        only_counts,
        jumps,
    }
}

/// The turns for which the guest waits, in the order of the guest's init.
const OURS: [Turn; 23] = [
    turn("exits", Place::Entry, true, false),
    turn("kprobe", Place::Entry, false, false),
    turn("counted", Place::Entry, true, true),
    turn("recorded", Place::Entry, false, true),
    turn("kretprobe", Place::Return, false, false),
    turn("both-recorded", Place::Return, false, true),
    turn("counted-int3", Place::Short, true, true),
    turn("recorded-int3", Place::Short, false, true),
    turn("shared", Place::Shared, false, true),
    turn("untyped", Place::Short, false, false),
    turn("syscall", Place::Syscall, false, false),
    turn("stack", Place::Stack, false, false),
    turn("none-again", Place::Unprobed, true, false),
    turn("function", Place::Unprobed, true, false),
    turn("uprobe-counted", Place::Program, true, false),
    turn("uprobe-emitted", Place::Program, false, false),
    turn("uretprobe-counted", Place::ProgramReturn, true, false),
    turn("uretprobe-emitted", Place::ProgramReturn, false, false),
    turn("own-uprobe", Place::Unprobed, true, false),
    turn("own-uretprobe", Place::Unprobed, true, false),
    turn("write", Place::Unprobed, true, false),
    turn("watch-counted", Place::Variable, true, false),
    turn("watch-emitted", Place::Variable, false, false),
];
/// The guest waits with this word behind the last turn.
const END: &str = "end";

/// A turn's row in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The name in the lines.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// The row of the same calls without a probe, whose time is subtracted; `None` for a row without a probe.
    pub(super) without: Option<&'static str>,
}

const fn row(key: &'static str, title: &'static str, without: &'static str) -> Row {
    Row {
        key,
        title,
        without: Some(without),
    }
}

const fn bare(key: &'static str, title: &'static str) -> Row {
    Row {
        key,
        title,
        without: None,
    }
}

/// The rows, in the order of the guest's init.
pub(super) const ROWS: [Row; 26] = [
    bare(NONE, "no probe"),
    row(OWN_KPROBE, "the guest's own kprobe event", NONE),
    row(OWN_KRETPROBE, "the guest's own kretprobe event", NONE),
    row("stock-exits", "k: ours, counted", NONE),
    row(
        "stock-kprobe",
        "k: ours, emitted as an event with types",
        NONE,
    ),
    row("stock-counted", "o: ours, counted, by a jump", NONE),
    row(RECORDED, "o: ours, emitted as an event, by a jump", NONE),
    row("stock-kretprobe", "r: ours, emitted as an event", NONE),
    row(
        BOTH_RECORDED,
        "ro: ours, emitted as an event, both sides recorded",
        NONE,
    ),
    row("stock-counted-int3", "i: ours, counted, by an int3", NONE),
    row(
        "stock-recorded-int3",
        "i: ours, emitted as an event, by an int3",
        NONE,
    ),
    row(
        SHARED,
        "o+ro: four of ours at once: counted, emitted as an event, a histogram, both sides recorded",
        NONE,
    ),
    row(
        "stock-untyped",
        "k: ours, within the function: emitted as an event without types",
        NONE,
    ),
    row(
        "stock-syscall",
        "k: ours, `syscall:getppid`, emitted as an event",
        NONE,
    ),
    row(
        "stock-stack",
        "k: ours, emitted as an event with a stack",
        NONE,
    ),
    bare("stock-none-again", "no probe, again"),
    bare(FUNCTION, "a call of a function of the program, no probe"),
    row("stock-uprobe-counted", "u: ours, counted", FUNCTION),
    row(
        "stock-uprobe-emitted",
        "u: ours, emitted as an event",
        FUNCTION,
    ),
    row("stock-uretprobe-counted", "ur: ours, counted", FUNCTION),
    row(
        "stock-uretprobe-emitted",
        "ur: ours, emitted as an event",
        FUNCTION,
    ),
    row("stock-own-uprobe", "the guest's own uprobe event", FUNCTION),
    row(
        "stock-own-uretprobe",
        "the guest's own uretprobe event",
        FUNCTION,
    ),
    bare(WRITE, "a write to `/proc/sys/kernel/panic`, no probe"),
    row("stock-watch-counted", "w: ours, counted", WRITE),
    row("stock-watch-emitted", "w: ours, emitted as an event", WRITE),
];
/// Without a probe.
const NONE: &str = "stock-none";
const FUNCTION: &str = "stock-function";
const WRITE: &str = "stock-write";
/// Compared with each other.
pub(super) const OWN_KPROBE: &str = "stock-own-kprobe";
pub(super) const OWN_KRETPROBE: &str = "stock-own-kretprobe";
pub(super) const BOTH_RECORDED: &str = "stock-both-recorded";
pub(super) const RECORDED: &str = "stock-recorded";
pub(super) const SHARED: &str = "stock-shared";

pub(super) fn stock(overhead: &Overhead<'_>, bench: &Bench) -> Measured {
    let files = overhead.stock.ok_or("no stock kernel")?;
    let file = KernelFile::open(files.kernel).map_err(chain)?;
    let vmlinux = file.vmlinux().map_err(chain)?;
    let initrd = std::fs::read(files.initrd).map_err(chain)?;
    let guest = Guest {
        host: bench.host(),
        facts: *bench.facts(),
        file: &file,
        vmlinux: &vmlinux,
        initrd: &initrd,
        cpus: 1,
        memory_bytes: MEMORY_BYTES,
    };
    let kernel = guest.kernel()?;
    let clock = Clock::default();
    let parameters = format!(
        "calls={} rounds={} warm={ONCE_AROUND}",
        overhead.calls, overhead.rounds
    );
    let limit = overhead.timeout;
    let (ran, ours) = guest.run(&parameters, &[clock.probe(MARK)], limit, |live| {
        clock.takes_out(live.engine);
        drive(live, &kernel, limit)
    })?;
    // The first loop of each turn is not measured.
    let loops = overhead.rounds + 1;
    let made = overhead.calls * loops as u64;
    let marks = clock.marks();
    if marks.len() != 2 * loops * ROWS.len() {
        return Err(format!("{} marks", marks.len()));
    }
    // Uprobes have no count of missed hits.
    for own in [
        format!("own_kprobe {made} 0"),
        format!("own_kretprobe {made} 0"),
        format!("/init own_uprobe {made}"),
        format!("/init own_uretprobe {made}"),
    ] {
        let wanted = format!("overhead: own {own}");
        if !ran.console.lines().any(|line| line.trim_end() == wanted) {
            return Err(format!("the guest does not say {wanted:?}"));
        }
    }
    let has_int3 = bench.facts().int3_reaches_guest();
    let rows = ROWS.iter().zip(marks.chunks_exact(2 * loops));
    rows.map(|(row, marks)| {
        let mut own = OURS.iter().zip(&ours);
        let own = own.find(|(turn, _)| row.key.strip_prefix("stock-") == Some(turn.word));
        if let Some((turn, probes)) = own {
            let jumps = turn.is_optimised(has_int3);
            let warm = if row.key == RECORDED { ONCE_AROUND } else { 0 };
            let is_wrong =
                |probe: &&ProbeSummary| probe.hits != made + warm || is_optimised(probe) != jumps;
            if let Some(probe) = probes.iter().find(is_wrong) {
                return Err(format!("{made} hits expected, a jump {jumps}: {probe:?}"));
            }
        }
        // Several probes at the same site share the exits.
        let probes = own.map_or(&[][..], |(_, probes)| probes);
        Ok(Line::Timing(Timing {
            backend: overhead.backend,
            guest: NAME.to_owned(),
            way: row.key.to_owned(),
            cpus: 1,
            calls: overhead.calls,
            rounds_ns: super::clock::spans(marks, 1),
            hits: probes.iter().map(|probe| probe.hits).max().unwrap_or(0),
            exits: probes.iter().map(|probe| probe.exits).max().unwrap_or(0),
        }))
    })
    .collect()
}

/// Adds the probes of each turn, and removes the probes behind the turn. Returns the probes' counts.
fn drive(
    live: &Live<'_>,
    kernel: &Kernel,
    limit: Duration,
) -> Result<Vec<Vec<ProbeSummary>>, String> {
    let mut ours = Vec::new();
    let words = OURS.iter().map(|turn| turn.word).chain([END]);
    for (turn, next) in OURS.iter().zip(words.skip(1)) {
        live.await_text(&format!("overhead: wait {}", turn.word), limit)?;
        let new = turn.place.probes(kernel, turn.only_counts)?;
        live.engine
            .set_optimising(&live.control.pause_all(), turn.jumps)
            .map_err(chain)?;
        let prepared = live.engine.prepare(&new).map_err(chain)?;
        let ids = live
            .engine
            .register_prepared(&live.control.pause_all(), prepared)
            .map_err(chain)?;
        live.type_line()?;
        let next = format!("overhead: wait {next}");
        live.await_text(&next, limit)?;
        // The first is the clock's.
        ours.push(live.engine.inventory().summaries().split_off(1));
        live.engine
            .unregister(&live.control.pause_all(), &ids)
            .map_err(chain)?;
    }
    live.type_line()?;
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The console is searched for the beginning of a line.
    #[test]
    fn no_turn_begins_with_the_name_of_a_later_one() {
        for (at, turn) in OURS.iter().enumerate() {
            let later = OURS[at + 1..].iter().map(|later| later.word).chain([END]);
            for later in later {
                assert!(!turn.word.starts_with(later), "{} {later}", turn.word);
            }
        }
    }

    #[test]
    fn each_turn_has_a_row_and_each_difference_a_row_without_a_probe() {
        let row = |key: &str| ROWS.iter().find(|row| row.key == key);
        for turn in &OURS {
            assert!(
                row(&format!("stock-{}", turn.word)).is_some(),
                "{}",
                turn.word
            );
        }
        for without in ROWS.iter().filter_map(|row| row.without) {
            assert!(
                row(without).is_some_and(|row| row.without.is_none()),
                "{without}"
            );
        }
    }
}
