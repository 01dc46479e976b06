//! The inputs of QEMU for a run: a stock kernel, modules, this executable, and the run.

use guest_images::{CachedFileError, FetchError, InitramfsError, ModuleError, Progress};
use outer::{ExecutableError, IMAGE, VmlinuxError, own_executable};
use thiserror::Error;

use crate::config::{Accel, Initrd, KernelInput, RunConfig, Sandbox};

const BUSYBOX: &str = "busybox-static";
/// virtio comes first, so later failures can be reported through a port. TCG has SVM and no VMX.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_console", "kvm_amd"];

/// The path of the run's configuration in the outer Linux.
pub(super) const CONFIG_PATH: &str = "/hyprobe/config.json";
const KERNEL_PATH: &str = "/hyprobe/kernel";
const INITRD_PATH: &str = "/hyprobe/initrd";
const SURVEY_PATH: &str = "/hyprobe/survey";

/// Why the outer Linux could not be put together.
#[derive(Debug, Error)]
pub enum InputsError {
    /// The kernel, or the demo guest's busybox, is not in the cache and cannot be fetched.
    #[error("cannot get {image}, which nested runs need")]
    Fetch {
        /// The image.
        image: &'static str,
        /// The cause.
        source: FetchError,
    },
    /// This executable cannot run in the outer Linux.
    #[error(transparent)]
    Executable(#[from] ExecutableError),
    /// A module is missing.
    #[error("cannot take a module")]
    Modules(#[from] ModuleError),
    /// The outer Linux's kernel cannot be used.
    #[error("cannot use the kernel of the image {IMAGE}")]
    OuterKernel(#[from] VmlinuxError),
    /// The demo guest's busybox cannot be read or has changed.
    #[error(transparent)]
    Busybox(#[from] CachedFileError),
    /// An initramfs could not be built.
    #[error("cannot build an initramfs")]
    Initramfs(#[from] InitramfsError),
    /// The run cannot be written down.
    #[error("cannot write the run as JSON")]
    Config(#[from] serde_json::Error),
}

/// The guest's kernel, as the launcher has read it: the run inside boots what the launcher has checked, even if the user's file changes.
#[derive(Debug)]
pub struct GuestKernel {
    /// The kernel's file: unpacked, unless the guest is to unpack the kernel.
    pub file: Vec<u8>,
    /// The survey of the kernel's code as bytes, if the run may need it: it would take seconds under emulation.
    pub survey: Option<Vec<u8>>,
}

/// The inputs of QEMU.
#[derive(Debug)]
pub(super) struct Inputs {
    /// An ELF vmlinux.
    pub(super) kernel: Vec<u8>,
    /// The initramfs.
    pub(super) initramfs: Vec<u8>,
    /// RAM.
    pub(super) memory_mib: u64,
    /// CPUs that do work.
    pub(super) cpus: u8,
    /// Whether QEMU's process gives up its rights to files.
    pub(super) sandbox: Sandbox,
}

impl Inputs {
    /// Assembles the outer Linux for `config`. If a kernel has to be fetched, which takes a minute, `progress` reports the download.
    ///
    /// # Errors
    ///
    /// See [`InputsError`].
    pub(super) fn build(
        config: &RunConfig,
        guest: GuestKernel,
        progress: &dyn Fn(&Progress<'_>),
    ) -> Result<Self, InputsError> {
        // Errors in the user's files are found before a download.
        let mut files = outer::initramfs(own_executable()?);
        let mut inner = config.clone();
        inner.accel = Accel::Kvm;
        inner.kernel = KernelInput::File(KERNEL_PATH.into());
        files.file(KERNEL_PATH, 0o600, guest.file);
        if let Some(survey) = guest.survey {
            inner.survey = Some(SURVEY_PATH.into());
            files.file(SURVEY_PATH, 0o600, survey);
        }
        inner.initrd = Initrd::File(INITRD_PATH.into());
        match &config.initrd {
            Initrd::None => inner.initrd = Initrd::None,
            Initrd::File(path) => {
                files.host_file(INITRD_PATH, 0o600, path)?;
            }
            Initrd::Demo => {
                let busybox = fetch(BUSYBOX, progress)?;
                let mut demo = guest_images::demo::initramfs(
                    busybox.main_file().read()?,
                    guest_images::demo::Tracing::Off,
                );
                guest_images::demo::add_modules(&mut demo, &config.modules)?;
                inner.modules.clear();
                files.file(INITRD_PATH, 0o600, demo.build()?);
            }
        }
        files.file(CONFIG_PATH, 0o600, serde_json::to_vec(&inner)?);

        let image = fetch(IMAGE, progress)?;
        outer::add_modules(&mut files, &image, &MODULES)?;
        let initramfs = files.build()?;
        Ok(Self {
            kernel: outer::vmlinux(&image)?,
            memory_mib: outer::memory_mib(config.memory_bytes, initramfs.len()),
            cpus: cpus(config.cpus),
            sandbox: config.sandbox,
            initramfs,
        })
    }
}

/// Fetches the kernel of the outer Linux, unless the cache has the kernel.
///
/// # Errors
///
/// If the kernel cannot be fetched.
pub(crate) fn prepare(progress: &dyn Fn(&Progress<'_>)) -> Result<(), InputsError> {
    fetch(IMAGE, progress).map(|_| ())
}

fn fetch(
    image: &'static str,
    progress: &dyn Fn(&Progress<'_>),
) -> Result<guest_images::Image, InputsError> {
    guest_images::fetch(image, progress).map_err(|source| InputsError::Fetch { image, source })
}

/// A CPU for each vCPU of the guest, and a CPU for the threads beside the vCPUs. The number does not exceed this host's: CPUs that wait
/// for each other's emulation are slower than none.
fn cpus(guest: u8) -> u8 {
    let host = std::thread::available_parallelism().map_or(1, usize::from);
    guest
        .saturating_add(1)
        .min(u8::try_from(host).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_cpu_beside_the_first() {
        assert!((1..=2).contains(&cpus(1)));
        assert!(cpus(u8::MAX) >= 1);
    }
}
