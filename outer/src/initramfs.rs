//! The initramfs of the outer Linux: the program as init, and the modules with the order in which init loads the modules.
//!
//! The initramfs is not compressed: copying is cheap under emulation, unpacking is not.

use std::ffi::CStr;

use guest_images::{Image, Initramfs, ModuleError};

/// The file systems that every program expects. The initramfs has their directories, and init mounts them.
pub(crate) const MOUNTS: [(&str, &CStr); 3] = [
    ("/dev", c"devtmpfs"),
    ("/proc", c"proc"),
    ("/sys", c"sysfs"),
];

/// The list of the modules' paths in load order, a line each.
pub(crate) const MODULES_PATH: &str = "/outer/modules";

/// Begins an initramfs with `program` as init. The caller adds the program's files, and [`add_modules`] the modules.
#[must_use]
pub fn initramfs(program: Vec<u8>) -> Initramfs {
    let mut files = Initramfs::with_devices();
    files.file("/init", 0o755, program);
    for (path, _) in MOUNTS {
        files.directory(path, 0o755);
    }
    files
}

/// Adds the modules `names` of the kernel `image`, all dependencies, and the list of the load order.
///
/// # Errors
///
/// A module is missing or unreadable.
pub fn add_modules(
    files: &mut Initramfs,
    image: &Image,
    names: &[&str],
) -> Result<(), ModuleError> {
    let mut order = String::new();
    for module in image.modules()?.load_order(names)? {
        let path = format!("/outer/{}.ko", module.name);
        files.file(&path, 0o600, module.read()?);
        order.push_str(&path);
        order.push('\n');
    }
    files.file(MODULES_PATH, 0o600, order);
    Ok(())
}
