//! The life of pid 1.

use std::any::Any;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use confine::FilterError;
use control::Incoming;
use events::{EventSink, Summary};
use outer::init::{self, InitError};
use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use super::clients::ClientsPort;
use super::counted::Counted;
use super::events::EventsPort;
use super::ports::{self, PortError};
use super::stuck;
use crate::config::{RunConfig, Sandbox};
use crate::nested::inputs::CONFIG_PATH;
use crate::nested::lines::read_line;
use crate::nested::protocol::{InnerFailure, Outcome, Port, Sent, ToInner, ToOuter};
use crate::panics::Since;
use crate::stderr::say;
use crate::stop::{StopReason, StopSignal};

/// The exit code of a host that cannot execute the command, also if the outer Linux does not work.
const HOST_CANNOT: u8 = 3;
/// The exit code of panicked Rust programs.
const PANICKED: u8 = 101;
const MAX_CONTROL_BYTES: u64 = 4096;
/// The launcher powers the machine off after reading all output. The limit is for a launcher that has ended.
const LINGER: Duration = Duration::from_secs(90);

/// The reason why no run could begin.
#[derive(Debug, Error)]
enum SetUpError {
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Filters(#[from] FilterError),
    #[error("cannot use a virtio-serial port")]
    Io(#[from] io::Error),
    #[error("cannot read {CONFIG_PATH} in the outer Linux")]
    Config(#[source] io::Error),
    #[error("the run's configuration is damaged")]
    Json(#[from] serde_json::Error),
}

/// Whether the process is pid 1 of an outer Linux, and must call [`run_as_pid_1`].
pub fn is_pid_1_of_an_outer_linux() -> bool {
    init::is_pid_1_with(CONFIG_PATH)
}

/// Runs the launcher's configuration with `run`, reports the outcome to the launcher, and powers the machine off.
///
/// `run` reads the user's typing from standard input. The output of `run` on standard output and standard error goes to the launcher's
/// standard error.
pub fn run_as_pid_1<F>(run: F) -> !
where
    F: FnOnce(
        &RunConfig,
        Arc<dyn EventSink>,
        Box<dyn Write + Send>,
        StopSignal,
        Option<Incoming>,
        Option<Box<dyn Write + Send>>,
    ) -> Result<Summary, InnerFailure>,
{
    // Until the ports are open, standard error is the serial line.
    let mut control = match prepare() {
        Ok(control) => control,
        Err(error) => {
            eprintln!("hyprobe: {}", crate::failure::in_one_line(&error));
            init::power_off();
        }
    };
    let mut sent = Sent::default();
    // Of the data changed by `begin`, only `sent` is read after a panic, and `begin` writes `sent` last.
    let outcome = catch_unwind(AssertUnwindSafe(|| begin(&control, run, &mut sent)))
        .unwrap_or_else(|panic| {
            Ok(Outcome::Failure(InnerFailure::message(
                PANICKED,
                describe(&*panic),
            )))
        })
        .unwrap_or_else(|error| Outcome::Failure(InnerFailure::new(HOST_CANNOT, &error)));
    match send_message(&mut control, &ToOuter::Finished { outcome, sent }) {
        Ok(()) => thread::sleep(LINGER),
        Err(error) => eprintln!("hyprobe: cannot tell how the run ended: {error}"),
    }
    init::power_off();
}

/// Opens the ports for failure reports: the control port, and the log as standard output and standard error.
fn prepare() -> Result<File, SetUpError> {
    init::set_up()?;
    let control = ports::open(Port::Control)?;
    let log = ports::open(Port::Log)?;
    rustix::stdio::dup2_stdout(&log).map_err(io::Error::from)?;
    rustix::stdio::dup2_stderr(&log).map_err(io::Error::from)?;
    Ok(control)
}

fn begin<F>(mut control: &File, run: F, sent: &mut Sent) -> Result<Outcome, SetUpError>
where
    F: FnOnce(
        &RunConfig,
        Arc<dyn EventSink>,
        Box<dyn Write + Send>,
        StopSignal,
        Option<Incoming>,
        Option<Box<dyn Write + Send>>,
    ) -> Result<Summary, InnerFailure>,
{
    let config = fs::read(CONFIG_PATH).map_err(SetUpError::Config)?;
    let config: RunConfig = serde_json::from_slice(&config)?;
    if config.sandbox == Sandbox::On {
        // QEMU confines the outer Linux. The guest's threads have the same filters as in a run on KVM.
        confine::load_filters()?;
    }
    let console = ports::open(Port::Console)?;
    rustix::stdio::dup2_stdin(&console).map_err(io::Error::from)?;
    let console = Counted::new(console);
    let console_count = console.count();
    let events = Counted::new(ports::open(Port::Events)?);
    let events_count = events.count();
    let events = Arc::new(EventsPort::start(events, console)?);
    let stop = StopSignal::default();
    let has_ended = Arc::new(AtomicBool::default());
    listen(control.try_clone()?, stop.clone(), Arc::clone(&has_ended))?;
    let (link, clients) = match config.control {
        Some(_) => {
            let (link, clients) = ClientsPort::start(ports::open(Port::Clients)?)?;
            (Some(link), Some(clients))
        }
        None => (None, None),
    };
    let (dump, dump_count): (Option<Box<dyn Write + Send>>, _) = match config.dump_on_crash {
        true => {
            let port = Counted::new(ports::open(Port::Dump)?);
            let count = port.count();
            (Some(Box::new(port)), Some(count))
        }
        false => (None, None),
    };
    // Since the outer kernel's first instruction.
    let uptime = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
    let uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
    send_message(&mut control, &ToOuter::Started { uptime_ms })?;

    let began = Since::now();
    let sink: Arc<dyn EventSink> = events.clone();
    let result = catch_unwind(AssertUnwindSafe(|| {
        run(
            &config,
            sink,
            Box::new(events.console()),
            stop,
            clients,
            dump,
        )
    }));
    has_ended.store(true, Ordering::Release);
    send_message(&mut control, &ToOuter::Ending)?;
    let lost = events.finish();
    *sent = Sent {
        events: events_count.load(Ordering::Acquire),
        console: console_count.load(Ordering::Acquire),
        clients: link.map_or(0, ClientsPort::finish),
        dump: dump_count.map_or(0, |count| count.load(Ordering::Acquire)),
    };
    Ok(match result {
        Ok(Ok(mut summary)) => {
            summary.dropped = summary.dropped.saturating_add(lost);
            began.judge(&mut summary);
            Outcome::Summary(summary)
        }
        Ok(Err(failure)) => Outcome::Failure(failure),
        Err(panic) => Outcome::Failure(InnerFailure::message(PANICKED, describe(&*panic))),
    })
}

/// Waits for the launcher's stop request, or for the launcher's end, on a thread that ends with the machine.
fn listen(control: File, stop: StopSignal, has_ended: Arc<AtomicBool>) -> io::Result<()> {
    let listen = move || {
        let mut control = BufReader::new(control);
        let mut buffer = Vec::new();
        while let Ok(Some((message, _))) =
            read_line::<ToInner>(&mut control, &mut buffer, MAX_CONTROL_BYTES)
        {
            stop.request(message.into());
            if let Err(error) = stuck::print_later(Arc::clone(&has_ended)) {
                say(format_args!("hyprobe: cannot start a thread: {error}"));
            }
        }
        stop.request(StopReason::OutputClosed);
    };
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(listen)?;
    Ok(())
}

fn send_message(control: &mut impl Write, message: &ToOuter) -> io::Result<()> {
    let line = serde_json::to_string(message)? + "\n";
    control.write_all(line.as_bytes())
}

fn describe(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("for an unknown reason");
    format!("hyprobe panicked in the outer Linux: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_described_by_its_message() {
        let panic = catch_unwind(|| panic!("at {:#x}", 255)).expect_err("panic");
        assert!(describe(&*panic).ends_with("at 0xff"));
        let panic = catch_unwind(|| panic!("plain")).expect_err("panic");
        assert!(describe(&*panic).ends_with("plain"));
    }

    #[test]
    fn a_test_is_not_pid_1() {
        assert!(!is_pid_1_of_an_outer_linux());
    }
}
