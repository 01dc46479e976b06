//! The guest that moves the ground under probes: its kernel, and what that loads and starts.

use std::path::{Path, PathBuf};

use guest_images::{Initramfs, Progress, workload};

use super::{LaunchError, error, stock};

/// Modules that it loads, by the names that its init knows.
const MODULES: [&str; 3] = ["tun", "dummy", "nbd"];

/// Its files, here.
#[derive(Debug)]
pub(super) struct GroundFiles {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
}

/// Builds them in `dir`: the initramfs has the modules, and, for the kernel that it starts behind its own, the packed
/// kernel and an initramfs with nothing but the init.
pub(super) fn build(dir: &Path, image: &str) -> Result<GroundFiles, LaunchError> {
    let image = guest_images::fetch(image, &|progress: &Progress<'_>| {
        eprintln!("rig: {progress}")
    })?;
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
    // Unpacked here: under emulation that takes minutes.
    let kernel = stock::unpack(&image, dir.join("vmlinux"))?;
    Ok(GroundFiles { kernel, initrd })
}
