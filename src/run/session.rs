//! A run on the local KVM.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use confine::ThreadKind;
use control::{EventHub, Incoming, Live, Server, Tee};
use errors::chain;
use events::{Event, EventSink, Summary};
use probes::{Session, SessionConfig, SessionError};
use text::PlantByte;
use vmm::boot::BootMethod;
use vmm::{Control, End, Host, OpenError, SelfTestError, self_test};

use crate::config::{self, Boot, RunConfig, TrapChoice};
use crate::exit::{Exit, Failure};
use crate::panics::Since;
use crate::report::printable;
use crate::run::crash_dump::is_crash;
use crate::run::ends::{Console, Ends};
use crate::run::guest::{Guest, GuestError};
use crate::run::log_end::{is_log_reported, log_end};
use crate::stderr::say;
use crate::stop::StopSignal;

/// Why a run could not be started or brought to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunFailure {
    /// The files of the run.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The host has no usable KVM.
    #[error(transparent)]
    Host(#[from] OpenError),
    /// KVM could not be tried out.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
    /// The terminal's input.
    #[error("cannot use standard input")]
    Input(#[source] std::io::Error),
    /// The clients' server.
    #[error("cannot serve the control socket")]
    Control(#[source] std::io::Error),
    /// The machine or its probes could not be set up.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Failure for RunFailure {
    fn exit(&self) -> Exit {
        match self {
            Self::Guest(error) => error.exit(),
            Self::Session(SessionError::Resolve(_) | SessionError::AddressMoves { .. }) => {
                Exit::Usage
            }
            Self::Host(_)
            | Self::SelfTest(_)
            | Self::Input(_)
            | Self::Control(_)
            | Self::Session(_) => Exit::HostCannot,
        }
    }
}

/// Reads the guest's files, boots the guest here and probes the guest until the guest ends, `stop` is requested, or the time is over.
///
/// The console's writer blocks until the bytes are on their way. The summary is returned, not sent to the sink. If the guest crashes, the dump
/// is written before the function returns.
pub(crate) fn run_here(config: &RunConfig, ends: Ends) -> Result<Summary, RunFailure> {
    let guest = Guest::load(config, &|_| {})?;
    run_guest(config, guest, &Host::open()?, ends)
}

/// The same as [`run_here`], with files already read and an open KVM.
pub(crate) fn run_guest(
    config: &RunConfig,
    guest: Guest,
    host: &Host,
    ends: Ends,
) -> Result<Summary, RunFailure> {
    let Ends {
        sink,
        console: Console(console),
        stop,
        clients,
        dump,
    } = ends;
    let began = Since::now();
    let facts = self_test(host)?;
    let (hub, sink) = match &clients {
        Some(_) => {
            let hub = Arc::new(EventHub::default());
            let sink: Arc<dyn EventSink> = Arc::new(Tee::new(sink, Arc::clone(&hub)));
            (Some(hub), sink)
        }
        None => (None, sink),
    };
    let session = Session::new(
        host,
        facts,
        SessionConfig {
            file: &guest.file,
            vmlinux: &guest.vmlinux,
            kernel: guest.kernel,
            method: match config.boot {
                Boot::Direct => BootMethod::Direct,
                Boot::BzImage => BootMethod::BzImage,
            },
            initrd: guest.initrd.as_deref(),
            cmdline: &config.cmdline,
            memory_bytes: config.memory_bytes,
            cpus: config.cpus,
            probes: &config.probes,
            injections: &config.injections,
            plant: match config.trap {
                TrapChoice::Auto => None,
                TrapChoice::Port => Some(PlantByte::Port),
                TrapChoice::Int3 => Some(PlantByte::Int3),
            },
            optimise: config.optimise,
            when_full: config.when_full,
            stealth: config.stealth,
            console: vmm::Console {
                output: console,
                input: input(&config.console).map_err(RunFailure::Input)?,
            },
            debug_exit: false,
        },
        sink,
    )?;
    let control = session.control();
    let served = match (clients, hub) {
        (Some(clients), Some(hub)) => Some(Served::start(clients, hub, &session, config)?),
        _ => None,
    };
    let engine = Arc::clone(session.engine());
    let machine = Live::new(engine, session.control(), "kvm", config.memory_bytes);
    let over = AtomicBool::new(false);
    let summary = thread::scope(|scope| {
        scope.spawn(|| {
            confine::enter(ThreadKind::Engine);
            end_on_request(&control, &stop, &over);
        });
        let summary = session.run(config.timeout, "kvm");
        over.store(true, Ordering::Release);
        summary
    });
    let judged = summary.map(|mut summary| {
        began.judge(&mut summary);
        if is_log_reported(summary.guest.end) {
            summary.guest.log = Some(Box::new(log_end(&machine)));
        }
        summary
    });
    if let (Some(dump), Ok(summary)) = (dump, &judged)
        && is_crash(summary.guest.end)
    {
        let print_note = |text: &str| say(format_args!("hyprobe: {}", printable(text)));
        if let Err(error) = dump.write(&machine, summary.guest.end, &print_note) {
            print_note(&format!("no dump of the crash: {}", chain(&error)));
        }
    }
    if let Some(served) = served {
        served.finish(judged.as_ref().ok());
    }
    let mut summary = judged?;
    // The clients' threads end in `finish`.
    began.judge(&mut summary);
    Ok(summary)
}

/// The clients of a run.
#[derive(Debug)]
struct Served {
    server: Server,
    hub: Arc<EventHub>,
    accel: &'static str,
}

impl Served {
    fn start(
        clients: Incoming,
        hub: Arc<EventHub>,
        session: &Session,
        config: &RunConfig,
    ) -> Result<Self, RunFailure> {
        let accel = match clients {
            Incoming::Socket(_) => "kvm",
            Incoming::Trusted(_) => "nested",
        };
        let engine = Arc::clone(session.engine());
        let live = Live::new(engine, session.control(), accel, config.memory_bytes);
        let server = Server::start(clients, Arc::new(live), Arc::clone(&hub))
            .map_err(RunFailure::Control)?;
        Ok(Self { server, hub, accel })
    }

    /// Sends the summary as the last event to clients that read events.
    fn finish(self, summary: Option<&Summary>) {
        if let Some(summary) = summary {
            self.hub.event(Event::Summary(Summary {
                accel: self.accel.to_owned(),
                ..summary.clone()
            }));
        }
        self.server.finish();
    }
}

/// The period of the check for the run's end, after which no thread needs to wait for a stop.
const LOOK: Duration = Duration::from_millis(100);

fn end_on_request(control: &Control, stop: &StopSignal, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        if stop.wait(LOOK).is_some() {
            control.end(End::Stopped);
            return;
        }
    }
}

/// The input for the guest, if any.
pub(crate) fn input(console: &config::Console) -> io::Result<Option<File>> {
    match console {
        config::Console::Stdio => Ok(Some(io::stdin().as_fd().try_clone_to_owned()?.into())),
        config::Console::None | config::Console::File(_) => Ok(None),
    }
}
