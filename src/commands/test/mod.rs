//! `hyprobe test`: boots the guests of manifests, and judges each by the manifest's expectations.
//!
//! ```text
//! files × matrix ── shard ──▶ cases ──▶ workers ──▶ results, as they come ──▶ lines, JSON, artifacts
//!                                        one thread each                 └──▶ JUnit, at the end
//! ```
//!
//! A worker boots case after case; the host's processors and memory decide how many cases run at once (`schedule`). Only the main thread
//! prints. See `docs/ci.md`.

mod artifacts;
mod attempt;
mod case;
mod core_dump;
mod debug_files;
mod error;
mod junit;
mod print;
mod record;
mod rights;
mod schedule;

use std::fs::{self, File};
use std::path::Path;

use confine::Identity;
use files::Folder;

use self::attempt::Outcome;
use self::case::Case;
use self::error::TestError;
use self::print::Printer;
use self::schedule::{Finished, Job};
use crate::cli::{Shard, TestArgs, combinations};
use crate::config::{Accel, Initrd};
use crate::exit::{Exit, Failure as _};
use crate::failure;
use crate::panics::Since;
use crate::report::Progress;
use crate::run::guest::GuestError;
use crate::run::identity::{self, IdentityError};
use crate::run::images;
use crate::run::merge::MergeError;
use crate::run::place::Place;
use crate::signals;
use crate::stderr::say;
use crate::stop::{StopReason, StopSignal};

/// Runs the cases and prints the result of each.
pub(crate) fn test(args: &TestArgs) -> Result<Exit, TestError> {
    let progress = Progress::on_stderr();
    let result = test_with(args, &progress);
    progress.clear();
    result
}

fn test_with(args: &TestArgs, progress: &Progress) -> Result<Exit, TestError> {
    let began = Since::now();
    let identity = identity::find(&args.identity)?;
    if args.identity.chroot.is_some() {
        return Err(IdentityError::TestRoot.into());
    }
    let cases = cases(args, progress)?;
    let print_note = |text: String| progress.pause(|| say(format_args!("hyprobe: {text}")));
    let mut jobs = jobs(cases, identity.as_ref(), progress, &print_note)?;
    debug_files::fetch(&jobs, &|text| progress.say(text), &print_note);
    // With `--user`, the process would keep root's rights, and the user of the cases cannot read root's cache.
    if identity.is_none() {
        debug_files::start_process(&mut jobs, &print_note);
    }
    let mut outputs = Outputs::prepare(args)?;
    progress.rest();
    outputs.give_to(identity.as_ref())?;
    rights::give_up(args, &jobs, identity.as_ref(), &print_note)?;
    let stop = StopSignal::default();
    signals::listen(&stop).map_err(TestError::Signals)?;
    let all = jobs.len();
    let mut printer = Printer::new(args.json, progress.clone(), all);
    let mut finished: Vec<Finished> = Vec::new();
    let mut kept = Ok(());
    let policy = schedule::Policy {
        at_once: args.jobs,
        retries: args.retries,
        artifacts: &outputs.artifacts,
    };
    schedule::run(jobs, policy, &stop, |news| {
        let Some(case) = printer.print_news(news)? else {
            return Ok(());
        };
        match artifacts::write(&outputs.artifacts, outputs.path, &case) {
            Ok(Some(folder)) => printer.artifacts(&folder)?,
            Ok(None) => (),
            // The verdicts are worth more: the other cases run on.
            Err(error) if kept.is_ok() => kept = Err(error),
            Err(_) => (),
        }
        finished.push(case);
        Ok(())
    })?;
    // In the order of the cases, not of the ends.
    finished.sort_by_key(|finished| finished.number);
    printer
        .total(&finished)
        .map_err(|source| TestError::Write {
            path: "standard output".into(),
            source,
        })?;
    if let Some((file, path)) = outputs.junit.take().zip(args.junit.as_deref()) {
        junit::write(file, path, &finished)?;
    }
    outputs.tidy();
    kept?;
    match (began.first(), stop.asked()) {
        // The case that ran during the panic reports the reason.
        (Some(_), _) => Ok(Exit::HostCannot),
        (None, Some(StopReason::Signal)) => Ok(Exit::Interrupted),
        (None, _) => Ok(exit(&finished, all)),
    }
}

/// The outputs of the command, made before the process gives up rights.
#[derive(Debug)]
struct Outputs<'a> {
    artifacts: Folder,
    path: &'a Path,
    junit: Option<File>,
}

