//! What a run boots, read and checked before there is any machine.

use std::path::PathBuf;

use files::ReadError;
use probes::{
    Kernel, ProbeNumber, ProbeSpec, ResolveError, SessionError, check_addresses, resolve,
};
use thiserror::Error;
use vm_memory::GuestMemoryMmap;
use vmm::boot::{self, BootError, BootMethod, BootRequest, KernelFile};

use crate::config::{Boot, Initrd, KernelInput, RunConfig};
use crate::images::{self, ImageError};
use crate::kernel_input::OpenKernelError;

/// Why a guest cannot be booted or probed as it was asked for.
#[derive(Debug, Error)]
pub(crate) enum GuestError {
    /// The kernel's file.
    #[error(transparent)]
    Kernel(#[from] OpenKernelError),
    /// What is in it.
    #[error("cannot use {path}")]
    Contents {
        /// The kernel.
        path: PathBuf,
        /// The cause.
        source: probes::KernelError,
    },
    /// The initrd's file.
    #[error("cannot read the initrd {path}")]
    Initrd {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ReadError,
    },
    /// A stock kernel, or the demo guest.
    #[error(transparent)]
    Demo(#[from] ImageError),
    /// So much memory cannot be had.
    #[error("cannot reserve {mib} MiB for the guest")]
    Memory {
        /// Its size.
        mib: u64,
        /// The cause.
        source: vm_memory::mmap::FromRangesError,
    },
    /// It does not fit, or not together.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A probe whose place cannot be known before the kernel is.
    #[error(transparent)]
    Moves(#[from] SessionError),
    /// A condition on the task's name.
    #[error(
        "cannot tell which task calls `{at}`: the kernel does not say where it keeps the current one"
    )]
    Tasks {
        /// The injection.
        at: ProbeSpec,
    },
    /// A probe that this kernel has no place for.
    #[error(transparent)]
    Probe(#[from] ResolveError),
}

/// Reads the kernel `input`: the file, the ELF of it, and what is known of it.
pub(crate) fn load_kernel(
    input: &KernelInput,
    say: &dyn Fn(String),
) -> Result<(KernelFile, Vec<u8>, Kernel), GuestError> {
    let path = input.path();
    say(format!("reading {}", path.display()));
    let file = input.open()?;
    let vmlinux = file.vmlinux().map_err(OpenKernelError::from)?;
    let vmlinux = vmlinux.into_owned();
    let kernel =
        Kernel::from_vmlinux(&vmlinux).map_err(|source| GuestError::Contents { path, source })?;
    Ok((file, vmlinux, kernel))
}

/// The files of a run, in memory.
#[derive(Debug)]
pub(crate) struct Guest {
    /// The kernel's file.
    pub(crate) file: KernelFile,
    /// The ELF of it.
    pub(crate) vmlinux: Vec<u8>,
    /// What is known of it.
    pub(crate) kernel: Kernel,
    /// The first file system.
    pub(crate) initrd: Option<Vec<u8>>,
}

impl Guest {
    /// Reads the files of `config`. The demo guest's parts may have to be fetched; `say` is told.
    pub(crate) fn load(config: &RunConfig, say: &dyn Fn(String)) -> Result<Self, GuestError> {
        let (file, vmlinux, kernel) = load_kernel(&config.kernel, say)?;
        let initrd = match &config.initrd {
            Initrd::None => None,
            // A larger initrd could not be loaded.
            Initrd::File(path) => {
                Some(files::read(path, config.memory_bytes).map_err(|source| {
                    GuestError::Initrd {
                        path: path.clone(),
                        source,
                    }
                })?)
            }
            Initrd::Demo => Some(images::demo_initramfs(&config.modules, say)?),
        };
        Ok(Self {
            file,
            vmlinux,
            kernel,
            initrd,
        })
    }

    /// Finds out what would go wrong later and more slowly: probes without a place, and too little memory.
    pub(crate) fn check(&self, config: &RunConfig) -> Result<(), GuestError> {
        let mut number = ProbeNumber::default();
        for probe in &config.probes {
            number.add(&probe.at, resolve(&self.kernel, &probe.at, 0)?.len())?;
        }
        for injection in &config.injections {
            resolve(&self.kernel, &injection.at, 0)?;
            if injection.comm.is_some() && self.kernel.tasks().is_none() {
                return Err(GuestError::Tasks {
                    at: injection.at.clone(),
                });
            }
        }
        let method = match config.boot {
            Boot::Direct => BootMethod::Direct,
            Boot::BzImage => BootMethod::BzImage,
        };
        check_addresses(method, config.probes.iter().map(|probe| &probe.at))?;
        // A rehearsal, because only loading knows what a kernel and its initrd need. Pages that are not written cost
        // nothing.
        let memory = GuestMemoryMmap::<()>::from_ranges(&boot::ram_regions(config.memory_bytes))
            .map_err(|source| GuestError::Memory {
                mib: config.memory_bytes >> 20,
                source,
            })?;
        let request = BootRequest {
            kernel: &self.file,
            vmlinux: &self.vmlinux,
            method,
            initrd: self.initrd.as_deref(),
            cmdline: &config.cmdline,
            vcpus: config.cpus,
            ram_bytes: config.memory_bytes,
        };
        boot::prepare(&memory, &request)?;
        Ok(())
    }
}

impl GuestError {
    /// What to do about it.
    pub(crate) fn advice(&self) -> Option<String> {
        match self {
            Self::Probe(error) => error.help(),
            _ => None,
        }
    }
}
