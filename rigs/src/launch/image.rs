//! The outer Linux: a stock kernel, KVM's modules, the program as init, and the program's files.

use std::path::{Path, PathBuf};

use super::payload::{Payload, Program};
use super::{Launch, LaunchError, error, stock};
use crate::init::ARGUMENTS_PATH;
use crate::line::Backend;

/// Kernel and initramfs, as files.
#[derive(Debug)]
pub(super) struct Outer {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) memory_mib: u64,
    /// The output of `uname -r` in the outer Linux.
    pub(super) release: String,
}

/// The mistakes of Bochs 2.7's SVM; docs/rigs.md has more about each.
const MISTAKES_OF_BOCHS_SVM: [&str; 14] = [
    // While a guest runs with IF clear, no interrupt of the host gets through.
    "--guest-words",
    "wait=exit",
    "--without",
    "guest steps",
    "--without",
    "short return",
    "--without",
    "cr2",
    "--cannot",
    "fault/=the SVM of Bochs does not load CR2 from the VMCB",
    "--cannot",
    "steps/=the SVM of Bochs leaves the cause out of DR6, and gives steps of the guest to the host",
    // Bochs's INT1 leaves EXITINTINFO unchanged, and KVM injects the old event again.
    "--cannot",
    "int1/=the SVM of Bochs delivers an earlier exception if a nested page fault interrupts the delivery of an int1",
];

/// The mistakes of Bochs's VT-x.
const MISTAKES_OF_BOCHS_VMX: [&str; 10] = [
    // Kicks do not end the run of a vCPU that spins with IF clear: it leaves the guest by its `pause`s, after up to a second.
    "--guest-words",
    "wait=exit",
    "--without",
    "guest steps",
    "--without",
    "short return",
    "--cannot",
    "instructions-nmi/=the VT-x of Bochs does not unmask NMIs that the VMCS says are not blocked",
    "--cannot",
    "steps/port=the VT-x of Bochs leaves the step of an instruction pending that has left the guest before its end",
];

/// The mistake of QEMU's TCG: an instruction that reads and writes raises the page fault of the read.
const MISTAKES_OF_TCG: [&str; 2] = ["--without", "modify beyond"];

/// The parameters of the outer Linux's kernel besides the usual ones.
///
/// - loglevel: only a dying kernel prints, so that lines are whole otherwise.
/// - no KASLR: a panic's addresses mean something.
pub(super) const PARAMETERS: &str = "loglevel=2 nokaslr";

/// Builds the outer Linux in `dir`, with KVM's `module` for the vendor.
pub(super) fn build(
    launch: &Launch<'_>,
    dir: &Path,
    payload: &Payload,
    module: &str,
) -> Result<Outer, LaunchError> {
    let image = stock::fetch(outer::IMAGE)?;
    let mut files = outer::initramfs(outer::executable(&payload.program)?);
    for file in &payload.files {
        files.host_file(file.inside, 0o600, &file.path)?;
    }
    outer::add_modules(&mut files, &image, &[module])?;
    let fixed = [launch.program.name(), "--backend", launch.backend.word()];
    let given = payload
        .files
        .iter()
        .flat_map(|file| [file.option, file.inside]);
    let mistakes: &[&str] = match (launch.program, launch.backend) {
        (Program::Contract { .. }, Backend::Amd) => &MISTAKES_OF_BOCHS_SVM,
        (Program::Contract { .. }, Backend::Intel) => &MISTAKES_OF_BOCHS_VMX,
        (Program::Contract { .. }, Backend::Nested) => &MISTAKES_OF_TCG,
        _ => &[],
    };
    let arguments: Vec<&str> = fixed
        .into_iter()
        .chain(given)
        .chain(mistakes.iter().copied())
        .chain(payload.options.iter().map(String::as_str))
        .chain(launch.arguments.iter().map(String::as_str))
        .collect();
    files.file(ARGUMENTS_PATH, 0o600, serde_json::to_vec(&arguments)?);
    let initramfs = dir.join("initramfs");
    let bytes = files.build()?;
    std::fs::write(&initramfs, &bytes).map_err(error::file("write", &initramfs))?;
    let kernel = dir.join("outer-kernel");
    let kernel = match launch.backend {
        Backend::Nested => stock::unpack(&image, kernel)?,
        // Bochs has no `-kernel`, and the loader on the CD takes no ELF.
        _ => stock::copy(&image, kernel)?,
    };
    Ok(Outer {
        kernel,
        initramfs,
        memory_mib: outer::memory_mib(payload.guest_bytes, bytes.len()),
        release: image.release().to_owned(),
    })
}
