//! Stock kernels and the demo guest: `--image`, `--workload`.

use guest_images::demo::{self, Tracing};
use guest_images::{
    CachedFile, CachedFileError, FetchError, Freshness, Image, ImageKind, InitramfsError,
    MirrorError, Module, ModuleError, Store,
};
use thiserror::Error;

use crate::exit::{Exit, Failure};

/// The user space of the demo guest.
const BUSYBOX: &str = "busybox-static";

/// Why an image cannot be had.
#[derive(Debug, Error)]
pub(crate) enum ImageError {
    /// The image cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The file is no kernel.
    #[error("the image {name} is no kernel")]
    NotAKernel {
        /// The image's name.
        name: String,
    },
    /// The demo guest cannot be put together.
    #[error("cannot build the demo guest")]
    Demo(#[from] InitramfsError),
    /// A file of the image cache cannot be read or has changed.
    #[error(transparent)]
    File(#[from] CachedFileError),
    /// A module cannot be had.
    #[error(transparent)]
    Module(#[from] ModuleError),
}

impl Failure for ImageError {
    fn exit(&self) -> Exit {
        match self {
            // The user's choice of a name or a mirror is wrong, and not the host.
            Self::Fetch(
                FetchError::Unknown { .. }
                | FetchError::Mirror(MirrorError::Variable { .. } | MirrorError::NotUtf8 { .. }),
            )
            | Self::NotAKernel { .. }
            | Self::Module(ModuleError::Missing { .. }) => Exit::Usage,
            Self::Fetch(_) | Self::Demo(_) | Self::File(_) | Self::Module(_) => Exit::HostCannot,
        }
    }
}

/// The file of a stock kernel, fetched if need be.
pub(crate) fn kernel(name: &str, say: &dyn Fn(String)) -> Result<CachedFile, ImageError> {
    let store = Store::open().map_err(FetchError::from)?;
    // Before a download.
    if store.entry(name)?.kind != ImageKind::Kernel {
        return Err(ImageError::NotAKernel {
            name: name.to_owned(),
        });
    }
    let report = |step: &guest_images::Progress<'_>| say(step.to_string());
    let image = store.fetch(name, Freshness::Cached, &report)?;
    Ok(image.main_file())
}

/// The demo guest's busybox, fetched if need be.
pub(crate) fn fetch_busybox(say: &dyn Fn(String)) -> Result<Image, ImageError> {
    Ok(guest_images::fetch(BUSYBOX, &|step| say(step.to_string()))?)
}

/// The demo guest's initramfs. Fetches busybox if the cache lacks the file.
pub(crate) fn demo_initramfs(
    modules: &[Module],
    say: &dyn Fn(String),
) -> Result<Vec<u8>, ImageError> {
    let busybox = fetch_busybox(say)?;
    let mut initramfs = demo::initramfs(busybox.main_file().read()?, Tracing::Off);
    demo::add_modules(&mut initramfs, modules)?;
    Ok(initramfs.build()?)
}

/// The modules `names` of a stock kernel and the modules needed by them, in load order.
pub(crate) fn modules(image: &str, names: &[String]) -> Result<Vec<Module>, ImageError> {
    let image = guest_images::fetch(image, &|_| {})?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    Ok(image.modules()?.load_order(&names)?)
}
