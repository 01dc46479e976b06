//! Finding the virtio-serial ports.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::nested::protocol::Port;

/// The limit of the wait for a port. The host's messages with the port names are handled only after the module has been loaded.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);
const CLASS: &str = "/sys/class/virtio-ports";

/// A port that cannot be used.
#[derive(Debug, Error)]
#[error("cannot open the virtio-serial port {name} in the outer Linux")]
pub(crate) struct PortError {
    name: &'static str,
    source: io::Error,
}

/// Opens `port`. Waits until the port exists.
///
/// A port can be opened once: a user of the port in two places clones the file.
pub(super) fn open(port: Port) -> Result<File, PortError> {
    let failed = |source| PortError {
        name: port.name(),
        source,
    };
    let began = Instant::now();
    loop {
        if let Some(device) = find(Path::new(CLASS), port.name()) {
            return OpenOptions::new()
                .read(true)
                .write(true)
                .open(device)
                .map_err(failed);
        }
        if began.elapsed() > LIMIT {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        thread::sleep(POLL);
    }
}

/// The device of the port called `name`.
fn find(class: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(class)
        .ok()?
        .flatten()
        .find(|entry| {
            fs::read_to_string(entry.path().join("name"))
                .is_ok_and(|found| found.trim_end() == name)
        })
        .map(|entry| Path::new("/dev").join(entry.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_name() {
        let class = tempfile::tempdir().expect("tempdir");
        for (port, name) in [
            ("vport0p1", "org.hyprobe.log\n"),
            ("vport0p2", "org.hyprobe.control\n"),
        ] {
            fs::create_dir(class.path().join(port)).expect("mkdir");
            fs::write(class.path().join(port).join("name"), name).expect("write");
        }
        fs::create_dir(class.path().join("vport0p3")).expect("mkdir");
        let found = find(class.path(), Port::Control.name());
        assert_eq!(found, Some("/dev/vport0p2".into()));
        assert_eq!(find(class.path(), Port::Events.name()), None);
        assert_eq!(find(Path::new("/nonexistent"), Port::Log.name()), None);
    }
}
