//! A boot of a case.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use events::judge::Verdict;
use events::{Crash, Event, LogEnd, Summary, VcpuStack};
use files::{CreateError, Folder};
use manifest::{GuestEnd, Word as _};

use super::case::Case;
use super::core_dump::CoreDump;
use super::error::TestError;
use super::record::{ConsoleTail, LastEvents};
use crate::exit::{Exit, Failure as _};
use crate::failure::in_one_line;
use crate::panics::Since;
use crate::report::{FrameLines, printable};
use crate::run::crash_dump::CrashDump;
use crate::run::ends::{Console, Ends};
use crate::run::guest::Guest;
use crate::run::judged::{self, Judged, admit};
use crate::run::place::Place;
use crate::source_lines::{MayFetch, replace};
use crate::stderr::say;
use crate::stop::{StopReason, StopSignal};

/// The wait of a case for the debug files of modules that are being fetched, after the guest's end.
const WAIT_FOR_FETCHES: Duration = Duration::from_secs(10);

/// The result of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All is as expected.
    Passed,
    /// The case failed, for the listed reasons.
    Failed(Vec<String>),
    /// The case could not be booted or judged.
    Error {
        /// The exit code of the error.
        exit: Exit,
        /// The reason.
        why: String,
    },
}

/// A boot, with the data that may explain the outcome.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// `None` after an error.
    pub(super) summary: Option<Summary>,
    pub(super) verdicts: Vec<Verdict>,
    /// The end of the console.
    pub(super) console: Vec<u8>,
    /// The last events.
    pub(super) events: Vec<Event>,
    /// Whether the folder of the artifacts has a core file.
    pub(super) has_dump: bool,
}

impl Attempt {
    /// Why QEMU was started again before the guest's first instruction, a reason for each time.
    pub(super) fn restarts(&self) -> &[String] {
        self.summary
            .as_ref()
            .map_or(&[], |summary| &summary.restarts)
    }

    /// The crash of the guest's kernel, if any.
    pub(super) fn crash(&self) -> Option<&Crash> {
        self.summary.as_ref()?.guest.crash.as_deref()
    }

    /// The stacks of the vCPUs at the guest's end, if the summary has them.
    pub(super) fn vcpus(&self) -> &[VcpuStack] {
        self.summary
            .as_ref()
            .map_or(&[], |summary| &summary.guest.vcpus)
    }

    /// The end of the kernel's log at the guest's end, if the summary has it.
    pub(super) fn log(&self) -> Option<&LogEnd> {
        self.summary.as_ref()?.guest.log.as_deref()
    }
}

/// Boots `case`; `stop` ends the boot. `artifacts` is for the core file of a guest that crashes.
pub(super) fn attempt(
    case: &Case,
    place: &Place,
    stop: &StopSignal,
    artifacts: &Folder,
) -> Attempt {
    let (began, panics) = (Instant::now(), Since::now());
    let (console, events) = (ConsoleTail::default(), Arc::new(LastEvents::default()));
    let wants_dump = case.plan.config.dump_on_crash;
    let dump = wants_dump.then(|| CoreDump::prepare(artifacts, &case.folder));
    // After a panic, only the data written to the console and the events is used.
    let boot = AssertUnwindSafe(|| {
        let dump = dump.as_ref().map(|dump| dump.as_ref());
        boot(case, place, stop, (&console, &events), dump)
    });
    let mut lines = None;
    let (outcome, summary, verdicts) = match catch_unwind(boot) {
        Err(_) => (failed(panics.first()), None, Vec::new()),
        Ok(Ok((mut summary, verdicts, found))) => {
            lines = found;
            if let Some(lines) = &mut lines {
                lines.summary(&mut summary);
            }
            let outcome = judge(&summary, &verdicts, stop.asked());
            let is_judged = judged::is_judged(summary.guest.end, stop.asked());
            let verdicts = if is_judged { verdicts } else { Vec::new() };
            (outcome, Some(summary), verdicts)
        }
        Ok(Err(error)) => {
            let (exit, why) = (error.exit(), printable(&in_one_line(&error)).into_owned());
            (Outcome::Error { exit, why }, None, Vec::new())
        }
    };
    let dump = dump.and_then(Result::ok);
    let has_dump = dump.is_some_and(|dump| dump.settle(outcome != Outcome::Passed));
    let mut events = events.take();
    // The events of a case that has passed are not shown.
    if let (Some(lines), true) = (&mut lines, outcome != Outcome::Passed) {
        events.iter_mut().for_each(|event| lines.event(event));
    }
    for note in lines.iter_mut().flat_map(FrameLines::take_notes) {
        print_note(case, &note);
    }
    Attempt {
        outcome,
        took: began.elapsed(),
        summary,
        verdicts,
        console: console.bytes(),
        events,
        has_dump,
    }
}