impl<'a> Outputs<'a> {
    /// Makes the folder of the artifacts, unless the folder exists, and an empty JUnit file.
    fn prepare(args: &'a TestArgs) -> Result<Self, TestError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| TestError::Create { path, source }
        };
        let path = args.artifacts.as_path();
        let junit = args.junit.as_deref();
        let create = |path| files::create(path).map_err(failed(path));
        Ok(Self {
            artifacts: Folder::open_or_make(path).map_err(failed(path))?,
            path,
            junit: junit.map(create).transpose()?,
        })
    }

    /// If the command has made the folder of the artifacts, gives the folder to the user that hyprobe becomes.
    fn give_to(&self, identity: Option<&Identity>) -> Result<(), TestError> {
        let given = match identity {
            Some(identity) if self.artifacts.is_new() => {
                self.artifacts.give_to(identity.uid, identity.gid)
            }
            _ => Ok(()),
        };
        given.map_err(|source| TestError::Create {
            path: self.path.to_owned(),
            source,
        })
    }

    /// If the command has made the folder of the artifacts and no case has left artifacts, removes the folder.
    fn tidy(&self) {
        if self.artifacts.is_new() {
            // The usual error is a folder with files.
            let _ = fs::remove_dir(self.path);
        }
    }
}

/// The cases with the places of the runs. Each place is tried out once, since a trial takes a moment.
fn jobs(
    cases: Vec<Case>,
    identity: Option<&Identity>,
    progress: &Progress,
    print_note: &dyn Fn(String),
) -> Result<Vec<Job>, TestError> {
    let mut places: Vec<(Accel, Place)> = Vec::new();
    let mut jobs = Vec::new();
    for case in cases {
        if case.plan.config.initrd == Initrd::Demo {
            images::fetch_busybox(&|text| progress.say(text)).map_err(GuestError::from)?;
        }
        let accel = identity::place(case.plan.config.accel, identity)?;
        let known = places.iter().find(|(known, _)| *known == accel);
        let place = match known {
            Some((_, place)) => place.clone(),
            None => {
                let place = Place::find(accel, print_note)?;
                place.prepare(&|text| progress.say(text))?;
                places.push((accel, place.clone()));
                place
            }
        };
        jobs.push(Job { case, place });
    }
    Ok(jobs)
}

/// Reads the cases of the shard. If a manifest is wrong, no case is returned.
fn cases(args: &TestArgs, progress: &Progress) -> Result<Vec<Case>, TestError> {
    let files = case::files(&args.paths)?;
    let combinations = combinations(&args.matrix);
    let all: Vec<_> = files
        .iter()
        .flat_map(|file| combinations.iter().map(move |settings| (file, settings)))
        .collect();
    let shard = args.shard.unwrap_or(Shard::ALL);
    let names: Vec<String> = all
        .iter()
        .map(|(file, settings)| case::name(file, settings))
        .collect();
    let folders = case::folders(&names);
    let mine = all
        .into_iter()
        .zip(folders)
        .enumerate()
        .filter(|(number, _)| shard.has(*number));
    let (mut cases, mut wrong, mut exit) = (Vec::new(), 0, None);
    for (number, ((file, settings), folder)) in mine {
        match Case::read(number, file, settings, args, &|text| progress.say(text)) {
            Ok(case) => cases.push(Case { folder, ..case }),
            Err(error) => {
                wrong += 1;
                progress.pause(|| failure::print(&error));
                exit.get_or_insert(MergeError::exit(&error));
            }
        }
    }
    match exit {
        Some(exit) => Err(TestError::Manifests {
            all: wrong + cases.len(),
            wrong,
            exit,
        }),
        None => Ok(cases),
    }
}

/// A failed case outweighs a case that could not be run. A case that did not begin, because of a ctrl-C, has not passed.
fn exit(finished: &[Finished], all: usize) -> Exit {
    let last = |case: &Finished| case.attempts.last().map(|attempt| attempt.outcome.clone());
    let outcomes: Vec<_> = finished.iter().filter_map(last).collect();
    let has_failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
    if outcomes.iter().any(has_failed) || finished.len() < all {
        return Exit::ExpectationFailed;
    }
    let error = outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Error { exit, .. } => Some(*exit),
        Outcome::Passed | Outcome::Failed(_) => None,
    });
    error.unwrap_or(Exit::Done)
}
