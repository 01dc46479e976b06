//! The summary for people.

use events::{ProbeState, ProbeSummary, Summary, Tier};
use manifest::GuestEnd;

use super::printable::printable;
use super::stack_text::StackText;
use super::style::{Ink, Style};
use super::text_line::{line, seconds};

/// From this number of probes on, armed probes without a hit are only counted.
const MANY_PROBES: usize = 50;

/// Longer cells do not move the columns behind them. The hyprobe inside a nested run chooses its cells, and a guest may have
/// taken over that hyprobe.
const MAX_WIDTH: usize = 128;

const HEADINGS: [&str; 7] = [
    "PROBE", "ADDRESS", "HITS", "MISSED", "TIER", "EXITS", "STATE",
];
/// Numbers stand on the right of their column.
const IS_NUMBER: [bool; 7] = [false, false, true, true, false, true, false];

/// Appends the end of the guest and the counts of each probe.
pub(super) fn summary(summary: &Summary, style: Style, out: &mut Vec<u8>) {
    let end = summary.guest.end;
    let ink = match end {
        GuestEnd::Panic | GuestEnd::TripleFault | GuestEnd::Failed => Ink::Bad,
        GuestEnd::Timeout => Ink::Warning,
        _ => Ink::Strong,
    };
    let detail = summary
        .guest
        .detail
        .as_ref()
        .map(|detail| format!(": {}", printable(detail)))
        .unwrap_or_default();
    line(out, format_args!(""));
    line(
        out,
        format_args!(
            "{}{detail} after {} s ({})",
            style.paint(ink, sentence(end)),
            seconds(summary.ran_ns),
            printable(&summary.accel),
        ),
    );
    for vcpu in &summary.guest.vcpus {
        let text = StackText::from(vcpu);
        let at = match (vcpu.stack.first(), &vcpu.stack_incomplete) {
            // The functions that are inlined there come first.
            (Some(frame), _) => format!("  at {}", frame.text().join(" in ")),
            (None, Some(why)) => format!("  {why}"),
            (None, None) => String::new(),
        };
        line(out, format_args!("{}{}", text.heading(), printable(&at)));
    }
    for why in &summary.restarts {
        line(
            out,
            format_args!("QEMU was started again: {}", printable(why)),
        );
    }
    if summary.dropped > 0 {
        let lost = format!("{} events could not be written", summary.dropped);
        line(out, format_args!("{}", style.paint(Ink::Bad, lost)));
    }
    if !summary.probes.is_empty() {
        line(out, format_args!(""));
        probes(&summary.probes, style, out);
    }
}

const fn sentence(end: GuestEnd) -> &'static str {
    match end {
        GuestEnd::Poweroff => "The guest powered off",
        GuestEnd::Reset => "The guest reset",
        GuestEnd::Panic => "The guest's kernel panicked",
        GuestEnd::TripleFault => "The guest triple-faulted",
        GuestEnd::Halted => "The guest halted for good",
        GuestEnd::Timeout => "Time is up; the guest was stopped",
        GuestEnd::Stopped => "The guest was stopped",
        GuestEnd::Exit => "The guest ended with an exit code",
        GuestEnd::Failed => "The run failed",
    }
}

fn probes(probes: &[ProbeSummary], style: Style, out: &mut Vec<u8>) {
    let is_quiet = |probe: &&ProbeSummary| {
        probe.state == ProbeState::Armed && probe.hits == 0 && probe.missed.is_empty()
    };
    let many = probes.len() >= MANY_PROBES;
    let shown: Vec<_> = probes
        .iter()
        .filter(|probe| !(many && is_quiet(probe)))
        .collect();
    let rows: Vec<_> = shown.iter().map(|probe| row(probe)).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(MAX_WIDTH));
        }
    }
    let headings = joined(&HEADINGS.map(str::to_owned), &widths);
    line(out, format_args!("{}", style.paint(Ink::Strong, headings)));
    for (probe, row) in shown.iter().zip(&rows) {
        let text = joined(row, &widths);
        match ink(probe) {
            Ink::Plain => line(out, format_args!("{text}")),
            ink => line(out, format_args!("{}", style.paint(ink, text))),
        }
        if let Some(filter) = &probe.filter {
            line(out, format_args!("  filter: {}", printable(filter)));
        }
        if let Some(result) = &probe.result {
            for text in result.to_string().lines() {
                line(out, format_args!("  {}", printable(text)));
            }
        }
        for (reason, count) in &probe.missed {
            line(out, format_args!("  missed {count}: {}", printable(reason)));
        }
        if let (Some(returns), Some(in_flight)) = (probe.returns, probe.in_flight) {
            line(
                out,
                format_args!("  {returns} returned, {in_flight} in flight"),
            );
        }
        if let Some(reason) = &probe.reason {
            line(out, format_args!("  {}", printable(reason)));
        }
        if let Some(why) = &probe.unoptimised {
            line(out, format_args!("  not optimised: {}", printable(why)));
        }
    }
    let quiet = probes.len() - shown.len();
    if quiet > 0 {
        line(
            out,
            format_args!("… and {quiet} armed probes without a hit"),
        );
    }
    if probes.len() > 1 {
        let hits = total(probes.iter().map(|probe| probe.hits));
        let missed = total(probes.iter().map(missed));
        let exits = total(probes.iter().map(|probe| probe.exits));
        line(
            out,
            format_args!(
                "{} probes: {hits} hits, {missed} missed, {exits} exits",
                probes.len()
            ),
        );
    }
}

