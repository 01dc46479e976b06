//! Getting a Linux kernel to its first instruction.
//!
//! A [`KernelFile`] is an ELF `vmlinux` or a stock bzImage. For a direct boot the ELF is taken out
//! of the bzImage here ([`extract_vmlinux`]), so that the kernel lies where it was linked and the
//! guest spends no time on decompressing; with [`BootMethod::BzImage`] the guest does that itself,
//! KASLR included. Either way the kernel is entered by the 64-bit boot protocol: [`prepare()`] puts
//! kernel, initrd, command line, zero page, ACPI tables, page tables and GDT into guest memory, and
//! [`boot_regs`] and [`set_boot_sregs`] give the boot CPU the registers that go with them.
//!
//! Nothing here touches KVM.

mod acpi;
mod cpu_state;
mod header;
mod kernel;
mod layout;
mod load;
mod params;
mod payload;
mod prepare;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;

pub use acpi::{AcpiError, MAX_VCPUS, write_acpi_tables};
pub use cpu_state::{CpuStateError, boot_regs, set_boot_sregs, write_boot_tables};
pub use header::{HeaderError, SetupHeader};
pub use kernel::{BootMethod, KernelError, KernelFile, KernelFormat};
pub use layout::*;
pub use load::{LoadError, LoadedKernel, RamRange, load_bzimage, load_elf};
pub use params::{BootParams, ParamsError, PlacedParams, write_boot_params};
pub use payload::{MAX_VMLINUX_BYTES, PayloadError, extract_vmlinux};
pub use prepare::{BootError, BootRequest, PreparedBoot, prepare};
