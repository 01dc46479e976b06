//! `hyprobe run`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

use control::{ControlSocket, Incoming, SocketError};
use probes::Summary;
use thiserror::Error;
use vmm::{Host, self_test};

use crate::cli::RunArgs;
use crate::config::{Accel, Console, RunConfig};
use crate::exit::Exit;
use crate::guest::{Guest, GuestError};
use crate::merge::{MergeError, merge};
use crate::nested::{self, Choice, LaunchError, Outside, Qemu, QemuError, Unusable};
use crate::report::{Progress, ReportError, Reporter, WriteFailure};
use crate::session::{self, RunFailure};
use crate::signals;
use crate::stop::StopSignal;

/// Why a run came to nothing.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// What was asked for is no run.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// What was asked for cannot be booted or probed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// Neither KVM nor QEMU will do.
    #[error("this host cannot run stock kernels: {kvm}")]
    Neither {
        /// What is the matter with KVM.
        kvm: String,
        /// What is the matter with QEMU.
        source: QemuError,
    },
    /// `--accel nested` without a QEMU for it.
    #[error("cannot run nested")]
    Qemu(#[from] QemuError),
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Its listener.
    #[error("cannot listen on the control socket")]
    Clients(#[source] io::Error),
    /// The output.
    #[error(transparent)]
    Report(#[from] ReportError),
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
    /// The guest ran, but what it told is not all written.
    #[error(transparent)]
    Write(#[from] WriteFailure),
}

/// Where the guest runs.
#[derive(Debug)]
enum Place {
    Here,
    Nested(Qemu),
}

/// Boots the guest, reports what its probes see, and says how it ended.
pub(crate) fn run(args: &RunArgs) -> Result<Exit, RunError> {
    let progress = Progress::on_stderr();
    let result = run_with(args, &progress);
    progress.clear();
    result
}

fn run_with(args: &RunArgs, progress: &Progress) -> Result<Exit, RunError> {
    let say = |text| progress.say(text);
    let (config, output) = merge(args, &say)?;
    // The user's files first: what is wrong with them is wrong on every host.
    let guest = Guest::load(&config, &say)?;
    guest.check(&config)?;
    let place = place(config.accel, progress)?;
    // Until the end of the run; what comes before the guest does waits there.
    let socket = match &config.control {
        Some(path) => Some(ControlSocket::bind(path)?),
        None => None,
    };
    let stop = StopSignal::default();
    signals::listen(&stop).map_err(RunError::Signals)?;
    let reporter = Reporter::start(&output, &config.console, progress.clone(), &stop)?;
    let clients = match &socket {
        Some(socket) => Some(Incoming::Socket(
            socket.listener().map_err(RunError::Clients)?,
        )),
        None => None,
    };
    let result = run_at(place, &config, guest, &reporter, progress, (stop, clients));
    drop(socket);
    let (summary, end) = match result {
        Ok(summary) => (Some(summary.clone()), Ok(Exit::from(summary.guest.end))),
        Err(error) => (None, Err(error)),
    };
    let written = reporter.finish(summary);
    // Why there is no summary is worth more than that the output is incomplete.
    let exit = end?;
    written?;
    Ok(exit)
}

fn place(accel: Accel, progress: &Progress) -> Result<Place, RunError> {
    match accel {
        Accel::Kvm => Ok(Place::Here),
        Accel::Nested => Ok(Place::Nested(Qemu::find()?)),
        Accel::Auto => {
            let kvm = Host::open()
                .map_err(Unusable::from)
                .and_then(|host| self_test(&host).map_err(Unusable::from));
            let choice = nested::choose(&kvm, Qemu::find);
            if !matches!(choice, Choice::Neither { .. }) {
                progress.pause(|| eprintln!("hyprobe: {choice}"));
            }
            match choice {
                Choice::Kvm { .. } => Ok(Place::Here),
                Choice::Nested { qemu, .. } => Ok(Place::Nested(qemu)),
                Choice::Neither { kvm, qemu } => Err(RunError::Neither { kvm, source: qemu }),
            }
        }
    }
}

fn run_at(
    place: Place,
    config: &RunConfig,
    guest: Guest,
    reporter: &Reporter,
    progress: &Progress,
    (stop, clients): (StopSignal, Option<Incoming>),
) -> Result<Summary, RunError> {
    let (sink, console) = (reporter.sink(), reporter.console());
    match place {
        Place::Here => {
            progress.say("booting");
            Ok(session::run_guest(
                config, guest, sink, console, stop, clients,
            )?)
        }
        Place::Nested(qemu) => {
            // It reads the files itself, in the outer Linux.
            drop(guest);
            let outside = Outside {
                sink,
                console,
                input: input(&config.console).map_err(RunError::Input)?,
                stop,
                clients,
                progress: &|step| progress.say(step.to_string()),
            };
            Ok(nested::launch(&qemu, config, outside)?)
        }
    }
}

/// What is typed to the guest, if anything is.
pub(crate) fn input(console: &Console) -> io::Result<Option<File>> {
    match console {
        Console::Stdio => Ok(Some(io::stdin().as_fd().try_clone_to_owned()?.into())),
        Console::None | Console::File(_) => Ok(None),
    }
}