fn missed(probe: &ProbeSummary) -> u64 {
    total(probe.missed.values().copied())
}

/// The sum. A guest's kernel can write any number to the counters of detours.
pub(crate) fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn row(probe: &ProbeSummary) -> [String; 7] {
    [
        printable(&probe.probe).into_owned(),
        probe.ip.map_or_else(|| "-".to_owned(), |ip| ip.to_string()),
        probe.hits.to_string(),
        missed(probe).to_string(),
        tier(probe.tier).to_owned(),
        probe.exits.to_string(),
        state(probe.state).to_owned(),
    ]
}

/// The cells in their columns, without blanks at the end.
fn joined(cells: &[String; 7], widths: &[usize; 7]) -> String {
    let cells: Vec<_> = cells
        .iter()
        .zip(widths)
        .zip(IS_NUMBER)
        .map(|((cell, &width), number)| {
            if number {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        })
        .collect();
    cells.join("  ").trim_end().to_owned()
}

fn ink(probe: &ProbeSummary) -> Ink {
    match probe.state {
        ProbeState::Refused => Ink::Bad,
        ProbeState::Pending => Ink::Warning,
        _ if !probe.missed.is_empty() => Ink::Warning,
        _ => Ink::Plain,
    }
}

const fn tier(tier: Option<Tier>) -> &'static str {
    match tier {
        None => "-",
        Some(Tier::Emulated) => "emulated",
        Some(Tier::Optimised) => "optimised",
        Some(Tier::Relocated) => "relocated",
        Some(Tier::Stepped) => "stepped",
    }
}

