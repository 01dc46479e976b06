//! The kernel of a command that boots nothing: a file, or a stock kernel by name.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::exit::{Exit, Failure};
use crate::kernel_input::{KernelInput, OpenKernelError};
use crate::report::Progress;
use crate::run::images::{self, ImageError};

/// Why the kernel cannot be read.
#[derive(Debug, Error)]
pub(crate) enum NamedKernelError {
    /// The named stock kernel cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The kernel's file.
    #[error(transparent)]
    Open(#[from] OpenKernelError),
}

impl Failure for NamedKernelError {
    fn exit(&self) -> Exit {
        match self {
            Self::Image(error) => error.exit(),
            Self::Open(error) => error.exit(),
        }
    }
}

/// A kernel on this host.
#[derive(Debug)]
pub(super) struct NamedKernel {
    /// The kernel's file.
    pub(super) path: PathBuf,
    /// The decompressed kernel.
    pub(super) vmlinux: Vec<u8>,
}

impl NamedKernel {
    /// Reads the kernel at `file`, or else the stock kernel `image`.
    pub(super) fn read(
        file: Option<&Path>,
        image: Option<&str>,
        progress: &Progress,
    ) -> Result<Self, NamedKernelError> {
        let kernel = input(file, image, progress)?;
        let path = kernel.path();
        progress.say(format!("reading {}", path.display()));
        let file = kernel.open()?;
        let vmlinux = file.vmlinux().map_err(OpenKernelError::from)?;
        let vmlinux = vmlinux.into_owned();
        Ok(Self { path, vmlinux })
    }
}

/// The kernel at `file`, or else the stock kernel `image`.
pub(super) fn input(
    file: Option<&Path>,
    image: Option<&str>,
    progress: &Progress,
) -> Result<KernelInput, NamedKernelError> {
    Ok(match file {
        Some(path) => KernelInput::File(path.to_owned()),
        None => {
            let name = image.unwrap_or_default();
            KernelInput::Cached(images::kernel(name, &|step| progress.say(step))?)
        }
    })
}
