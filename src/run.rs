//! `hyprobe run`.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;

use control::{ControlSocket, Incoming, SocketError};
use events::judge::Verdict;
use outer::QemuError;
use thiserror::Error;

use crate::cli::RunArgs;
use crate::config;
use crate::exit::Exit;
use crate::guest::{Guest, GuestError};
use crate::identity::{self, IdentityError};
use crate::judged::{self, Judged, admit};
use crate::merge::{MergeError, Plan, merge};
use crate::nested::LaunchError;
use crate::panics::Since;
use crate::place::{Console, Ends, Place};
use crate::report::{Ink, OutputError, Progress, ReportError, Reporter, Style, printable};
use crate::sandbox::{self, SandboxError};
use crate::session::RunFailure;
use crate::signals;
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
    /// `--user` or `--chroot`.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Neither KVM nor QEMU will do.
    #[error("this host cannot run stock kernels: {kvm}")]
    Neither {
        /// The problem of KVM.
        kvm: String,
        /// The problem of QEMU.
        source: QemuError,
    },
    /// `--accel nested` without a QEMU for it.
    #[error("cannot run nested")]
    Qemu(#[from] QemuError),
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
    /// Signals.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    /// The terminal's input.
    #[error("cannot use standard input")]
    Input(#[source] io::Error),
    /// The run on this host's KVM.
    #[error(transparent)]
    Here(#[from] RunFailure),
    /// The nested run.
    #[error(transparent)]
    Nested(#[from] LaunchError),
    /// The guest ran, but a part of the output is not written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A thread of hyprobe has panicked.
    #[error("{0}")]
    Panicked(String),
}

/// Boots the guest, reports the hits of the probes, and returns how the guest ended.
pub(crate) fn run(args: &RunArgs) -> Result<Exit, RunError> {
    let progress = Progress::on_stderr();
    let result = run_with(args, &progress);
    progress.clear();
    result
}

fn run_with(args: &RunArgs, progress: &Progress) -> Result<Exit, RunError> {
    let began = Since::now();
    let identity = identity::find(&args.identity)?;
    let show = |text| progress.say(text);
    let Plan {
        mut config,
        output,
        expectations,
    } = merge(args, &show)?;
    // The user's files first: an error in the files exists on every host.
    let guest = Guest::load(&config, &show)?;
    let expectations = admit(&mut config, expectations, &guest.kernel);
    guest.check(&config)?;
    let tell = |text: String| progress.pause(|| say(format_args!("hyprobe: {text}")));
    let place = Place::find(identity::place(config.accel, identity.as_ref())?, &tell)?;
    place.prepare(&show)?;
    // The socket lives until the end of the run. Connections that arrive before the guest starts wait in the socket.
    let mut socket = match &config.control {
        Some(path) => Some(ControlSocket::bind(path)?),
        None => None,
    };
    if let (Some(socket), Some(_)) = (&mut socket, &args.identity.chroot) {
        socket.leave_file();
    }
    let stop = StopSignal::default();
    let reporter = Reporter::open(&output, &config.console, progress.clone(), &stop)?;
    // Only later threads inherit the loss of rights, so the thread of the progress line stops before.
    progress.rest();
    let add = |rights: &mut _| {
        sandbox::add_run(rights, &config);
        place.add_rights(rights);
    };
    let sandbox = config.sandbox;
    sandbox.put_in_force(identity.as_ref(), add, &tell)?;
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
    tell_verdicts(&verdicts, exit);
    written?;
    Ok(exit)
}

/// Prints the broken expectations, or that all expectations hold.
fn tell_verdicts(verdicts: &[Verdict], exit: Exit) {
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

/// The input for the guest, if any.
pub(crate) fn input(console: &config::Console) -> io::Result<Option<File>> {
    match console {
        config::Console::Stdio => Ok(Some(io::stdin().as_fd().try_clone_to_owned()?.into())),
        config::Console::None | config::Console::File(_) => Ok(None),
    }
}
