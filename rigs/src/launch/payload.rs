//! The program to run beside KVM, and the program's files.

use std::path::{Path, PathBuf};

use guest_images::workload;

use super::{Launch, LaunchError, error, ground, stock};
use crate::line::Backend;

/// The guest: the test guest, or a kernel.
const GUEST_PATH: &str = "/rig/guest";
/// The guest's initramfs.
const INITRD_PATH: &str = "/rig/initrd";
/// The guest's packed kernel.
const PACKED_PATH: &str = "/rig/packed";
/// The lines of earlier launches.
const KNOWN_PATH: &str = "/rig/known";
/// The stock guest's kernel, unpacked.
const STOCK_KERNEL_PATH: &str = "/rig/stock-kernel";
/// The stock guest's initramfs.
const STOCK_INITRD_PATH: &str = "/rig/stock-initrd";

/// A program of the package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program<'a> {
    /// [`contract`](crate::contract), with the test guest.
    Contract {
        /// And with a stock kernel.
        stock: bool,
    },
    /// [`overhead`](crate::overhead), with the test guest.
    Bench {
        /// And with a stock kernel.
        stock: bool,
    },
    /// [`busy`](crate::busy), with a stock kernel.
    Busy {
        /// The kernel, in the catalog of images.
        image: &'a str,
    },
    /// [`sweep`](crate::sweep), with a stock kernel.
    Sweep {
        /// The kernel, in the catalog of images.
        image: &'a str,
        /// The name of the file with the lines, which has the lines of earlier launches, too.
        name: &'a str,
    },
    /// [`ground`](crate::ground), with a stock kernel.
    Ground {
        /// The kernel, in the catalog of images.
        image: &'a str,
    },
}

impl Program<'_> {
    /// The executable's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contract { .. } => "contract",
            Self::Bench { .. } => "bench",
            Self::Busy { .. } => "busy",
            Self::Sweep { .. } => "sweep",
            Self::Ground { .. } => "ground",
        }
    }
}

/// A file that the program gets by an option.
#[derive(Debug)]
pub(super) struct OptionFile {
    pub(super) option: &'static str,
    /// The path in the outer Linux.
    pub(super) inside: &'static str,
    pub(super) path: PathBuf,
}

/// The program and the program's files.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) program: PathBuf,
    pub(super) files: Vec<OptionFile>,
    /// Further options of the program.
    pub(super) options: Vec<String>,
    /// RAM of all guests that run at the same time, and of the program's records of them.
    pub(super) guest_bytes: u64,
}

/// Builds the program's files for `launch` in `dir`.
pub(super) fn build(launch: &Launch<'_>, dir: &Path) -> Result<Payload, LaunchError> {
    let given = |option, inside, path| OptionFile {
        option,
        inside,
        path,
    };
    let mut options = Vec::new();
    let (files, guest_bytes) = match launch.program {
        Program::Contract { stock } => {
            let guest = guest_images::build_testguest(dir)?;
            let mut files = vec![given("--guest", GUEST_PATH, guest)];
            if stock {
                let stock = stock::build(dir, launch.backend)?;
                files.push(given("--stock-kernel", STOCK_KERNEL_PATH, stock.kernel));
                files.push(given("--stock-initrd", STOCK_INITRD_PATH, stock.initrd));
                options.extend(["--stock-cpus".to_owned(), stock.cpus.to_string()]);
            }
            (files, 512 << 20)
        }
        Program::Bench { stock } => {
            let guest = guest_images::build_testguest(dir)?;
            let mut files = vec![given("--guest", GUEST_PATH, guest)];
            if stock {
                let kernel = stock::kernel(dir)?;
                files.push(given("--kernel", STOCK_KERNEL_PATH, kernel));
                let initramfs = workload::initramfs(&workload::build_overhead(dir)?)?;
                let initrd = dir.join("stock-initrd");
                std::fs::write(&initrd, initramfs.build()?)
                    .map_err(error::file("write", &initrd))?;
                files.push(given("--initrd", STOCK_INITRD_PATH, initrd));
                // QEMU is present only if the program runs without an outer Linux.
                if launch.backend == Backend::Local {
                    let packed = stock::copy(&stock::image()?, dir.join("packed"))?;
                    options.extend(["--image".to_owned(), packed.display().to_string()]);
                }
            }
            (files, 768 << 20)
        }
        Program::Busy { image } => {
            let image = stock::fetch(image)?;
            let initramfs = workload::initramfs(&guest_images::build_workload(dir)?)?;
            let initrd = dir.join("initrd");
            std::fs::write(&initrd, initramfs.build()?).map_err(error::file("write", &initrd))?;
            let kernel = stock::unpack(&image, dir.join("vmlinux"))?;
            let kernel = given("--kernel", GUEST_PATH, kernel);
            let cpus = stock::cpus(launch.backend);
            options.extend(["--cpus".to_owned(), cpus.to_string()]);
            (
                vec![kernel, given("--initrd", INITRD_PATH, initrd)],
                768 << 20,
            )
        }
        Program::Sweep { image, name } => {
            let image = stock::fetch(image)?;
            let initramfs = workload::initramfs(&guest_images::build_workload(dir)?)?;
            let initrd = dir.join("initrd");
            std::fs::write(&initrd, initramfs.build()?).map_err(error::file("write", &initrd))?;
            let kernel = stock::unpack(&image, dir.join("vmlinux"))?;
            let packed = stock::copy(&image, dir.join("packed"))?;
            // The launch writes to the file while the program reads.
            let known = dir.join("known");
            let lines = launch.results.join(format!("{name}.jsonl"));
            std::fs::copy(&lines, &known).map_err(error::file("read", &lines))?;
            let files = vec![
                given("--kernel", GUEST_PATH, kernel),
                given("--packed", PACKED_PATH, packed),
                given("--initrd", INITRD_PATH, initrd),
                given("--known", KNOWN_PATH, known),
            ];
            (files, 1280 << 20)
        }
        Program::Ground { image } => {
            let files = ground::build(dir, image)?;
            let cpus = stock::cpus(launch.backend);
            options.extend(["--cpus".to_owned(), cpus.to_string()]);
            let kernel = given("--kernel", GUEST_PATH, files.kernel);
            (
                vec![kernel, given("--initrd", INITRD_PATH, files.initrd)],
                1280 << 20,
            )
        }
    };
    let program = launch.programs.join(launch.program.name());
    if !program.exists() {
        return Err(LaunchError::Missing {
            missing: format!(
                "{} (cargo build -p hyprobe-rigs makes it)",
                program.display()
            ),
            packages: "cargo",
        });
    }
    Ok(Payload {
        program,
        files,
        options,
        guest_bytes,
    })
}
