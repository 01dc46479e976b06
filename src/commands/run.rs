//! `hyprobe run`.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use confine::FileRights;
use control::{ControlSocket, Incoming, SocketError};
use events::judge::Verdict;
use files::CreateError;
use manifest::InvalidManifest;
use thiserror::Error;

use crate::cli::RunArgs;
use crate::exit::{Exit, Failure};
use crate::panics::Since;
use crate::report::{
    FrameLines, Ink, OutputError, Progress, ReportError, Reporter, Style, printable,
};
use crate::run::crash_dump::{CoreFile, CrashDump};
use crate::run::ends::{Console, Ends};
use crate::run::guest::{Guest, GuestError};
use crate::run::identity::{self, IdentityError};
use crate::run::judged::{self, AdmitError, Judged, admit};
use crate::run::merge::{MergeError, Plan, merge};
use crate::run::place::{Place, PlaceError};
use crate::sandbox::SandboxError;
use crate::signals;
use crate::source_lines::{FetchProcess, MayFetch, SourceLinesError, debug_folders, replace};
use crate::stderr::say;
use crate::stop::StopSignal;

/// Why a run came to nothing.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The command line and the manifest do not make a run.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The guest cannot be booted or probed as requested.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// Source lines and inlined copies.
    #[error(transparent)]
    SourceLines(#[from] SourceLinesError),
    /// The probes of the expectations.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// `--user` or `--chroot`.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The place of the run, or the run there.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The listener of the control socket.
    #[error("cannot listen on the control socket")]
    Clients(#[source] io::Error),
    /// The output.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The rights of this process.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The core file of a guest that crashes.
    #[error("cannot write the dump {path}")]
    CreateCore {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: CreateError,
    },
    /// The core file, once open.
    #[error("cannot write the dump of a crash")]
    Core(#[source] io::Error),
    /// Signals.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    /// The guest ran, but a part of the output is not written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A thread of hyprobe has panicked.
    #[error("{0}")]
    Panicked(String),
}

impl Failure for RunError {
    fn exit(&self) -> Exit {
        match self {
            Self::Merge(error) => error.exit(),
            Self::Guest(error) => error.exit(),
            Self::SourceLines(error) => error.exit(),
            Self::Admit(error) => error.exit(),
            Self::Identity(error) => error.exit(),
            Self::Place(error) => error.exit(),
            Self::Sandbox(error) => error.exit(),
            Self::Signals(_)
            | Self::Clients(_)
            | Self::Output(_)
            | Self::Core(_)
            | Self::Panicked(_) => Exit::HostCannot,
            Self::Report(_) | Self::Socket(_) | Self::CreateCore { .. } => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Merge(error) => error.help(),
            Self::Guest(error) => error.help(),
            Self::SourceLines(error) => error.help(),
            Self::Admit(error) => error.help(),
            Self::Identity(error) => error.help(),
            Self::Sandbox(error) => error.help(),
            _ => None,
        }
    }

    fn manifest(&self) -> Option<&InvalidManifest> {
        match self {
            Self::Merge(error) => error.manifest(),
            _ => None,
        }
    }
}

/// Boots the guest, reports the hits of the probes, and returns how the guest ended.
/// With `registers`, lines of text have the registers below.
pub(crate) fn run(args: &RunArgs, registers: bool) -> Result<Exit, RunError> {
    let progress = Progress::on_stderr();
    let result = run_with(args, registers, &progress);
    progress.clear();
    result
}

fn run_with(args: &RunArgs, registers: bool, progress: &Progress) -> Result<Exit, RunError> {
    let began = Since::now();
    let identity = identity::find(&args.identity)?;
    let show = |text| progress.say(text);
    let Plan {
        mut config,
        mut output,
        mut expectations,
    } = merge(args, &show)?;
    output.registers = registers;
    // The user's files first: an error in the files exists on every host.
    let guest = Guest::load(&config, &show)?;
    let print_note = |text: String| progress.pause(|| say(format_args!("hyprobe: {text}")));
    let replaced = replace(
        &mut config,
        &mut expectations,
        &guest,
        &args.debug_info,
        MayFetch::Yes(&show),
    )?;
    for note in &replaced.notes {
        print_note(printable(note).into_owned());
    }
    let kernel = &guest.kernel;
    let files = replaced.files;
    let mut lines = files.map(|files| FrameLines::new(files, kernel.symbols().clone()));
    let has_lines = lines.is_some();
    // With `--user`, the process would keep root's rights, and the new user cannot read root's cache.
    if let (Some(lines), None) = (&mut lines, &identity) {
        let process = FetchProcess::start(&print_note);
        lines.fetch_by(process.as_ref().map(FetchProcess::fetch));
    }
    let expectations = admit(&mut config, expectations, kernel, &replaced.spellings)?;
    guest.check(&config)?;
    let place = Place::find(
        identity::place(config.accel, identity.as_ref())?,
        &print_note,
    )?;
    place.prepare(&show)?;
    // The socket lives until the end of the run. Connections that arrive before the guest starts wait in the socket.
    let mut socket = match &config.control {
        Some(path) => Some(ControlSocket::bind(path)?),
        None => None,
    };
    if let (Some(socket), Some(_)) = (&mut socket, &args.identity.chroot) {
        socket.leave_file();
    }
    let core = match &output.crash_dump {
        Some(path) => Some(core_file(path)?),
        None => None,
    };
    let stop = StopSignal::default();
    let reporter = Reporter::open(&output, &config.console, lines, progress.clone(), &stop)?;
    // Only later threads inherit the loss of rights, so the thread of the progress line stops before.
    progress.rest();
    let add = |rights: &mut FileRights| {
        config.add_rights(rights);
        place.add_rights(rights);
        // Those of modules are opened when the first frames of the modules come.
        if has_lines {
            rights.read.extend(debug_folders());
            rights.read.extend(args.debug_info.iter().cloned());
        }
    };
    let sandbox = config.sandbox;
    sandbox.put_in_force(identity.as_ref(), add, &print_note)?;
    signals::listen(&stop).map_err(RunError::Signals)?;
    let reporter = reporter.start()?;
    let clients = match &socket {
        Some(socket) => Some(Incoming::Socket(
            socket.listener().map_err(RunError::Clients)?,
        )),
        None => None,
    };
    let judged = Judged::new(expectations, stop.clone());
    let ends = Ends {
        sink: judged.sink(reporter.sink()),
        console: Console(judged.console(reporter.console())),
        stop: stop.clone(),
        clients,
        dump: match &core {
            Some(core) => Some(CrashDump::File(core.writer().map_err(RunError::Core)?)),
            None => None,
        },
    };
    let result = place.run(&config, guest, ends, &show);
    drop(socket);
    let (summary, end) = match result {
        Ok(summary) => {
            let verdicts = judged.finish(&summary);
            let (end, reason) = (summary.guest.end, stop.asked());
            let exit = judged::exit(end, &verdicts, reason);
            let is_judged = judged::is_judged(end, reason);
            let verdicts = if is_judged { verdicts } else { Vec::new() };
            (Some(summary), Ok((exit, verdicts)))
        }
        Err(error) => (None, Err(error)),
    };
    let written = reporter.finish(summary);
    // The reason for a missing summary is more important than the incomplete output.
    let (exit, verdicts) = end?;
    if let Some(panic) = began.first() {
        return Err(RunError::Panicked(panic));
    }
    if exit == Exit::Interrupted {
        say("hyprobe: the run was interrupted: nothing is judged");
    }
    print_verdicts(&verdicts, exit);
    if let (Some(core), Some(path)) = (core, &output.crash_dump)
        && core.has_dump()
    {
        let path = path.to_string_lossy();
        say(format_args!(
            "hyprobe: {} has the memory of the crashed guest",
            printable(&path)
        ));
    }
    written?;
    Ok(exit)
}

/// Opens the core file for a crash.
fn core_file(path: &Path) -> Result<CoreFile, RunError> {
    let file = files::open_private(path).map_err(|source| RunError::CreateCore {
        path: path.to_owned(),
        source,
    })?;
    Ok(CoreFile::new(file))
}

/// Prints the broken expectations, or that all expectations hold.
fn print_verdicts(verdicts: &[Verdict], exit: Exit) {
    let style = Style::for_stream(io::stderr().is_terminal());
    for Verdict {
        expected,
        broken: why,
        ..
    } in verdicts
    {
        if let Some(why) = why {
            say(format_args!(
                "{} {expected}: {}",
                style.paint(Ink::Bad, "expectation failed:"),
                printable(why)
            ));
        }
    }
    if exit == Exit::Done && !verdicts.is_empty() {
        let all = verdicts.len();
        say(format_args!("hyprobe: all {all} expectations hold"));
    }
}
