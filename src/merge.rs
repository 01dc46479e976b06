//! Command line and manifest become one run.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use probes::manifest::{InitrdSource, InvalidManifest, KernelSource, Manifest, ManifestError};
use probes::{Expectation, ProbeRequest, ProbeSpec, SpecError};
use thiserror::Error;

use crate::cli::RunArgs;
use crate::config::{Console, Initrd, KernelInput, OutputConfig, RunConfig, Sandbox, Workload};
use crate::exit::{Exit, Failure};
use crate::images;

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
struct Asked {
    kernel: KernelSource,
    initrd: Initrd,
    cmdline: String,
    memory_bytes: u64,
    cpus: u8,
    probes: Vec<ProbeRequest>,
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
    let asked = ask(args, &manifest)?;
    let wanted = &manifest.guest.modules;
    let (kernel, modules) = match asked.kernel {
        _ if !wanted.is_empty() && asked.initrd != Initrd::Demo => return Err(MergeError::Modules),
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
    let initrd = match asked.initrd {
        Initrd::File(path) => Initrd::File(absolute(path)?),
        Initrd::None | Initrd::Demo => asked.initrd,
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
        cmdline: asked.cmdline,
        memory_bytes: asked.memory_bytes,
        cpus: asked.cpus,
        boot: args.boot.or(manifest.guest.boot).unwrap_or_default(),
        probes: asked.probes,
        injections: manifest.injections.clone(),
        accel: args.accel.or(run.accel).unwrap_or_default(),
        trap: args.trap.unwrap_or_default(),
        optimise: !args.no_optimise && run.optimise.unwrap_or(true),
        when_full: args.when_full.or(run.when_full).unwrap_or_default(),
        console: match console {
            Console::File(path) => Console::File(absolute(path)?),
            Console::Stdio | Console::None => console,
        },
        timeout: asked.timeout,
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
    };
    let output = OutputConfig {
        format: args.format.or(run.format).unwrap_or_default(),
        output: args.output.clone().or_else(|| run.output.clone()),
    };
    Ok(Plan {
        config,
        output,
        expectations: manifest.expectations,
    })
}

fn ask(args: &RunArgs, manifest: &Manifest) -> Result<Asked, MergeError> {
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
        probes.push(parsed.into());
    }
    Ok(Asked {
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
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::config::{Accel, Boot, Format};

    const MANIFEST: &str = "
        [guest]
        kernel = 'vmlinuz'
        initrd = 'initrd.gz'
        memory = '1G'
        cpus = 2
        boot = 'bzimage'
        [run]
        accel = 'nested'
        format = 'json'
        console = 'c.log'
        [[probe]]
        at = 'kprobe:vfs_read'
    ";

    fn run(args: &[&str]) -> RunArgs {
        let cli = Cli::try_parse_from(["hyprobe", "run"].iter().chain(args)).expect("parse");
        let Command::Run(args) = cli.command else {
            panic!("{cli:?}")
        };
        args
    }

    fn merged(args: &[&str]) -> (RunConfig, OutputConfig) {
        let plan = merge(&run(args), &|_| {}).expect("merge");
        (plan.config, plan.output)
    }

    #[test]
    fn the_manifest_alone() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("run.toml");
        std::fs::write(&path, MANIFEST).expect("write");
        let (config, output) = merged(&[path.to_str().expect("path")]);
        assert_eq!(config.kernel.path(), dir.path().join("vmlinuz"));
        assert_eq!(config.initrd, Initrd::File(dir.path().join("initrd.gz")));
        assert_eq!((config.memory_bytes, config.cpus), (1 << 30, 2));
        assert_eq!((config.boot, config.accel), (Boot::BzImage, Accel::Nested));
        assert_eq!(config.console, Console::File(dir.path().join("c.log")));
        assert!(config.optimise);
        assert_eq!(
            output,
            OutputConfig {
                format: Format::Json,
                output: None
            }
        );
    }

    #[test]
    fn the_command_line_beats_it_and_adds_probes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("run.toml");
        std::fs::write(&path, MANIFEST).expect("write");
        let (config, output) = merged(&[
            path.to_str().expect("path"),
            "--kernel=/k",
            "--workload=demo",
            "--memory=64M",
            "--cpus=1",
            "--boot=direct",
            "--accel=kvm",
            "--format=text",
            "--console=none",
            "--no-optimise",
            "--when-full=drop",
            "-p",
            "kprobe:vfs_write",
        ]);
        assert_eq!(
            (config.kernel.path(), config.initrd),
            (PathBuf::from("/k"), Initrd::Demo)
        );
        assert_eq!((config.memory_bytes, config.cpus), (64 << 20, 1));
        assert!(!config.optimise);
        assert_eq!(config.when_full, probes::WhenFull::Drop);
        assert_eq!((config.boot, config.accel), (Boot::Direct, Accel::Kvm));
        assert_eq!(
            (config.console, output.format),
            (Console::None, Format::Text)
        );
        let probes: Vec<_> = config
            .probes
            .iter()
            .map(|probe| probe.at.to_string())
            .collect();
        assert_eq!(probes, ["kprobe:vfs_read", "kprobe:vfs_write"]);
    }

