//! Command line and manifest become one run.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use manifest::{
    Expectation, InitrdSource, InvalidManifest, KernelSource, Manifest, ManifestError, ProbeConfig,
    ProbeSpec, SpecError,
};
use thiserror::Error;

use crate::cli::RunArgs;
use crate::config::{Console, Initrd, KernelInput, OutputConfig, RunConfig, Sandbox, Workload};
use crate::exit::{Exit, Failure};
use crate::run::images;

const DEFAULT_CMDLINE: &str = "console=ttyS0 panic=-1";
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// Why the command line and the manifest describe no run.
#[derive(Debug, Error)]
pub(crate) enum MergeError {
    /// The manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Neither names a kernel.
    #[error("there is nothing to boot")]
    NoKernel,
    /// Modules together with a kernel or an initrd to which the modules do not belong.
    #[error(
        "the manifest's modules are a stock kernel's, and the built-in workload loads them: name no kernel and no \
         initrd of your own"
    )]
    Modules,
    /// An argument of `-p` is no probe.
    #[error("`{spec}` is not a probe")]
    Probe {
        /// The argument.
        spec: String,
        /// The error in the argument.
        source: SpecError,
    },
    /// The named stock kernel cannot be used.
    #[error("cannot get the kernel {name}")]
    Image {
        /// The name of the kernel.
        name: String,
        /// The cause.
        source: images::ImageError,
    },
    /// The working directory is gone.
    #[error("cannot find out what {path} is relative to")]
    Path {
        /// The relative path.
        path: PathBuf,
        /// The error from the system.
        source: io::Error,
    },
}

impl Failure for MergeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Image { source, .. } => source.exit(),
            Self::Manifest(_)
            | Self::NoKernel
            | Self::Modules
            | Self::Probe { .. }
            | Self::Path { .. } => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::NoKernel => {
                Some("name a kernel: --kernel FILE, --image debian-6.1, or a manifest".to_owned())
            }
            Self::Probe { source, .. } => source.help(),
            Self::Manifest(_) | Self::Modules | Self::Image { .. } | Self::Path { .. } => None,
        }
    }

    fn manifest(&self) -> Option<&InvalidManifest> {
        match self {
            Self::Manifest(ManifestError::Invalid(manifest)) => Some(manifest),
            _ => None,
        }
    }
}

/// The requested run, without defaults and before any look-up.
#[derive(Debug, PartialEq, Eq)]
struct RequestedRun {
    kernel: KernelSource,
    initrd: Initrd,
    cmdline: String,
    memory_bytes: u64,
    cpus: u8,
    probes: Vec<ProbeConfig>,
    timeout: Option<Duration>,
}

/// The merged run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The configuration of the run.
    pub(crate) config: RunConfig,
    /// The output of the run.
    pub(crate) output: OutputConfig,
    /// The expectations of the run.
    pub(crate) expectations: Vec<Expectation>,
}

