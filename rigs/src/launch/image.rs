//! The outer Linux: a stock kernel, KVM's modules, `contract` as its init, and the test guest.

use std::path::{Path, PathBuf};

use guest_images::{Image, Initramfs, Progress};

use super::{Launch, LaunchError, error};
use crate::line::Backend;
use crate::outer::{ARGUMENTS_PATH, GUEST_PATH, MODULES_PATH};

const KERNEL: &str = "debian-6.1";

/// Kernel and initramfs, as files.
#[derive(Debug)]
pub(super) struct Outer {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
}

/// What the SVM of Bochs 2.7 does wrong; docs/rigs.md says more about each.
const MISTAKES_OF_BOCHS_SVM: [&str; 6] = [
    "--without",
    "fn_out",
    "--cannot",
    "fault/=the SVM of Bochs does not load CR2 from the VMCB",
    "--cannot",
    "/2=a second processor does not start under the SVM of Bochs",
];

/// What QEMU's TCG does wrong: the page fault of an instruction that reads and writes is that of its read.
const MISTAKES_OF_TCG: [&str; 2] = ["--without", "modify beyond"];

/// What every kernel command line here begins with.
///
/// - loglevel: what is dying may speak, so that lines are whole otherwise.
/// - no mitigations: nothing speculates here; no KASLR: a panic's addresses mean something.
/// - the crypto self-tests and security modules only cost time.
pub(super) const COMMAND_LINE: &str = "console=ttyS0,115200 loglevel=2 panic=-1 mitigations=off nokaslr \
                                       no_timer_check cryptomgr.notests=1 random.trust_cpu=on lsm=";

/// Builds it in `dir` with `module`, which is KVM's for the vendor.
pub(super) fn build(
    launch: &Launch<'_>,
    dir: &Path,
    guest: &Path,
    module: &str,
) -> Result<Outer, LaunchError> {
    let image = guest_images::fetch(KERNEL, &|progress: &Progress<'_>| {
        eprintln!("rig: {progress}")
    })?;
    let mut files = Initramfs::with_devices();
    files.host_file("/init", 0o755, &contract()?)?;
    files.host_file(GUEST_PATH, 0o600, guest)?;
    for directory in ["proc", "sys"] {
        files.directory(directory, 0o555);
    }
    add_modules(&mut files, &image, module)?;
    let fixed = [
        "contract",
        "--backend",
        launch.backend.word(),
        "--guest",
        GUEST_PATH,
    ];
    let mistakes: &[&str] = match launch.backend {
        Backend::Amd => &MISTAKES_OF_BOCHS_SVM,
        Backend::Nested => &MISTAKES_OF_TCG,
        _ => &[],
    };
    let arguments: Vec<&str> = fixed
        .into_iter()
        .chain(mistakes.iter().copied())
        .chain(launch.contract.iter().map(String::as_str))
        .collect();
    files.file(ARGUMENTS_PATH, 0o600, serde_json::to_vec(&arguments)?);
    let initramfs = dir.join("initramfs");
    // Not compressed: reading is cheap under emulation, unpacking is not.
    std::fs::write(&initramfs, files.build()?).map_err(error::file("write", &initramfs))?;
    Ok(Outer {
        kernel: image.path(),
        initramfs,
    })
}

fn add_modules(files: &mut Initramfs, image: &Image, module: &str) -> Result<(), LaunchError> {
    let mut order = String::new();
    for module in image.modules()?.load_order(&[module])? {
        let path = format!("/rig/{}.ko", module.name);
        files.file(&path, 0o600, module.read()?);
        order.push_str(&path);
        order.push('\n');
    }
    files.file(MODULES_PATH, 0o600, order);
    Ok(())
}

/// The program that runs inside, which is built beside this one.
pub(super) fn contract() -> Result<PathBuf, LaunchError> {
    let own = std::env::current_exe().map_err(error::start("contract"))?;
    let path = own.with_file_name("contract");
    match path.exists() {
        true => Ok(path),
        false => Err(LaunchError::Missing {
            missing: format!("{} (cargo build -p hyprobe-rigs makes it)", path.display()),
            packages: "cargo",
        }),
    }
}