    #[test]
    fn paths_become_absolute_and_defaults_are_filled_in() {
        let (config, _) = merged(&["--kernel", "vmlinuz"]);
        assert!(config.kernel.path().is_absolute());
        assert_eq!(config.initrd, Initrd::None);
        assert_eq!(config.cmdline, DEFAULT_CMDLINE);
        assert_eq!(
            (config.memory_bytes, config.cpus),
            (DEFAULT_MEMORY_BYTES, 1)
        );
        assert_eq!(
            (config.accel, config.console),
            (Accel::Auto, Console::Stdio)
        );
    }

    #[test]
    fn the_demo_is_a_manifest() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest-images/demo.toml");
        let manifest = Manifest::load(&path).expect("demo.toml");
        let asked = ask(&run(&[]), &manifest).expect("ask");
        assert_eq!(asked.kernel, KernelSource::Image("debian-6.1".to_owned()));
        assert_eq!(asked.initrd, Initrd::Demo);
        assert!(asked.probes.len() > 1);
    }

    #[test]
    fn a_stock_kernel_comes_with_a_user_space() {
        let asked = ask(&run(&["--image", "debian-6.1"]), &Manifest::default()).expect("ask");
        assert_eq!(asked.initrd, Initrd::Demo);
    }

    #[test]
    fn the_configuration_goes_through_json() {
        let (mut config, _) = merged(&[
            "--kernel",
            "k",
            "--timeout",
            "1500ms",
            "-p",
            "kprobe:a+5",
            "--console",
            "f",
        ]);
        for initrd in [Initrd::None, Initrd::Demo, Initrd::File("/i".into())] {
            config.initrd = initrd;
            let json = serde_json::to_string(&config).expect("json");
            assert_eq!(
                serde_json::from_str::<RunConfig>(&json).expect("json"),
                config,
                "{json}"
            );
        }
    }

    #[test]
    fn modules_need_a_stock_kernel_and_the_workload() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("m.toml");
        std::fs::write(
            &path,
            "[guest]\nimage = 'debian-6.1'\nmodules = ['dummy']\n",
        )
        .expect("write");
        let path = path.to_str().expect("path");
        for over in [["--kernel", "/k"], ["--initrd", "/i"]] {
            let error = merge(&run(&[&[path][..], &over].concat()), &|_| {}).expect_err("modules");
            assert!(matches!(error, MergeError::Modules), "{error:?}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        let error = merge(&run(&[]), &|_| {}).expect_err("no kernel");
        assert!(matches!(error, MergeError::NoKernel) && error.help().is_some());
        let error = merge(&run(&["--kernel=k", "-p", "vfs_read"]), &|_| {}).expect_err("no kind");
        assert_eq!(error.help().as_deref(), Some("write kprobe:vfs_read"));
    }
}
