//! The files of a run, read and checked before the machine exists.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::ReadError;
use introspect::optimise::{DamagedSurvey, Survey};
use manifest::ProbeSpec;
use probes::{Kernel, ProbeNumber, ResolveError, SessionError, check_addresses, resolve};
use thiserror::Error;
use vm_memory::GuestMemoryMmap;
use vmm::boot::{self, BootError, BootMethod, BootRequest, KernelFile};

use crate::config::{Boot, Initrd, KernelInput, RunConfig};
use crate::exit::{Exit, Failure};
use crate::kernel_input::OpenKernelError;
use crate::run::images::{self, ImageError};

/// The reason why a guest cannot be booted or probed as requested.
#[derive(Debug, Error)]
pub(crate) enum GuestError {
    /// The kernel's file.
    #[error(transparent)]
    Kernel(#[from] OpenKernelError),
    /// The contents of the kernel's file.
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
    /// The host cannot reserve the guest's memory.
    #[error("cannot reserve {mib} MiB for the guest")]
    Memory {
        /// The size of the guest's memory.
        mib: u64,
        /// The cause.
        source: vm_memory::mmap::FromRangesError,
    },
    /// The kernel, the initrd and the memory do not fit together.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A probe at an address, in a kernel that chooses its address at boot.
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
    /// The survey of the kernel's code, which the launcher has put into the outer Linux.
    #[error("cannot use the survey of the kernel in {path}")]
    Survey {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: SurveyError,
    },
    /// A probe that cannot be resolved in this kernel.
    #[error(transparent)]
    Probe(#[from] ResolveError),
}

/// Why a file is not used as a survey.
#[derive(Debug, Error)]
pub(crate) enum SurveyError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It has other contents.
    #[error(transparent)]
    Damaged(#[from] DamagedSurvey),
}

impl Failure for GuestError {
    fn exit(&self) -> Exit {
        match self {
            Self::Demo(error) => error.exit(),
            Self::Kernel(error) => error.exit(),
            Self::Memory { .. } | Self::Survey { .. } => Exit::HostCannot,
            Self::Contents { .. }
            | Self::Initrd { .. }
            | Self::Boot(_)
            | Self::Moves(_)
            | Self::Tasks { .. }
            | Self::Probe(_) => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Probe(error) => error.help(),
            _ => None,
        }
    }
}

/// Reads the kernel `input`. Returns the file, the ELF in the file, and the parsed kernel, which shares the ELF's bytes.
pub(crate) fn load_kernel(
    input: &KernelInput,
    say: &dyn Fn(String),
) -> Result<(KernelFile, Arc<[u8]>, Kernel), GuestError> {
    let path = input.path();
    say(format!("reading {}", path.display()));
    let file = input.open()?;
    let vmlinux: Arc<[u8]> = file.vmlinux().map_err(OpenKernelError::from)?.into();
    let kernel = Kernel::from_vmlinux(Arc::clone(&vmlinux))
        .map_err(|source| GuestError::Contents { path, source })?;
    Ok((file, vmlinux, kernel))
}

/// Reads the survey of a kernel in the file `path`.
fn survey(path: &Path) -> Result<Survey, GuestError> {
    let bytes = std::fs::read(path).map_err(SurveyError::from);
    let survey = bytes.and_then(|bytes| Ok(Survey::from_bytes(&bytes)?));
    survey.map_err(|source| GuestError::Survey {
        path: path.to_owned(),
        source,
    })
}

/// The files of a run, in memory.
#[derive(Debug)]
pub(crate) struct Guest {
    /// The kernel's file.
    pub(crate) file: KernelFile,
    /// The ELF in the kernel's file.
    pub(crate) vmlinux: Arc<[u8]>,
    /// The parsed kernel.
    pub(crate) kernel: Kernel,
    /// The first file system.
    pub(crate) initrd: Option<Vec<u8>>,
}

impl Guest {
    /// Reads the files of `config`. If a part of the demo guest has to be fetched, `say` reports the progress.
    pub(crate) fn load(config: &RunConfig, say: &dyn Fn(String)) -> Result<Self, GuestError> {
        let (file, vmlinux, kernel) = load_kernel(&config.kernel, say)?;
        if let Some(path) = &config.survey {
            kernel.use_survey(survey(path)?);
        }
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

    /// Finds errors that would appear later and more slowly: probes without a site, and too little memory.
    pub(crate) fn check(&self, config: &RunConfig) -> Result<(), GuestError> {
        let mut number = ProbeNumber::default();
        for probe in &config.probes {
            let found = resolve(&self.kernel, &probe.at, 0)?;
            number.add(&probe.at, found.len())?;
            let words = found.iter().map(|resolved| resolved.words(&probe.at));
            number.add_words(&probe.at, words.sum())?;
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
        // A trial load: only loading shows the memory needs of a kernel and an initrd. Pages without a write cost nothing.
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
