//! The tables of the page.

use std::fmt::Write as _;

use super::super::WAYS;
use super::super::gdbstub::WAY as GDBSTUB;
use super::super::stock::{self, ROWS, Row};
use super::super::test_guest::TAKEN_OUT;
use super::targets::largest;
use super::{BootKind, Found, as_float, number, or_empty, quantile};

pub(super) fn hits(found: &Found) -> String {
    let mut text = String::from("| |");
    for backend in found.keys() {
        let _ = write!(text, " {backend} | × floor |");
    }
    text.push_str(" exits | guest instructions |\n|---|");
    text.push_str(&"---:|---:|".repeat(found.len()));
    text.push_str("---:|---:|\n");
    for way in &WAYS {
        let _ = write!(text, "| {} |", way.title);
        for (backend, measured) in found {
            let unit = measured.unit(*backend);
            let cost = measured.cost(way).zip(unit);
            let cost = cost.map(|(cost, unit)| cost.map(|ns| ns / unit));
            let cost = cost.map(|[median, low, high]| {
                format!("{} [{}, {}]", number(median), number(low), number(high))
            });
            let ratio = measured.ratio(way).map(|ratio| format!("{ratio:.2}"));
            let _ = write!(text, " {} | {} |", or_empty(cost), or_empty(ratio));
        }
        let exits = found.values().filter_map(|measured| measured.exits(way));
        let mut exits: Vec<String> = exits.map(|exits| format!("{exits:.2}")).collect();
        exits.dedup();
        let instructions = way
            .instructions
            .map(|instructions| instructions.to_string());
        let _ = writeln!(text, " {} | {} |", exits.join(", "), or_empty(instructions));
    }
    text
}

/// Calls in a stock guest, if measured.
pub(super) fn in_stock(found: &Found) -> String {
    let mut text =
        String::from("| | | a call | what the probe adds | exits |\n|---|---|---:|---:|---:|\n");
    for (backend, measured) in found {
        for Row { key, title, .. } in ROWS {
            let timing = measured.timing(key);
            let Some((timing, [median, low, high])) = timing.zip(measured.call(*backend, key))
            else {
                continue;
            };
            let added = measured.added(*backend, key);
            let exits = (timing.hits > 0)
                .then(|| format!("{:.2}", as_float(timing.exits) / as_float(timing.hits)));
            let _ = writeln!(
                text,
                "| {backend}, {} | {title} | {} [{}, {}] | {} | {} |",
                stock::NAME,
                number(median),
                number(low),
                number(high),
                or_empty(added.map(number)),
                or_empty(exits),
            );
        }
    }
    text
}

pub(super) fn rates(found: &Found) -> String {
    let mut text = String::from(
        "| | 1 vCPU | best | 2 vCPUs | best | 2 : 1 |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (backend, measured) in found {
        let _ = write!(text, "| {backend} |");
        let rate = |cpus, part| measured.rate(*backend, "rate", cpus, part);
        for cpus in [1, 2] {
            for part in [0.5, 0.0] {
                let _ = write!(text, " {} |", or_empty(rate(cpus, part).map(number)));
            }
        }
        let scale = rate(2, 0.0).zip(rate(1, 0.0));
        let scale = scale.map(|(two, one)| format!("{:.2}", two / one));
        let _ = writeln!(text, " {} |", or_empty(scale));
    }
    text
}

/// Records, and how many hits found the ring full.
pub(super) fn records(found: &Found) -> String {
    let mut text = String::from(
        "| | 1 vCPU | exits of 1 000 hits | 2 vCPUs | exits of 1 000 hits | to take one out |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (backend, measured) in found {
        let _ = write!(text, "| {backend} |");
        for cpus in [1, 2] {
            let rate = measured.rate(*backend, "records", cpus, 0.5);
            let timing = measured.timings.get(&("records".to_owned(), cpus));
            let exits = timing.map(|timing| {
                format!(
                    "{:.2}",
                    as_float(timing.exits) * 1e3 / as_float(timing.hits)
                )
            });
            let _ = write!(
                text,
                " {} | {} |",
                or_empty(rate.map(number)),
                or_empty(exits)
            );
        }
        let taken_out = measured.call(*backend, TAKEN_OUT);
        let _ = writeln!(
            text,
            " {} |",
            or_empty(taken_out.map(|[median, ..]| number(median)))
        );
    }
    text
}

/// The time of a hit in QEMU's gdbstub, if measured.
pub(super) fn gdbstub(found: &Found) -> String {
    let mut text = String::from("| | a hit, ns |\n|---|---:|\n");
    for (backend, measured) in found {
        let Some([median, low, high]) = measured.call(*backend, GDBSTUB) else {
            continue;
        };
        let [median, low, high] = [median, low, high].map(number);
        let _ = writeln!(text, "| {backend} | {median} [{low}, {high}] |");
    }
    text
}

/// Boots of a stock guest until power-off.
pub(super) fn boots(found: &Found) -> String {
    let mut text = String::from(
        "| | | set up, ms | boot, ms | × without | probes | hits | missed | exits |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (backend, measured) in found {
        let without = measured.boot(BootKind::NoEngine);
        for (kind, boot) in &measured.boots {
            let cell = |values: &[u64]| {
                let [median, low, high] =
                    [0.5, 0.25, 0.75].map(|part| number(quantile(values, part) / 1e6));
                format!("{median} [{low}, {high}]")
            };
            let ratio = without.map(|without| {
                let [with, without] = [boot, without].map(|boot| quantile(&boot.ran_ns, 0.5));
                format!("{:.3}", with / without)
            });
            let counts = [boot.probes, boot.hits, boot.missed, boot.exits];
            let counts = match kind {
                BootKind::AllProbed => counts.map(|count| number(as_float(count))),
                BootKind::NoEngine | BootKind::Engine => Default::default(),
            };
            let _ = writeln!(
                text,
                "| {backend}, {} | {} | {} | {} | {} | {} |",
                boot.guest,
                match kind {
                    BootKind::NoEngine => "no engine",
                    BootKind::Engine => "engine, no probe",
                    BootKind::AllProbed => "engine, `kprobe:*`, counted",
                },
                cell(&boot.set_up_ns),
                cell(&boot.ran_ns),
                or_empty(ratio.filter(|_| *kind != BootKind::NoEngine)),
                counts.join(" | "),
            );
        }
    }
    text
}

pub(super) fn armings(found: &Found) -> String {
    let mut text = String::from(
        "| | probes | looked up | planted | removed | memory, MiB | bytes a probe |\n|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for (backend, measured) in found {
        for arming in measured.armings.values() {
            let milliseconds = |values: &[u64]| format!("{:.2}", quantile(values, 0.5) / 1e6);
            // With few probes, the value would show the allocator's granularity.
            let bytes = (arming.probes == largest())
                .then(|| number(as_float(arming.resident_bytes / arming.probes as u64)));
            let resident = format!("{:.1}", as_float(arming.resident_bytes) / 1048576.0);
            let _ = writeln!(
                text,
                "| {backend} | {} | {} | {} | {} | {resident} | {} |",
                number(as_float(arming.probes as u64)),
                milliseconds(&arming.prepared_ns),
                milliseconds(&arming.armed_ns),
                milliseconds(&arming.removed_ns),
                or_empty(bytes),
            );
        }
    }
    text
}
