//! Starting QEMU: TCG emulates SVM with NPT.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use super::follow::{self, Follow, kill};
use super::image::{COMMAND_LINE, Outer};
use super::{LaunchError, error};

/// Three CPUs for two: the first stays idle, because QEMU's others damage its state (`docs/nested.md`).
const ARGUMENTS: &str = "-nodefaults -no-user-config -display none -no-reboot -machine pc,usb=off,vmport=off \
                         -accel tcg,thread=multi -cpu max,+svm,+npt,-la57 -smp 3";

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
pub(super) fn start(
    qemu: &outer::Qemu,
    dir: &Path,
    outer: &Outer,
    memory_mib: u64,
) -> Result<Qemu, LaunchError> {
    let serial = dir.join("serial");
    std::fs::write(&serial, "").map_err(error::file("write", &serial))?;
    let child = follow::command(qemu.path())
        .args(ARGUMENTS.split_ascii_whitespace())
        .args(["-m", &format!("{}M", memory_mib)])
        .arg("-kernel")
        .arg(&outer.kernel)
        .arg("-initrd")
        .arg(&outer.initramfs)
        .args([
            "-append",
            &format!(
                "{COMMAND_LINE} tsc=reliable isolcpus=0 tsc_early_khz={}",
                vmm::tsc_khz()
            ),
        ])
        .arg("-serial")
        .arg(format!("file:{}", serial.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(error::start(&qemu.path().display().to_string()))?;
    Ok(Qemu { child, serial })
}
