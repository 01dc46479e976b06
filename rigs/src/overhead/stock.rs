//! A system call of a stock guest, looked at by the guest's own kprobes and by ours, in one boot.

use std::time::Duration;

use probes::{NewProbe, ProbeSummary};

use super::clock::Clock;
use super::ways::counted;
use super::{Measured, Overhead};
use crate::busy::guest::{Guest, Live};
use crate::chain::chain;
use crate::contract::{Bench, new_probe};
use crate::line::{Line, Timing};
use vmm::boot::KernelFile;

/// The guest's name in the lines.
pub(super) const NAME: &str = "debian-6.1";
/// Probed before and after each loop.
const MARK: &str = "kprobe:__x64_sys_getpgrp";
/// What the guest waits for, what is put there then, and whether it is only counted.
const OURS: [(&str, &str, bool); 3] = [
    ("kprobe", "kprobe:__x64_sys_getppid", false),
    ("counted", "kprobe:__x64_sys_getppid", true),
    ("kretprobe", "kretprobe:__x64_sys_getppid", false),
];
const LIMIT: Duration = Duration::from_secs(120);

/// The turns, in the order in which the guest's init makes them: what each is called in the lines and in the table.
pub(super) const TURNS: [(&str, &str); 7] = [
    ("stock-none", "no probe"),
    ("stock-own-kprobe", "the guest's own kprobe event"),
    ("stock-own-kretprobe", "the guest's own kretprobe event"),
    ("stock-kprobe", "k: ours"),
    ("stock-counted", "o: ours, counted, by a jump"),
    ("stock-kretprobe", "r: ours"),
    ("stock-none-again", "no probe, again"),
];

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
    };
    let clock = Clock::default();
    let parameters = format!("calls={} rounds={}", overhead.calls, overhead.rounds);
    let (ran, ours) = guest.run(&parameters, &[clock.probe(MARK)], LIMIT, drive)?;
    // The first loop of each turn is the one that nothing is made of.
    let loops = overhead.rounds + 1;
    let made = overhead.calls * loops as u64;
    let marks = clock.marks();
    if marks.len() != 2 * loops * TURNS.len() {
        return Err(format!("{} marks", marks.len()));
    }
    for own in ["own_kprobe", "own_kretprobe"] {
        let wanted = format!("overhead: own {own} {made} 0");
        if !ran.console.lines().any(|line| line.trim_end() == wanted) {
            return Err(format!("the guest does not say {wanted:?}"));
        }
    }
    let turns = TURNS.iter().zip(marks.chunks_exact(2 * loops));
    turns
        .map(|((way, _), marks)| {
            let own = OURS.iter().zip(&ours);
            let probe = own
                .filter(|((word, ..), _)| way.strip_prefix("stock-") == Some(*word))
                .map(|(_, probe)| probe)
                .next();
            if let Some(wrong) = probe.filter(|probe| probe.hits != made) {
                return Err(format!("{made} hits expected: {wrong:?}"));
            }
            Ok(Line::Timing(Timing {
                backend: overhead.backend,
                guest: NAME.to_owned(),
                way: (*way).to_owned(),
                cpus: 1,
                calls: overhead.calls,
                rounds_ns: super::clock::spans(marks, 1),
                hits: probe.map_or(0, |probe| probe.hits),
                exits: probe.map_or(0, |probe| probe.exits),
            }))
        })
        .collect()
}

/// Adds each of our probes for its turn, and takes it away behind it; gives what they counted.
fn drive(live: &Live<'_>) -> Result<Vec<ProbeSummary>, String> {
    let mut ours = Vec::new();
    let turns = OURS.iter().map(|(word, ..)| *word).chain(["nothing"]);
    for ((word, spec, only_counts), next) in OURS.into_iter().zip(turns.skip(1)) {
        live.await_text(&format!("overhead: wait {word}"), LIMIT)?;
        let new: NewProbe = if only_counts {
            counted(spec)
        } else {
            new_probe(spec)
        };
        let ids = live
            .engine
            .register(&live.control.pause_all(), &[new])
            .map_err(chain)?;
        live.type_line()?;
        let next = format!("overhead: wait {next}");
        live.await_text(&next, LIMIT)?;
        let summaries = live.engine.summaries();
        ours.extend(summaries.into_iter().filter(|probe| probe.probe == spec));
        live.engine
            .unregister(&live.control.pause_all(), &ids)
            .map_err(chain)?;
    }
    live.type_line()?;
    Ok(ours)
}