const fn state(state: ProbeState) -> &'static str {
    match state {
        ProbeState::Armed => "armed",
        ProbeState::Pending => "pending",
        ProbeState::Disabled => "disabled",
        ProbeState::Gone => "gone",
        ProbeState::Refused => "refused",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use events::{GuestSummary, Hex};
    use manifest::program::{Aggregate, AggregateResult};

    use super::*;

    fn probe(name: &str, hits: u64) -> ProbeSummary {
        ProbeSummary {
            probe: name.to_owned(),
            ip: Some(Hex(0xffff_ffff_8139_a0c0)),
            hits,
            missed: BTreeMap::new(),
            tier: (hits > 0).then_some(Tier::Emulated),
            exits: hits,
            returns: None,
            in_flight: None,
            state: ProbeState::Armed,
            reason: None,
            unoptimised: None,
            filter: None,
            result: None,
        }
    }

    fn run(probes: Vec<ProbeSummary>) -> Summary {
        let guest = GuestSummary {
            end: GuestEnd::Poweroff,
            detail: None,
            crash: None,
            vcpus: Vec::new(),
            log: None,
        };
        Summary {
            accel: "kvm".to_owned(),
            guest,
            ran_ns: 7_213_000_000,
            probes,
            dropped: 0,
            restarts: Vec::new(),
        }
    }

    fn shown(probes: Vec<ProbeSummary>) -> String {
        let mut out = Vec::new();
        summary(&run(probes), Style::plain(), &mut out);
        String::from_utf8(out).expect("utf-8")
    }

    #[test]
    fn vcpus_at_the_end_have_a_line_each() {
        let mut run = run(Vec::new());
        let vcpus = serde_json::json!([
            {
                "vcpu": 0, "task": { "pid": 0, "tid": 0, "comm": "swapper/0" }, "user_mode": false,
                "stack": [{ "address": "0xffffffff81000005", "symbol": "native_safe_halt+0xb/0x10" }],
            },
            {
                "vcpu": 2, "user_mode": false, "stack": [{
                    "address": "0xffffffff81000015", "symbol": "spin+0x5/0x10",
                    "source": { "file": "a.c", "line": 9, "inlined": [{ "function": "pause", "file": "a.h", "line": 3 }] },
                }],
            },
            { "vcpu": 1, "task": { "pid": 7, "tid": 7, "comm": "x\u{1b}" }, "user_mode": true, "stack": [] },
            { "vcpu": 3, "user_mode": false, "stack": [], "stack_incomplete": "why\u{1b}" },
        ]);
        run.guest.vcpus = serde_json::from_value(vcpus).expect("stacks");
        let mut out = Vec::new();
        summary(&run, Style::plain(), &mut out);
        let text = String::from_utf8(out).expect("utf-8");
        let expected = "(kvm)\ncpu0  swapper/0[0]  at native_safe_halt+0xb/0x10\n\
                        cpu2  at [inlined] pause a.h:3 in spin+0x5/0x10 a.c:9\n\
                        cpu1  x\\x1b[7]  in user mode\ncpu3  why\\x1b\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn restarts_are_printed_below_the_end() {
        let run = Summary {
            restarts: vec!["QEMU ended after 2.1 s (signal: 6)".to_owned()],
            ..run(Vec::new())
        };
        let mut out = Vec::new();
        summary(&run, Style::plain(), &mut out);
        let text = String::from_utf8(out).expect("utf-8");
        let told = "(kvm)\nQEMU was started again: QEMU ended after 2.1 s (signal: 6)\n";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn counts_that_a_guest_has_overwritten_are_summed_up() {
        let missed = BTreeMap::from([("ring full".to_owned(), u64::MAX), ("busy".to_owned(), 1)]);
        let probes = vec![
            ProbeSummary {
                missed,
                ..probe("kprobe:a", u64::MAX)
            },
            probe("kprobe:b", 1),
        ];
        let out = shown(probes);
        let most = u64::MAX;
        let last = format!("2 probes: {most} hits, {most} missed, {most} exits");
        assert!(out.contains(&last), "{out}");
    }

    #[test]
    fn operand_of_the_inner_hyprobe_adds_no_line() {
        let mut probe = probe("kprobe:a", 1);
        probe.result = Some(AggregateResult::Sum {
            of: "a\n12 returned, 0 in flight\u{202e}".to_owned(),
            count: 1,
            value: 1,
        });
        let out = shown(vec![probe]);
        assert!(
            out.contains(r"sum(a\n12 returned, 0 in flight\u{202e}): 1"),
            "{out}"
        );
    }

    #[test]
    fn one_long_cell_does_not_widen_all_lines() {
        let long = "x".repeat(1 << 17);
        let probes = (0..9).map(|_| probe("kprobe:a", 1));
        let out = shown(probes.chain([probe(&long, 1)]).collect());
        assert!(out.contains(&long), "the name is shown whole");
        let rest = out.len() - long.len();
        assert!(rest < 16 * 2 * MAX_WIDTH, "{rest} bytes besides");
    }

    #[test]
    fn a_table() {
        let mut late = probe("kprobe:nft_do_chain", 0);
        (late.ip, late.state) = (None, ProbeState::Pending);
        late.reason = Some("no such symbol until a module brings it".to_owned());
        let mut fast = probe("kprobe:vfs_write", 30);
        (fast.tier, fast.exits) = (Some(Tier::Optimised), 1);
        let mut slow = probe("kprobe:vfs_open", 3);
        slow.unoptimised = Some("another probe is there".to_owned());
        let mut missed = probe("kprobe:vfs_read", 1200);
        missed.missed.insert("output failed".to_owned(), 3);
        assert_eq!(
            shown(vec![missed, late, fast, slow]),
            "
The guest powered off after 7.213000 s (kvm)

PROBE                ADDRESS             HITS  MISSED  TIER       EXITS  STATE
kprobe:vfs_read      0xffffffff8139a0c0  1200       3  emulated    1200  armed
  missed 3: output failed
kprobe:nft_do_chain  -                      0       0  -              0  pending
  no such symbol until a module brings it
kprobe:vfs_write     0xffffffff8139a0c0    30       0  optimised      1  armed
kprobe:vfs_open      0xffffffff8139a0c0     3       0  emulated       3  armed
  not optimised: another probe is there
4 probes: 1233 hits, 3 missed, 1204 exits
"
        );
    }

    #[test]
    fn a_program_is_shown_below_its_probe() {
        let mut probe = probe("kprobe:vfs_read", 4);
        probe.filter = Some("arg0 == 5".to_owned());
        let lhist: Aggregate = "lhist(arg2, 0, 8, 4)".parse().expect("ranges");
        probe.result = Some(lhist.result(&[4, 0, 3, 1, 0]));
        let bars = [
            "@".repeat(52),
            format!("{}{}", "@".repeat(17), " ".repeat(35)),
        ];
        let expected = format!(
            "\x20 filter: arg0 == 5
  lhist(arg2):
  [0, 4)                  3 |{}|
  [4, 8)                  1 |{}|
",
            bars[0], bars[1]
        );
        let text = shown(vec![probe]);
        assert!(text.ends_with(&expected), "{text}\n{expected}");
    }

    #[test]
    fn of_many_probes_those_that_were_hit_are_shown() {
        let mut probes: Vec<_> = (0..60).map(|n| probe(&format!("kprobe:f{n}"), 0)).collect();
        probes[7].hits = 2;
        let text = shown(probes);
        assert!(
            text.contains("kprobe:f7 ") && !text.contains("kprobe:f8"),
            "{text}"
        );
        assert!(
            text.contains("… and 59 armed probes without a hit"),
            "{text}"
        );
    }
}
