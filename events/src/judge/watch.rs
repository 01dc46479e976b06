//! An expectation, and the events seen for it.

use std::time::Duration;

use manifest::{
    Allowed, Count, Expectation, Expected, GuestEnd, Location, ProbeSpec, ValuePlace, Width,
    Word as _,
};

use super::tally::Tally;
use crate::{Event, Hit, Return, Summary};

/// The maximum length of a line in a message.
const SHOWN_CHARS: usize = 200;

/// The state of an expectation.
#[derive(Debug)]
pub(super) struct Watch {
    progress: Progress,
    /// The reason why the expectation can no longer hold.
    broken: Option<String>,
}

#[derive(Debug)]
enum Progress {
    /// Whether the expected line or value has been seen.
    Once(bool),
    /// The number of the probe's events in time.
    Counted(u64),
    /// The number of probes that have been hit in order.
    Turns(usize),
    /// The expectation is judged by the summary, or by events that break it.
    AtTheEnd,
}

impl Watch {
    pub(super) fn new(expectation: &Expectation) -> Self {
        Self {
            progress: match &expectation.what {
                Expected::Console { .. } | Expected::Seen { .. } => Progress::Once(false),
                Expected::Hits { .. } => Progress::Counted(0),
                Expected::Order { .. } => Progress::Turns(0),
                Expected::NeverNegative { .. } | Expected::Accesses { .. } | Expected::End(_) => {
                    Progress::AtTheEnd
                }
            },
            broken: None,
        }
    }

    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Takes a line of the console, written at `at`.
    pub(super) fn line(&mut self, expectation: &Expectation, at: Duration, line: &str) {
        let Expected::Console { pattern, never } = &expectation.what else {
            return;
        };
        if is_late(expectation, at) || !pattern.is_in(line) {
            return;
        }
        if *never {
            self.breaks(|| format!("it says: {}", shown(line)));
        } else {
            self.progress = Progress::Once(true);
        }
    }

    pub(super) fn event(&mut self, expectation: &Expectation, event: &Event) {
        let (name, ts_ns) = match event {
            Event::Hit(hit) => (&*hit.probe, hit.ts_ns),
            Event::Return(returned) => (&*returned.probe, returned.ts_ns),
            Event::Note(_) | Event::Summary(_) => return,
        };
        if is_late(expectation, Duration::from_nanos(ts_ns)) {
            return;
        }
        match &expectation.what {
            Expected::Console { .. } | Expected::End(_) => (),
            Expected::Hits { probe, count } if probe.stands_for(name) => {
                let Progress::Counted(seen) = &mut self.progress else {
                    return;
                };
                *seen += 1;
                if *seen > count.most() {
                    let seen = *seen;
                    self.breaks(|| match count.most() {
                        0 => described(event),
                        most => format!("{} is number {seen}, of {most}", described(event)),
                    });
                }
            }
            Expected::Order { probes } => self.turn(probes, name),
            Expected::NeverNegative { probe, width } if probe.stands_for(name) => {
                if let Event::Return(returned) = event
                    && let Some(number) = width.negative(returned.retval.0)
                {
                    self.breaks(|| format!("it returned {number}, {}", described(event)));
                }
            }
            Expected::Seen {
                probe,
                value,
                place,
            } if probe.stands_for(name) => {
                if value_at(*place, event, *value) {
                    self.progress = Progress::Once(true);
                }
            }
            Expected::Accesses { probe, allowed } if probe.stands_for(name) => {
                if let Event::Hit(hit) = event
                    && !is_allowed(probe, allowed, hit)
                {
                    self.breaks(|| described(event));
                }
            }
            Expected::Hits { .. }
            | Expected::NeverNegative { .. }
            | Expected::Seen { .. }
            | Expected::Accesses { .. } => (),
        }
    }

