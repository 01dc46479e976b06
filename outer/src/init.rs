//! Inside: the first and the last steps of pid 1.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, init_module, reboot};
use thiserror::Error;

use crate::initramfs::{MODULES_PATH, MOUNTS};

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
}

/// Whether the process is pid 1 of an outer Linux whose initramfs has the file `path`.
#[must_use]
pub fn is_pid_1_with(path: &str) -> bool {
    std::process::id() == 1 && Path::new(path).exists()
}

/// Mounts the file systems, and loads the modules in the listed order.
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
    Ok(())
}

/// Waits until the last byte has left the serial line, and switches the machine off, which ends the emulator.
pub fn power_off() -> ! {
    // An error means that standard output is not the serial line: there is nothing to wait for.
    let _ = rustix::termios::tcdrain(rustix::stdio::stdout());
    let result = reboot(RebootCommand::PowerOff);
    // As pid 1, ending is a kernel panic, which resets the machine, which ends QEMU too.
    panic!("cannot power off: {result:?}");
}
