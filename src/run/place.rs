//! Where a guest runs: on this host's KVM, or nested.

use std::io;
use std::sync::{Arc, OnceLock};

use confine::FileRights;
use events::Summary;
use outer::{Qemu, QemuError};
use thiserror::Error;
use vmm::{Host, self_test};

use crate::config::{Accel, Boot, RunConfig};
use crate::exit::{Exit, Failure};
use crate::nested::{self, Choice, GuestKernel, LaunchError, Outside, Unusable};
use crate::panics::Since;
use crate::run::crash_dump::CrashDump;
use crate::run::ends::{Console, Ends};
use crate::run::guest::Guest;
use crate::run::session::{self, RunFailure, input};

/// Why the host has no place for the guest, or why the run there failed.
#[derive(Debug, Error)]
pub(crate) enum PlaceError {
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
    /// The terminal's input.
    #[error("cannot use standard input")]
    Input(#[source] io::Error),
    /// The run on this host's KVM.
    #[error(transparent)]
    Here(#[from] RunFailure),
    /// The nested run.
    #[error(transparent)]
    Nested(#[from] LaunchError),
}

impl Failure for PlaceError {
    fn exit(&self) -> Exit {
        match self {
            Self::Here(error) => error.exit(),
            // An error inside has the exit code of the same error on this host.
            Self::Nested(LaunchError::Inner(error)) => Exit::from_code(error.exit_code),
            Self::Neither { .. } | Self::Qemu(_) | Self::Input(_) | Self::Nested(_) => {
                Exit::HostCannot
            }
        }
    }
}

/// Where the guest runs.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// On this host's KVM.
    Here(Device),
    /// In an outer Linux.
    Nested(Qemu),
}

/// `/dev/kvm`, opened at most once. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    host: Arc<OnceLock<Host>>,
}

impl Device {
    fn open(&self) -> Result<&Host, RunFailure> {
        match self.host.get() {
            Some(host) => Ok(host),
            None => {
                let host = Host::open()?;
                Ok(self.host.get_or_init(|| host))
            }
        }
    }
}

impl Place {
    /// Chooses the place. If there is a choice, `print_note` gets the reason.
    pub(crate) fn find(accel: Accel, print_note: &dyn Fn(String)) -> Result<Self, PlaceError> {
        match accel {
            Accel::Kvm => Ok(Self::Here(Device::default())),
            Accel::Nested => Ok(Self::Nested(Qemu::find()?)),
            Accel::Auto => {
                let kvm = Host::open()
                    .map_err(Unusable::from)
                    .and_then(|host| self_test(&host).map_err(Unusable::from));
                let choice = nested::choose(&kvm, Qemu::find);
                if !matches!(choice, Choice::Neither { .. }) {
                    print_note(choice.to_string());
                }
                match choice {
                    Choice::Kvm { .. } => Ok(Self::Here(Device::default())),
                    Choice::Nested { qemu, .. } => Ok(Self::Nested(qemu)),
                    Choice::Neither { kvm, qemu } => Err(PlaceError::Neither { kvm, source: qemu }),
                }
            }
        }
    }

    /// Opens `/dev/kvm` while the process still may, or fetches the missing images of a nested run. `say` gets the progress.
    pub(crate) fn prepare(&self, say: &dyn Fn(String)) -> Result<(), PlaceError> {
        match self {
            Self::Here(device) => Ok(device.open().map(|_| ())?),
            Self::Nested(_) => {
                let fetched = nested::prepare(&|step| say(step.to_string()));
                Ok(fetched.map_err(LaunchError::from)?)
            }
        }
    }

    /// The rights to files that a run here needs.
    pub(crate) fn add_rights(&self, rights: &mut FileRights) {
        match self {
            Self::Here(_) => (),
            Self::Nested(qemu) => qemu.add_rights(rights),
        }
    }

    /// Boots `guest` and waits for its end on the calling thread. `say` gets the progress.
    pub(crate) fn run(
        self,
        config: &RunConfig,
        guest: Guest,
        ends: Ends,
        say: &dyn Fn(String),
    ) -> Result<Summary, PlaceError> {
        match self {
            Self::Here(device) => {
                say("booting".to_owned());
                let host = device.open()?;
                Ok(session::run_guest(config, guest, host, ends)?)
            }
            Self::Nested(qemu) => {
                let kernel = nested_kernel(config, guest, say);
                let Console(console) = ends.console;
                let outside = Outside {
                    sink: ends.sink,
                    console,
                    input: input(&config.console).map_err(PlaceError::Input)?,
                    stop: ends.stop,
                    clients: ends.clients,
                    dump: ends.dump.and_then(CrashDump::into_file),
                    progress: &|step| say(step.to_string()),
                };
                let began = Since::now();
                let mut summary = nested::launch(&qemu, config, kernel, outside)?;
                began.judge(&mut summary);
                Ok(summary)
            }
        }
    }
}

/// The guest's kernel for the run in an outer Linux, with a survey if jumps may replace plants: here a survey takes some tenths of a second.
fn nested_kernel(config: &RunConfig, guest: Guest, say: &dyn Fn(String)) -> GuestKernel {
    let may_probe = !config.probes.is_empty() || config.control.is_some();
    let survey = (config.optimise && may_probe).then(|| {
        say("decoding the kernel's code".to_owned());
        guest.kernel.survey().to_bytes()
    });
    let file = match config.boot {
        Boot::Direct => guest.vmlinux.to_vec(),
        Boot::BzImage => guest.file.bytes().to_vec(),
    };
    GuestKernel { file, survey }
}
