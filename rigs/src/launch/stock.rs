//! The stock guest: a Debian kernel and the workload. The rig unpacks the kernel, because unpacking takes minutes on an emulated
//! processor.

use std::path::{Path, PathBuf};

use guest_images::{Image, Progress, workload};

use super::{LaunchError, error};
use crate::contract::STOCK_MODULE;
use crate::line::Backend;

const KERNEL: &str = "debian-6.1";

/// The stock guest's files, here.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    pub(super) cpus: u8,
}

/// Fetches the kernel `image` of the catalog, unless the cache has the kernel.
pub(super) fn fetch(image: &str) -> Result<Image, LaunchError> {
    let report = |progress: &Progress<'_>| eprintln!("rig: {progress}");
    Ok(guest_images::fetch(image, &report)?)
}

/// The image with the packed stock kernel.
pub(super) fn image() -> Result<Image, LaunchError> {
    fetch(KERNEL)
}

/// Unpacks the stock kernel into `dir`.
pub(super) fn kernel(dir: &Path) -> Result<PathBuf, LaunchError> {
    unpack(&image()?, dir.join("stock-kernel"))
}

/// Writes the unpacked kernel of `image` to the file `to`.
pub(super) fn unpack(image: &Image, to: PathBuf) -> Result<PathBuf, LaunchError> {
    std::fs::write(&to, outer::vmlinux(image)?).map_err(error::file("write", &to))?;
    Ok(to)
}

/// Writes the packed kernel of `image` to the file `to`.
pub(super) fn copy(image: &Image, to: PathBuf) -> Result<PathBuf, LaunchError> {
    std::fs::write(&to, image.main_file().read()?).map_err(error::file("write", &to))?;
    Ok(to)
}

/// Builds the stock guest in `dir`.
pub(super) fn build(dir: &Path, backend: Backend) -> Result<Stock, LaunchError> {
    let (image, kernel) = (image()?, kernel(dir)?);
    let mut files = workload::initramfs(&workload::build_workload(dir)?)?;
    let modules = image.modules()?.load_order(&[STOCK_MODULE])?;
    workload::add_modules(&mut files, &modules)?;
    let initrd = dir.join("stock-initrd");
    std::fs::write(&initrd, files.build()?).map_err(error::file("write", &initrd))?;
    Ok(Stock {
        kernel,
        initrd,
        cpus: cpus(backend),
    })
}

/// The number of vCPUs possible for a stock guest.
pub(super) fn cpus(backend: Backend) -> u8 {
    match backend {
        Backend::Amd => 1,
        Backend::Intel | Backend::Nested | Backend::Local => 2,
    }
}
