//! The targets, and the measured values.

use std::fmt::Write as _;

use super::super::arming::NUMBERS;
use super::super::stock::{BOTH_RECORDED, OWN_KPROBE, OWN_KRETPROBE, RECORDED, SHARED};
use super::super::{WAYS, Way};
use super::{Found, Measured, as_float, number, or_empty, quantile};
use crate::line::{Backend, BootKind};

/// A value with a maximum.
struct Target {
    title: String,
    most: f64,
    reached: fn(&Measured, Backend) -> Option<f64>,
}

fn wanted() -> [Target; 12] {
    let target = |title: &str, most, reached| Target {
        title: title.to_owned(),
        most,
        reached,
    };
    let many = number(as_float(largest() as u64));
    [
        target("k ≤ 1.3 × floor", 1.3, |measured, _| {
            measured.ratio(way("counted")?)
        }),
        target("r ≤ 2.5 × floor", 2.5, |measured, _| {
            measured.ratio(way("returns")?)
        }),
        target("ro ≤ 2.5 × floor", 2.5, |measured, _| {
            measured.ratio(way("returns-recorded")?)
        }),
        target("o: no exits (in 100 hits)", 0.0, |measured, _| {
            let entries = WAYS
                .iter()
                .filter(|way| way.jumps && way.key != "returns-recorded");
            let exits = entries.map(|way| measured.exits(way));
            let exits: Option<Vec<f64>> = exits.collect();
            exits?
                .into_iter()
                .map(|exits| (exits * 100.0).round())
                .reduce(f64::max)
        }),
        target("o: a count in ≤ 25 instructions", 25.0, |measured, _| {
            instructions(measured, "jumped")
        }),
        target("o: a record in ≤ 60 instructions", 60.0, |measured, _| {
            instructions(measured, "recorded")
        }),
        target(
            "o, a record: less than the guest's own kprobe event (that is 1)",
            1.0,
            |measured, backend| {
                let ours = measured.added(backend, RECORDED)?;
                Some(ours / measured.added(backend, OWN_KPROBE)?)
            },
        ),
        target(
            "ro, both sides recorded: less than the guest's own kretprobe event",
            1.0,
            |measured, backend| {
                let ours = measured.added(backend, BOTH_RECORDED)?;
                Some(ours / measured.added(backend, OWN_KRETPROBE)?)
            },
        ),
        target(
            "o+ro, four probes at a function: no exits (in 100 calls)",
            0.0,
            |measured, _| {
                let timing = measured.timing(SHARED)?;
                Some((as_float(timing.exits) * 100.0 / as_float(timing.hits)).round())
            },
        ),
        target(
            "`kprobe:*`: powers off within 3 × the boot without an engine",
            3.0,
            |measured, _| {
                let probed = measured.boot(BootKind::AllProbed)?;
                let bare = measured.boot(BootKind::NoEngine)?;
                Some(quantile(&probed.ran_ns, 0.5) / quantile(&bare.ran_ns, 0.5))
            },
        ),
        target(
            "`kprobe:*`: at most 100 000 exits",
            100_000.0,
            |measured, _| Some(as_float(measured.boot(BootKind::AllProbed)?.exits)),
        ),
        target(
            &format!("{many} probes planted in less than 1 s"),
            1.0,
            |measured, _| {
                let arming = measured.armings.get(&largest())?;
                Some(quantile(&arming.armed_ns, 0.5) / 1e9)
            },
        ),
    ]
}

/// The maximum number of armed probes.
pub(super) fn largest() -> usize {
    NUMBERS.iter().max().copied().unwrap_or(0)
}

fn way(key: &str) -> Option<&'static Way> {
    WAYS.iter().find(|way| way.key == key)
}

/// The instructions of a way, if measured.
fn instructions(measured: &Measured, key: &str) -> Option<f64> {
    measured.timing(key)?;
    way(key)?.instructions.map(as_float)
}

pub(super) fn targets(found: &Found) -> String {
    let mut text = String::from("| |");
    for backend in found.keys() {
        let _ = write!(text, " {backend} |");
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(found.len()));
    text.push('\n');
    for Target {
        title,
        most,
        reached,
    } in wanted()
    {
        let _ = write!(text, "| {title} |");
        for (backend, measured) in found {
            let reached = reached(measured, *backend);
            let _ = write!(
                text,
                " {} |",
                or_empty(reached.map(|reached| verdict(reached, most)))
            );
        }
        text.push('\n');
    }
    text
}

fn verdict(reached: f64, most: f64) -> String {
    match reached <= most {
        true => format!("yes: {reached:.2}"),
        false => format!("**no**: {reached:.2}"),
    }
}
