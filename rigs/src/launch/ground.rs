//! The files of the guest that changes its own kernel: the kernel, and the initramfs with the modules and the next kernel.

use std::path::{Path, PathBuf};

use guest_images::{Initramfs, workload};

use super::{LaunchError, error, stock};

/// The modules to load, by the names in the guest's init.
const MODULES: [&str; 3] = ["tun", "dummy", "nbd"];

/// The guest's files, on the rig's machine.
#[derive(Debug)]
pub(super) struct GroundFiles {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

/// Builds the files in `dir`. The initramfs has the modules and the files for the next kernel: the packed kernel, and an initramfs with
/// only the init.
pub(super) fn build(dir: &Path, image: &str) -> Result<GroundFiles, LaunchError> {
    let image = stock::fetch(image)?;
    let init = workload::build_ground(dir)?;
    let next: Initramfs = workload::initramfs(&init)?;
    let mut files = workload::initramfs(&init)?;
    for module in image.modules()?.load_order(&MODULES)? {
        files.file(&format!("/{}.ko", module.name), 0o644, module.read()?);
    }
    files
        .file("/vmlinuz", 0o644, image.main_file().read()?)
        .file("/next", 0o644, next.build()?)
        .character_device("/dev/net/tun", 0o666, 10, 200);
    let initrd = dir.join("initrd");
    std::fs::write(&initrd, files.build()?).map_err(error::file("write", &initrd))?;
    let kernel = stock::unpack(&image, dir.join("vmlinux"))?;
    Ok(GroundFiles { kernel, initrd })
}