    fn turn(&mut self, probes: &[ProbeSpec], name: &str) {
        let Progress::Turns(done) = &mut self.progress else {
            return;
        };
        let is_named = |probe: &&ProbeSpec| probe.stands_for(name);
        match probes.get(*done) {
            Some(next) if next.stands_for(name) => *done += 1,
            // A probe that has been hit in order may be hit again.
            Some(next) if !probes[..*done].iter().any(|probe| probe.stands_for(name)) => {
                let early = probes[*done..].iter().find(is_named);
                if let Some(early) = early {
                    let (early, next) = (early.to_string(), next.to_string());
                    self.breaks(|| format!("{early} came before {next}"));
                }
            }
            _ => (),
        }
    }

    /// Stores the reason, unless there is an earlier reason.
    fn breaks(&mut self, why: impl FnOnce() -> String) {
        self.broken.get_or_insert_with(why);
    }

    /// The reason why the expectation does not hold; `None` if it holds.
    pub(super) fn finish(self, expectation: &Expectation, summary: &Summary) -> Option<String> {
        if self.broken.is_some() {
            return self.broken;
        }
        if summary.dropped > 0 && is_decided_by_events(expectation) {
            return Some(format!("{} events were lost", summary.dropped));
        }
        match (&expectation.what, &self.progress) {
            (Expected::Console { never: false, .. }, Progress::Once(false)) => {
                Some("there was no such line".to_owned())
            }
            (Expected::Hits { probe, count }, Progress::Counted(in_time)) => {
                let timed = expectation.before.map(|_| *in_time);
                judge_count(probe, *count, timed, summary)
            }
            (Expected::Order { probes }, Progress::Turns(done)) => {
                let next = probes.get(*done)?;
                Some(explain(
                    format!("{next} was not hit in its turn"),
                    &Tally::of(next, summary),
                ))
            }
            (Expected::NeverNegative { probe, .. }, _) => {
                judge_all(probe, "returns", Tally::of(probe, summary))
            }
            (Expected::Accesses { probe, .. }, _) => {
                judge_all(probe, "accesses", Tally::of(probe, summary))
            }
            (Expected::Seen { probe, .. }, Progress::Once(false)) => {
                let tally = Tally::of(probe, summary);
                let events = match probe.kind.is_return() {
                    false => "hits",
                    true => "returns",
                };
                let seen = format!("it is in none of {} {events}", tally.seen);
                Some(explain(seen, &tally))
            }
            (Expected::End(end), _) => judge_end(*end, expectation.before, summary),
            _ => None,
        }
    }
}

/// Judges a condition on all events of a probe, called `events`, that no event has broken.
fn judge_all(probe: &ProbeSpec, events: &str, tally: Tally) -> Option<String> {
    if tally.unseen > 0 {
        let unseen = tally.unseen_in_words();
        return Some(format!(
            "none that were seen, but {events} of {probe}: {unseen}"
        ));
    }
    tally.blind
}

/// Whether the access to watched data is allowed. A part of the watched bytes is no number that can be compared.
fn is_allowed(probe: &ProbeSpec, allowed: &Allowed, hit: &Hit) -> bool {
    let (value, bytes, offset) = match (&hit.write, &hit.read) {
        (Some(write), _) => (write.new.0, write.bytes, write.offset),
        (None, Some(read)) => (read.value.0, read.bytes, read.offset),
        (None, None) => return false,
    };
    let is_part = || {
        let watched = match &probe.location {
            Location::Data(data) => data.bytes,
            _ => None,
        };
        offset != 0 || watched.is_some_and(|watched| watched != u16::from(bytes))
    };
    let is_unknown = matches!(allowed, Allowed::Values(_)) && is_part();
    !is_unknown && allowed.is_allowed(&hit.symbol, value, bytes)
}

