//! Inside: the first and the last steps of pid 1.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, init_module, reboot};
use rustix::thread::{CpuSet, sched_setaffinity};
use thiserror::Error;

use crate::initramfs::{MODULES_PATH, MOUNTS};

/// What the kernel says of a CPU that does not run.
const OFFLINE: &[u8] = b"0\n";

/// Why the outer Linux is not usable.
#[derive(Debug, Error)]
pub enum InitError {
    /// A file system cannot be mounted.
    #[error("cannot mount {path} in the outer Linux")]
    Mount {
        /// Where.
        path: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A module cannot be loaded.
    #[error("cannot load {path} into the outer Linux")]
    Module {
        /// The module's file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// No CPU starts besides the first.
    #[error("cannot start CPU {cpu} of the outer Linux")]
    Cpu {
        /// The last one.
        cpu: usize,
        /// The cause.
        source: io::Error,
    },
    /// The process cannot move to the started CPUs.
    #[error("cannot move to the started CPUs of the outer Linux")]
    Affinity(#[source] io::Error),
}

/// Whether the process is pid 1 of an outer Linux whose initramfs has the file `path`.
#[must_use]
pub fn is_pid_1_with(path: &str) -> bool {
    std::process::id() == 1 && Path::new(path).exists()
}

/// Mounts the file systems, loads the modules in the listed order, and then starts the CPUs that the kernel's command line has held back.
///
/// # Errors
///
/// The kernel refuses, or the initramfs is damaged.
pub fn set_up() -> Result<(), InitError> {
    for (path, kind) in MOUNTS {
        mount(kind, path, kind, MountFlags::empty(), None::<&CStr>).map_err(|source| {
            InitError::Mount {
                path,
                source: source.into(),
            }
        })?;
    }
    let failed = |path: &str, source: io::Error| InitError::Module {
        path: path.to_owned(),
        source,
    };
    let list = fs::read_to_string(MODULES_PATH).map_err(|error| failed(MODULES_PATH, error))?;
    for path in list.lines() {
        let module = fs::read(path).map_err(|error| failed(path, error))?;
        init_module(&module, c"").map_err(|error| failed(path, error.into()))?;
    }
    start_cpus()
}

/// Starts each CPU that does not run. If any did not, moves the calling thread, and so its future threads, to all CPUs but the first.
///
/// A module changes the kernel's code, and each change interrupts every running CPU: with one CPU, KVM loads in a tenth of the time.
///
/// A CPU that does not start is left out, unless none starts.
fn start_cpus() -> Result<(), InitError> {
    let (mut others, mut has_started) = (CpuSet::new(), false);
    let mut failed = None;
    for cpu in 1..CpuSet::MAX_CPU {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        match fs::read(&path) {
            Ok(online) if online == OFFLINE => match start(&path) {
                Ok(()) => {
                    others.set(cpu);
                    has_started = true;
                }
                Err(source) => {
                    eprintln!("CPU {cpu} of the outer Linux does not start: {source}");
                    failed = Some(InitError::Cpu { cpu, source });
                }
            },
            Ok(_) => others.set(cpu),
            Err(_) => break,
        }
    }
    match (has_started, failed) {
        (false, Some(error)) => Err(error),
        (false, None) => Ok(()),
        (true, _) => {
            sched_setaffinity(None, &others).map_err(|error| InitError::Affinity(error.into()))
        }
    }
}

/// Starts the CPU with the file `online` at `path`. The kernel may refuse for a moment.
fn start(path: &str) -> io::Result<()> {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 1..TRIES {
        match fs::write(path, "1") {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
            result => return result,
        }
    }
    fs::write(path, "1")
}

/// Waits until the last byte has left the serial line, and switches the machine off, which ends the emulator.
pub fn power_off() -> ! {
    // An error means that standard output is not the serial line: there is nothing to wait for.
    let _ = rustix::termios::tcdrain(rustix::stdio::stdout());
    let result = reboot(RebootCommand::PowerOff);
    // As pid 1, ending is a kernel panic, which resets the machine, which ends QEMU too.
    panic!("cannot power off: {result:?}");
}
