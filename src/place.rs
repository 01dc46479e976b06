//! Where a guest runs: on this host's KVM, or nested.

use std::io::Write;
use std::sync::Arc;

use confine::FileRights;
use control::Incoming;
use probes::{EventSink, Summary};
use vmm::{Host, self_test};

use crate::config::{Accel, RunConfig};
use crate::guest::Guest;
use crate::nested::{self, Choice, LaunchError, Outside, Qemu, Unusable};
use crate::panics::Since;
use crate::run::{RunError, input};
use crate::session;
use crate::stop::StopSignal;

/// Where the guest runs.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// On this host's KVM.
    Here,
    /// In an outer Linux.
    Nested(Qemu),
}

/// What a run is connected to.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Receives events.
    pub(crate) sink: Arc<dyn EventSink>,
    /// Receives what the guest writes to its serial line.
    pub(crate) console: Console,
    /// Ends the run.
    pub(crate) stop: StopSignal,
    /// Control it.
    pub(crate) clients: Option<Incoming>,
}

/// Takes the guest's console.
pub(crate) struct Console(pub(crate) Box<dyn Write + Send>);

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Console")
    }
}

impl Place {
    /// Finds out where; `tell` is told why, where there was a choice.
    pub(crate) fn find(accel: Accel, tell: &dyn Fn(String)) -> Result<Self, RunError> {
        match accel {
            Accel::Kvm => Ok(Self::Here),
            Accel::Nested => Ok(Self::Nested(Qemu::find()?)),
            Accel::Auto => {
                let kvm = Host::open()
                    .map_err(Unusable::from)
                    .and_then(|host| self_test(&host).map_err(Unusable::from));
                let choice = nested::choose(&kvm, Qemu::find);
                if !matches!(choice, Choice::Neither { .. }) {
                    tell(choice.to_string());
                }
                match choice {
                    Choice::Kvm { .. } => Ok(Self::Here),
                    Choice::Nested { qemu, .. } => Ok(Self::Nested(qemu)),
                    Choice::Neither { kvm, qemu } => Err(RunError::Neither { kvm, source: qemu }),
                }
            }
        }
    }

    /// Fetches what a run here needs beside the guest, if need be; `say` is told how far it is.
    pub(crate) fn prepare(&self, say: &dyn Fn(String)) -> Result<(), RunError> {
        match self {
            Self::Here => Ok(()),
            Self::Nested(_) => {
                let fetched = nested::prepare(&|step| say(step.to_string()));
                Ok(fetched.map_err(LaunchError::from)?)
            }
        }
    }

    /// The rights to files that a run here needs.
    pub(crate) fn add_rights(&self, rights: &mut FileRights) {
        match self {
            Self::Here => (),
            Self::Nested(qemu) => qemu.add_rights(rights),
        }
    }

    /// Boots `guest` and waits for its end on the calling thread; `say` is told how far it is.
    pub(crate) fn run(
        self,
        config: &RunConfig,
        guest: Guest,
        ends: Ends,
        say: &dyn Fn(String),
    ) -> Result<Summary, RunError> {
        let Ends {
            sink,
            console: Console(console),
            stop,
            clients,
        } = ends;
        match self {
            Self::Here => {
                say("booting".to_owned());
                Ok(session::run_guest(
                    config, guest, sink, console, stop, clients,
                )?)
            }
            Self::Nested(qemu) => {
                // It reads the files itself, in the outer Linux.
                drop(guest);
                let outside = Outside {
                    sink,
                    console,
                    input: input(&config.console).map_err(RunError::Input)?,
                    stop,
                    clients,
                    progress: &|step| say(step.to_string()),
                };
                let began = Since::now();
                let mut summary = nested::launch(&qemu, config, outside)?;
                began.judge(&mut summary);
                Ok(summary)
            }
        }
    }
}