/// Judges a count. `in_time` is the number of events up to the deadline, if there is a deadline; otherwise the probe's own counters are
/// exact.
fn judge_count(
    probe: &ProbeSpec,
    count: Count,
    in_time: Option<u64>,
    summary: &Summary,
) -> Option<String> {
    let tally = Tally::of(probe, summary);
    let seen = in_time.unwrap_or(tally.seen);
    if seen < count.least() {
        let what = match in_time {
            Some(_) => format!("{seen} by then, {} in all", tally.seen),
            None => format!("{seen}"),
        };
        return Some(explain(what, &tally));
    }
    if seen > count.most() {
        return Some(format!("{seen}"));
    }
    // Unseen hits do not break `at_least`.
    if count.most() == u64::MAX {
        return None;
    }
    if tally.unseen > 0 {
        return Some(format!("{seen}, but {}", tally.unseen_in_words()));
    }
    tally.blind
}

fn judge_end(end: GuestEnd, before: Option<Duration>, summary: &Summary) -> Option<String> {
    let guest = &summary.guest;
    if guest.end != end {
        let detail = guest.detail.as_deref();
        let detail = detail.map(|detail| format!(": {detail}"));
        return Some(format!(
            "it ended by {}{}",
            guest.end.word(),
            shown(&detail.unwrap_or_default())
        ));
    }
    let ran = Duration::from_nanos(summary.ran_ns);
    before
        .filter(|before| ran > *before)
        .map(|_| format!("it ran for {:.1} s", ran.as_secs_f64()))
}

/// The finding, and the reasons why there may have been more hits.
fn explain(found: String, tally: &Tally) -> String {
    match (&tally.blind, tally.unseen) {
        (Some(blind), _) => format!("{found}; {blind}"),
        (None, 0) => found,
        (None, _) => format!("{found}; {}", tally.unseen_in_words()),
    }
}

/// Whether a lost event may decide the expectation.
fn is_decided_by_events(expectation: &Expectation) -> bool {
    match &expectation.what {
        Expected::Console { .. } | Expected::End(_) => false,
        Expected::Hits { .. } => expectation.before.is_some(),
        Expected::Order { .. }
        | Expected::NeverNegative { .. }
        | Expected::Seen { .. }
        | Expected::Accesses { .. } => true,
    }
}

fn is_late(expectation: &Expectation, at: Duration) -> bool {
    expectation.before.is_some_and(|before| at > before)
}

fn value_at(place: ValuePlace, event: &Event, value: u64) -> bool {
    match (place, event) {
        (ValuePlace::Returned, Event::Return(returned)) => {
            // A function may return a negative `int` with zeros in the upper half of the register.
            let int = Width::Int.negative(returned.retval.0);
            let is_int = returned.retval.0 >> 32 == 0 && int == Some(value.cast_signed());
            returned.retval.0 == value || is_int
        }
        (ValuePlace::Argument(number), Event::Hit(hit)) => {
            hit.args.get(number).is_some_and(|hex| hex.0 == value)
        }
        _ => false,
    }
}

fn described(event: &Event) -> String {
    let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
    match event {
        Event::Hit(Hit {
            symbol,
            ts_ns,
            vcpu,
            write: Some(write),
            ..
        }) => format!(
            "write at {:.3} s on vCPU {vcpu}: {symbol} has replaced {} by {}",
            seconds(*ts_ns),
            write.old,
            write.new
        ),
        Event::Hit(Hit {
            symbol,
            ts_ns,
            vcpu,
            read: Some(read),
            ..
        }) => format!(
            "read at {:.3} s on vCPU {vcpu}: {symbol} has found {}",
            seconds(*ts_ns),
            read.value
        ),
        Event::Hit(Hit {
            symbol,
            ts_ns,
            vcpu,
            args,
            ..
        }) => format!(
            "hit at {:.3} s on vCPU {vcpu}: {symbol}({}, {}, {})",
            seconds(*ts_ns),
            args[0],
            args[1],
            args[2]
        ),
        Event::Return(Return {
            symbol,
            ts_ns,
            vcpu,
            ..
        }) => format!("at {:.3} s on vCPU {vcpu}: {symbol}", seconds(*ts_ns)),
        Event::Note(_) | Event::Summary(_) => String::new(),
    }
}

/// The beginning of a guest's text, for a message, without control characters.
fn shown(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(SHOWN_CHARS)
        .collect()
}
