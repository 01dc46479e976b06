//! Starting QEMU.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use outer::Machine;

use super::follow::{self, Follow, kill};
use super::image::{Outer, PARAMETERS};
use super::{LaunchError, error};

/// A running QEMU.
#[derive(Debug)]
pub(super) struct Qemu {
    child: Child,
    serial: PathBuf,
}

impl Follow for Qemu {
    fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    fn output(&mut self) -> Result<Vec<u8>, LaunchError> {
        std::fs::read(&self.serial).map_err(error::file("read", &self.serial))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// Starts QEMU.
pub(super) fn start(qemu: &outer::Qemu, dir: &Path, outer: &Outer) -> Result<Qemu, LaunchError> {
    let serial = dir.join("serial");
    std::fs::write(&serial, "").map_err(error::file("write", &serial))?;
    let machine = Machine {
        kernel: &outer.kernel,
        initramfs: &outer.initramfs,
        cpus: 2,
        memory_mib: outer.memory_mib,
        parameters: PARAMETERS,
    };
    let child = follow::command(qemu.path())
        .args(machine.options())
        .arg("-serial")
        .arg(format!("file:{}", serial.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(error::start(&qemu.path().display().to_string()))?;
    Ok(Qemu { child, serial })
}
