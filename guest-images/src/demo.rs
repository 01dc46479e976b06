//! The demo guest: busybox and an init with a few actions worth probing.

use crate::initramfs::Initramfs;
use crate::modules::{Module, ModuleError};

const INIT: &str = include_str!("../demo/init");

/// Tracing file system of the demo guest, besides proc, sys and dev.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tracing {
    /// Nothing.
    #[default]
    Off,
    /// tracefs, at /sys/kernel/tracing.
    Tracefs,
}

/// Line printed by the guest after boot.
pub const BANNER: &str = "hyprobe demo guest: up";

/// Beginning of the line printed by the guest at the end of the work.
pub const DONE: &str = "hyprobe demo guest: done";

/// Describes the demo guest's initramfs; `busybox` is the static executable.
pub fn initramfs(busybox: Vec<u8>, tracing: Tracing) -> Initramfs {
    let mut initramfs = Initramfs::with_devices();
    initramfs
        .file("bin/busybox", 0o755, busybox)
        .symlink("bin/sh", "busybox")
        .file("init", 0o755, INIT)
        .file("etc/motd", 0o644, "probed from one level down\n");
    for directory in ["proc", "sys", "tmp"] {
        initramfs.directory(directory, 0o755);
    }
    if tracing == Tracing::Tracefs {
        initramfs.file("etc/tracefs", 0o644, "");
    }
    initramfs
}

/// Makes the demo guest load `modules` in order before all other work, and unload the modules at the end.
///
/// # Errors
///
/// A module cannot be read.
pub fn add_modules(initramfs: &mut Initramfs, modules: &[Module]) -> Result<(), ModuleError> {
    let mut order = String::new();
    for module in modules {
        initramfs.file(
            &format!("lib/modules/{}.ko", module.name),
            0o644,
            module.read()?,
        );
        order.push_str(&module.name);
        order.push('\n');
    }
    initramfs.file("etc/modules", 0o644, order);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_prints_the_lines_that_are_promised() {
        for line in [BANNER, DONE] {
            assert!(INIT.contains(line), "{line}");
        }
    }

    #[test]
    fn init_is_a_valid_script() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("init");
        std::fs::write(&path, INIT).expect("write");
        let status = std::process::Command::new("sh")
            .arg("-n")
            .arg(&path)
            .status()
            .expect("sh");
        assert!(status.success());
    }
}
