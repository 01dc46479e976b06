//! Sets up the Linux around KVM, if a program of the package is pid 1.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, init_module, reboot};
use thiserror::Error;

/// The program's arguments, a JSON array of strings.
pub const ARGUMENTS_PATH: &str = "/rig/arguments.json";
/// The modules' files in the order in which they are loaded, a line each.
pub const MODULES_PATH: &str = "/rig/modules";
/// The guest: the test guest, or a kernel.
pub const GUEST_PATH: &str = "/rig/guest";
/// The guest's initramfs.
pub const INITRD_PATH: &str = "/rig/initrd";
/// The guest's packed kernel.
pub const PACKED_PATH: &str = "/rig/packed";
/// The lines of earlier launches.
pub const KNOWN_PATH: &str = "/rig/known";
/// The stock guest's kernel, unpacked.
pub const STOCK_KERNEL_PATH: &str = "/rig/stock-kernel";
/// The stock guest's initramfs.
pub const STOCK_INITRD_PATH: &str = "/rig/stock-initrd";

const MOUNTS: [(&str, &CStr); 3] = [
    ("/dev", c"devtmpfs"),
    ("/proc", c"proc"),
    ("/sys", c"sysfs"),
];
/// With this console level, a dying kernel prints the cause of death, and nothing else breaks a line.
const CONSOLE_LEVEL: (&str, &str) = ("/proc/sys/kernel/printk", "1");

/// Why the Linux is not usable.
#[derive(Debug, Error)]
#[error("cannot {what} {path} in the outer Linux")]
pub struct OuterError {
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

/// Whether the process is pid 1 of a rig's Linux.
#[must_use]
pub fn is_pid_1() -> bool {
    std::process::id() == 1 && Path::new(ARGUMENTS_PATH).exists()
}

/// Mounts `/dev`, `/proc` and `/sys`, loads the modules, and reads the arguments.
///
/// # Errors
///
/// The kernel refuses, or the initramfs is damaged.
pub fn set_up() -> Result<Vec<String>, OuterError> {
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
pub fn power_off() -> ! {
    // An error means that standard output is no terminal: there is nothing to wait for.
    let _ = rustix::termios::tcdrain(rustix::stdio::stdout());
    let result = reboot(RebootCommand::PowerOff);
    // As pid 1, ending is a kernel panic, which resets the machine.
    panic!("cannot power off: {result:?}");
}
