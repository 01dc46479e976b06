//! Preparation of guest memory for a kernel's first instruction, in one call.

use thiserror::Error;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::acpi::{AcpiError, write_acpi_tables};
use super::cpu_state::{CpuStateError, write_boot_tables};
use super::kernel::{BootMethod, KernelError, KernelFile};
use super::load::{LoadedKernel, RamRange};
use super::params::{BootParams, ParamsError, write_boot_params};

/// Why a guest could not be prepared for booting.
#[derive(Debug, Error)]
pub enum BootError {
    /// The kernel could not be loaded.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The ACPI tables could not be written.
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    /// The kernel's parameters could not be written.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// The boot CPU's tables could not be written.
    #[error(transparent)]
    CpuState(#[from] CpuStateError),
}

/// The guest to boot.
#[derive(Clone, Copy, Debug)]
pub struct BootRequest<'a> {
    /// The kernel.
    pub kernel: &'a KernelFile,
    /// The result of [`KernelFile::vmlinux`]; ignored for a [`BootMethod::BzImage`].
    pub vmlinux: &'a [u8],
    /// How to start the kernel.
    pub method: BootMethod,
    /// The initrd or initramfs archive.
    pub initrd: Option<&'a [u8]>,
    /// The kernel's command line, without a NUL.
    pub cmdline: &'a str,
    /// The number of vCPUs.
    pub vcpus: u8,
    /// The size of the guest's RAM, as given to [`ram_regions`](super::ram_regions).
    pub ram_bytes: u64,
}

/// A guest that is ready to run.
#[derive(Clone, Debug)]
pub struct PreparedBoot {
    /// The kernel, as loaded.
    pub kernel: LoadedKernel,
    /// The zero page.
    pub zero_page: GuestAddress,
    /// The initrd.
    pub initrd: Option<RamRange>,
}

/// Writes kernel, ACPI tables, initrd, command line, zero page and boot tables into guest memory,
/// which must be zeroed.
///
/// The boot CPU then starts with [`boot_regs`](super::boot_regs) and
/// [`set_boot_sregs`](super::set_boot_sregs); the others wait for their start-up IPI.
///
/// # Errors
///
/// When the kernel cannot be loaded, or something does not fit into the guest's memory.
pub fn prepare(
    memory: &GuestMemoryMmap,
    request: &BootRequest<'_>,
) -> Result<PreparedBoot, BootError> {
    let kernel = request
        .kernel
        .load(memory, request.method, request.vmlinux)?;
    let rsdp = write_acpi_tables(memory, request.vcpus)?;
    let params = write_boot_params(
        memory,
        &BootParams {
            kernel: &kernel,
            cmdline: request.cmdline,
            initrd: request.initrd,
            rsdp,
            ram_bytes: request.ram_bytes,
        },
    )?;
    write_boot_tables(memory)?;
    Ok(PreparedBoot {
        kernel,
        zero_page: params.zero_page,
        initrd: params.initrd,
    })
}

#[cfg(test)]
mod tests;
