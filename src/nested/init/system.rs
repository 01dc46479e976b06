//! Prepares the Linux that the kernel has started: mounts, modules, power-off.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, init_module, reboot};
use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::nested::inputs::MODULES_PATH;

const MOUNTS: [(&str, &CStr); 3] = [
    ("/dev", c"devtmpfs"),
    ("/proc", c"proc"),
    ("/sys", c"sysfs"),
];

/// Why the outer Linux is not usable.
#[derive(Debug, Error)]
pub(crate) enum SystemError {
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

/// Mounts the file systems that every program expects.
pub(super) fn mount_all() -> Result<(), SystemError> {
    for (path, kind) in MOUNTS {
        mount(kind, path, kind, MountFlags::empty(), None::<&CStr>).map_err(|source| {
            SystemError::Mount {
                path,
                source: source.into(),
            }
        })?;
    }
    Ok(())
}

/// Loads the modules in the listed order.
pub(super) fn load_modules() -> Result<(), SystemError> {
    let failed = |path: &str, source: io::Error| SystemError::Module {
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

/// Since the outer kernel's first instruction.
pub(super) fn uptime() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Switches the machine off, which ends QEMU.
pub(super) fn power_off() -> ! {
    rustix::fs::sync();
    let result = reboot(RebootCommand::PowerOff);
    // As pid 1, ending is a kernel panic, which resets the machine, which ends QEMU too.
    panic!("cannot power off: {result:?}");
}
