//! A bootable CD for Bochs, which has no `-kernel`.

use std::path::{Path, PathBuf};
use std::process::Command;

use outer::COMMAND_LINE;

use super::bochs::PACKAGES;
use super::image::{Outer, PARAMETERS};
use super::{LaunchError, error};

/// The loader and the loader's library, as installed by isolinux and syslinux-common.
const LOADER: [&str; 2] = [
    "/usr/lib/ISOLINUX/isolinux.bin",
    "/usr/lib/syslinux/modules/bios/ldlinux.c32",
];

/// Writes `dir/rig.iso`.
pub(super) fn build(dir: &Path, outer: &Outer) -> Result<PathBuf, LaunchError> {
    let contents = dir.join("iso");
    std::fs::create_dir(&contents).map_err(error::file("create", &contents))?;
    for from in LOADER.map(Path::new) {
        if !from.exists() {
            return Err(LaunchError::Missing {
                missing: from.display().to_string(),
                packages: PACKAGES,
            });
        }
    }
    let files = LOADER
        .map(Path::new)
        .into_iter()
        .map(|from| (from, from.file_name()));
    let system = [
        (&*outer.kernel, Some("linux".as_ref())),
        (&*outer.initramfs, Some("initrd".as_ref())),
    ];
    for (from, name) in files.chain(system) {
        let to = contents.join(name.unwrap_or_default());
        std::fs::copy(from, &to).map_err(error::file("write", &to))?;
    }
    let config = contents.join("isolinux.cfg");
    let text = format!(
        "default rig\nprompt 0\ntimeout 1\nlabel rig\nkernel linux\nappend initrd=initrd {COMMAND_LINE} {PARAMETERS}\n"
    );
    std::fs::write(&config, text).map_err(error::file("write", &config))?;
    let iso = dir.join("rig.iso");
    let output = Command::new("xorriso")
        .args(["-as", "mkisofs", "-quiet", "-o"])
        .arg(&iso)
        .args(["-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot"])
        .args(["-boot-load-size", "4", "-boot-info-table"])
        .arg(&contents)
        .output()
        .map_err(|_| LaunchError::Missing {
            missing: "xorriso".to_owned(),
            packages: PACKAGES,
        })?;
    error::check("xorriso", &output)?;
    Ok(iso)
}