fn boot(
    case: &Case,
    place: &Place,
    stop: &StopSignal,
    (console, events): (&ConsoleTail, &Arc<LastEvents>),
    dump: Option<Result<&CoreDump<'_>, &CreateError>>,
) -> Result<(Summary, Vec<Verdict>, Option<FrameLines>), TestError> {
    let dump = match dump {
        Some(Ok(dump)) => Some(CrashDump::File(
            dump.file.writer().map_err(TestError::Core)?,
        )),
        Some(Err(error)) => return Err(TestError::Core(io::Error::other(error.to_string()))),
        None => None,
    };
    let mut config = case.plan.config.clone();
    let guest = Guest::load(&config, &|_| {})?;
    let mut expectations = case.plan.expectations.clone();
    // The process has no right to the network any more: see `debug_files`.
    let replaced = replace(
        &mut config,
        &mut expectations,
        &guest,
        &case.debug_info,
        MayFetch::No,
    )?;
    replaced
        .notes
        .iter()
        .for_each(|note| print_note(case, note));
    let kernel = &guest.kernel;
    let expectations = admit(&mut config, expectations, kernel, &replaced.spellings)?;
    let files = replaced.files;
    let mut lines = files.map(|files| FrameLines::new(files, kernel.symbols().clone()));
    if let Some(lines) = &mut lines {
        let stop = stop.clone();
        let is_wanted = move || stop.asked() != Some(StopReason::Signal);
        let fetches = case.fetches.as_ref();
        lines.fetch_by(fetches.map(|process| process.fetch_within(WAIT_FOR_FETCHES, is_wanted)));
    }
    guest.check(&config)?;
    let judged = Judged::new(expectations, stop.clone());
    let ends = Ends {
        sink: judged.sink(Arc::clone(events) as _),
        console: Console(judged.console(Box::new(console.clone()))),
        stop: stop.clone(),
        clients: None,
        dump,
    };
    let summary = place.clone().run(&config, guest, ends, &|_| {})?;
    let verdicts = judged.finish(&summary);
    Ok((summary, verdicts, lines))
}

/// Prints a note about `case`.
fn print_note(case: &Case, note: &str) {
    let text = format!("{}: {note}", case.name);
    say(format_args!("hyprobe: {}", printable(&text)));
}

/// The outcome of a failure of hyprobe, for the reason `why`.
fn failed(why: Option<String>) -> Outcome {
    Outcome::Error {
        exit: Exit::HostCannot,
        why: why.unwrap_or_else(|| "hyprobe failed".to_owned()),
    }
}

fn judge(summary: &Summary, verdicts: &[Verdict], stopped: Option<StopReason>) -> Outcome {
    if summary.guest.end == GuestEnd::Failed {
        let detail = summary.guest.detail.as_deref();
        return failed(detail.map(|detail| printable(detail).into_owned()));
    }
    if !judged::is_judged(summary.guest.end, stopped) {
        return Outcome::Failed(vec!["it was interrupted".to_owned()]);
    }
    let mut reasons: Vec<String> = verdicts
        .iter()
        .filter_map(|verdict| {
            let why = verdict.broken.as_ref()?;
            Some(format!("{}: {}", verdict.expected, printable(why)))
        })
        .collect();
    let guest = &summary.guest;
    // A bad end is a further reason, unless an expectation is about the end.
    let is_bad = judged::exit(guest.end, &[], None) != Exit::Done;
    if is_bad && !verdicts.iter().any(|verdict| verdict.of_the_end) {
        let detail = guest.detail.as_deref().map(printable);
        let detail = detail.map(|detail| format!(": {detail}"));
        let end = guest.end.word();
        reasons.push(format!(
            "the guest ended by {end}{}",
            detail.unwrap_or_default()
        ));
    }
    match reasons.is_empty() {
        true => Outcome::Passed,
        false => Outcome::Failed(reasons),
    }
}

#[cfg(test)]
mod tests {
    use events::GuestSummary;

    use super::*;

    fn outcome(end: GuestEnd, verdicts: &[Verdict], stopped: Option<StopReason>) -> Outcome {
        let summary = Summary {
            accel: "kvm".to_owned(),
            guest: GuestSummary {
                end,
                detail: Some("bad \x1b[2J%s".to_owned()),
                crash: None,
                vcpus: Vec::new(),
                log: None,
            },
            ran_ns: 1,
            probes: Vec::new(),
            dropped: 0,
            restarts: Vec::new(),
        };
        judge(&summary, verdicts, stopped)
    }

    #[test]
    fn unexpected_bad_end_is_a_reason() {
        let panics = Outcome::Failed(vec!["the guest ended by panic: bad \\x1b[2J%s".to_owned()]);
        assert_eq!(outcome(GuestEnd::Panic, &[], None), panics);
        let expected = Verdict {
            expected: "the guest ends by panic".to_owned(),
            broken: None,
            of_the_end: true,
        };
        assert_eq!(outcome(GuestEnd::Panic, &[expected], None), Outcome::Passed);
        assert_eq!(outcome(GuestEnd::Reset, &[], None), Outcome::Passed);
    }

    #[test]
    fn failed_run_is_an_error_with_any_expectation() {
        let holds = Verdict {
            expected: "the guest ends by panic".to_owned(),
            broken: None,
            of_the_end: true,
        };
        let error = Outcome::Error {
            exit: Exit::HostCannot,
            why: "bad \\x1b[2J%s".to_owned(),
        };
        assert_eq!(outcome(GuestEnd::Failed, &[holds], None), error);
    }

    #[test]
    fn interrupted_run_has_not_passed() {
        let interrupted = Outcome::Failed(vec!["it was interrupted".to_owned()]);
        let signal = Some(StopReason::Signal);
        assert_eq!(outcome(GuestEnd::Stopped, &[], signal), interrupted);
        let broken = Some(StopReason::Broken);
        assert_eq!(outcome(GuestEnd::Stopped, &[], broken), Outcome::Passed);
    }
}
