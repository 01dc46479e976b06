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
            output: None,
            registers: false,
            crash_dump: None,
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
        "--stealth=reads",
        "-p",
        "kprobe:vfs_write",
    ]);
    assert_eq!(
        (config.kernel.path(), config.initrd),
        (PathBuf::from("/k"), Initrd::Demo)
    );
    assert_eq!((config.memory_bytes, config.cpus), (64 << 20, 1));
    assert!(!config.optimise);
    assert_eq!(config.when_full, manifest::WhenFull::Drop);
    assert_eq!(config.stealth, manifest::Stealth::Reads);
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
    let requested = ask(&run(&[]), &manifest).expect("ask");
    assert_eq!(
        requested.kernel,
        KernelSource::Image("debian-6.1".to_owned())
    );
    assert_eq!(requested.initrd, Initrd::Demo);
    assert!(requested.probes.len() > 1);
}

#[test]
fn a_stock_kernel_comes_with_a_user_space() {
    let requested = ask(&run(&["--image", "debian-6.1"]), &Manifest::default()).expect("ask");
    assert_eq!(requested.initrd, Initrd::Demo);
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
fn missing_kernel_and_wrong_probe_are_refused_with_help() {
    let error = merge(&run(&[]), &|_| {}).expect_err("no kernel");
    assert!(matches!(error, MergeError::NoKernel) && error.help().is_some());
    let error = merge(&run(&["--kernel=k", "-p", "vfs_read"]), &|_| {}).expect_err("no kind");
    assert_eq!(error.help().as_deref(), Some("write kprobe:vfs_read"));
}
