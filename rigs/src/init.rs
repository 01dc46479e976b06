//! The start of the programs. If a program is pid 1 of a rig's Linux, the program sets up the Linux, reads the arguments from a file, and
//! powers the machine off at the end.

use std::error::Error;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, init_module, reboot};

use crate::chain::chain;

/// The program's arguments, a JSON array of strings.
pub(crate) const ARGUMENTS_PATH: &str = "/rig/arguments.json";
/// The modules' files in the order in which they are loaded, a line each.
pub(crate) const MODULES_PATH: &str = "/rig/modules";

const MOUNTS: [(&str, &CStr); 3] = [
    ("/dev", c"devtmpfs"),
    ("/proc", c"proc"),
    ("/sys", c"sysfs"),
];
/// With this console level, a dying kernel prints the cause of death, and nothing else breaks a line.
const CONSOLE_LEVEL: (&str, &str) = ("/proc/sys/kernel/printk", "1");

/// Why the Linux is not usable.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path} in the outer Linux")]
struct OuterError {
    what: &'static str,
    path: String,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(what: &'static str, path: &str) -> impl FnOnce(E) -> OuterError {
    let path = path.to_owned();
    move |source| OuterError {
        what,
        path,
        source: source.into(),
    }
}

/// Runs the program `name`: parses the arguments, and calls `run`, which returns the number of failed cases.
pub fn main<A: Parser, E: Error>(name: &str, run: impl FnOnce(A) -> Result<usize, E>) -> ExitCode {
    let run = |arguments| match run(arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {}", chain(error));
            ExitCode::from(2)
        }
    };
    if std::process::id() != 1 || !Path::new(ARGUMENTS_PATH).exists() {
        return run(A::parse());
    }
    match set_up().map(A::try_parse_from) {
        Ok(Ok(arguments)) => {
            run(arguments);
        }
        Ok(Err(error)) => eprintln!("{name}: {error}"),
        Err(error) => eprintln!("{name}: {}", chain(error)),
    }
    power_off();
}

/// Mounts `/dev`, `/proc` and `/sys`, loads the modules, and reads the arguments.
fn set_up() -> Result<Vec<String>, OuterError> {
    for (path, kind) in MOUNTS {
        mount(kind, path, kind, MountFlags::empty(), None::<&CStr>)
            .map_err(failed("mount", path))?;
    }
    let (path, level) = CONSOLE_LEVEL;
    fs::write(path, level).map_err(failed("write", path))?;
    let list = fs::read_to_string(MODULES_PATH).map_err(failed("read", MODULES_PATH))?;
    for path in list.lines() {
        let module = fs::read(path).map_err(failed("read", path))?;
        init_module(&module, c"").map_err(failed("load", path))?;
    }
    // The guests' threads work behind their filters, as they do in the command.
    confine::load_filters()
        .map_err(io::Error::other)
        .map_err(failed("filter", "the guests' threads"))?;
    let arguments = fs::read(ARGUMENTS_PATH).map_err(failed("read", ARGUMENTS_PATH))?;
    serde_json::from_slice(&arguments).map_err(failed("understand", ARGUMENTS_PATH))
}

/// Waits until the last byte has left the serial line, and switches the machine off.
fn power_off() -> ! {
    // An error means that standard output is no terminal: there is nothing to wait for.
    let _ = rustix::termios::tcdrain(rustix::stdio::stdout());
    let result = reboot(RebootCommand::PowerOff);
    // As pid 1, ending is a kernel panic, which resets the machine.
    panic!("cannot power off: {result:?}");
}