/// Reads the manifest, if given, and puts the command line over the manifest. If a stock kernel has to be fetched, `say` reports the
/// progress.
pub(crate) fn merge(args: &RunArgs, say: &dyn Fn(String)) -> Result<Plan, MergeError> {
    let manifest = match &args.manifest {
        Some(path) => Manifest::load(path)?,
        None => Manifest::default(),
    };
    let requested = ask(args, &manifest)?;
    let wanted = &manifest.guest.modules;
    let (kernel, modules) = match requested.kernel {
        _ if !wanted.is_empty() && requested.initrd != Initrd::Demo => {
            return Err(MergeError::Modules);
        }
        KernelSource::File(_) if !wanted.is_empty() => return Err(MergeError::Modules),
        KernelSource::File(path) => (KernelInput::File(absolute(path)?), Vec::new()),
        KernelSource::Image(name) => images::kernel(&name, say)
            .map(KernelInput::Cached)
            .and_then(|kernel| match wanted.is_empty() {
                true => Ok((kernel, Vec::new())),
                false => Ok((kernel, images::modules(&name, wanted)?)),
            })
            .map_err(|source| MergeError::Image { name, source })?,
    };
    let initrd = match requested.initrd {
        Initrd::File(path) => Initrd::File(absolute(path)?),
        Initrd::None | Initrd::Demo => requested.initrd,
    };
    let run = &manifest.run;
    let console = args
        .console
        .clone()
        .or_else(|| run.console.clone())
        .unwrap_or_default();
    let config = RunConfig {
        kernel,
        initrd,
        modules,
        cmdline: requested.cmdline,
        memory_bytes: requested.memory_bytes,
        cpus: requested.cpus,
        boot: args.boot.or(manifest.guest.boot).unwrap_or_default(),
        probes: requested.probes,
        injections: manifest.injections.clone(),
        accel: args.accel.or(run.accel).unwrap_or_default(),
        trap: args.trap.unwrap_or_default(),
        optimise: !args.no_optimise && run.optimise.unwrap_or(true),
        when_full: args.when_full.or(run.when_full).unwrap_or_default(),
        stealth: args.stealth.or(run.stealth).unwrap_or_default(),
        console: match console {
            Console::File(path) => Console::File(absolute(path)?),
            Console::Stdio | Console::None => console,
        },
        timeout: requested.timeout,
        control: args
            .control
            .clone()
            .or_else(|| run.control.clone())
            .map(absolute)
            .transpose()?,
        sandbox: match args.no_sandbox {
            true => Sandbox::Off,
            false => Sandbox::On,
        },
        survey: None,
        dump_on_crash: args.dump_on_crash.is_some(),
    };
    let output = OutputConfig {
        format: args.format.or(run.format).unwrap_or_default(),
        output: args.output.clone().or_else(|| run.output.clone()),
        registers: false,
        crash_dump: args.dump_on_crash.clone(),
    };
    Ok(Plan {
        config,
        output,
        expectations: manifest.expectations,
    })
}

fn ask(args: &RunArgs, manifest: &Manifest) -> Result<RequestedRun, MergeError> {
    let guest = &manifest.guest;
    let kernel = match (&args.kernel, &args.image) {
        (Some(path), _) => KernelSource::File(path.clone()),
        (None, Some(name)) => KernelSource::Image(name.clone()),
        (None, None) => guest.kernel.clone().ok_or(MergeError::NoKernel)?,
    };
    let initrd = match (&args.initrd, args.workload) {
        (Some(path), _) => Some(InitrdSource::File(path.clone())),
        (None, Some(workload)) => Some(InitrdSource::Workload(workload)),
        (None, None) => guest.initrd.clone(),
    };
    let mut probes = manifest.probes.clone();
    for spec in &args.probes {
        let parsed: ProbeSpec = spec.parse().map_err(|source| MergeError::Probe {
            spec: spec.clone(),
            source,
        })?;
        probes.push(ProbeConfig {
            stack: args.stack,
            ..parsed.into()
        });
    }
    Ok(RequestedRun {
        initrd: match initrd {
            Some(InitrdSource::File(path)) => Initrd::File(path),
            Some(InitrdSource::Workload(Workload::Demo)) => Initrd::Demo,
            // A stock kernel alone could only panic for want of a root file system.
            None if matches!(kernel, KernelSource::Image(_)) => Initrd::Demo,
            None => Initrd::None,
        },
        kernel,
        cmdline: args
            .cmdline
            .clone()
            .or_else(|| guest.cmdline.clone())
            .unwrap_or_else(|| DEFAULT_CMDLINE.to_owned()),
        memory_bytes: args
            .memory
            .or(guest.memory_bytes)
            .unwrap_or(DEFAULT_MEMORY_BYTES),
        cpus: args.cpus.or(guest.cpus).unwrap_or(1),
        probes,
        timeout: args.timeout.or(manifest.run.timeout),
    })
}

fn absolute(path: PathBuf) -> Result<PathBuf, MergeError> {
    std::path::absolute(&path).map_err(|source| MergeError::Path { path, source })
}

#[cfg(test)]
mod tests;
