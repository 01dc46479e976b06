//! Boot of a Linux kernel, up to the first instruction.
//!
//! A [`KernelFile`] is an ELF `vmlinux` or a stock bzImage. For a direct boot, [`extract_vmlinux`]
//! takes the ELF out of the bzImage: the kernel lies at its link addresses, and the guest spends no
//! time on decompressing. With [`BootMethod::BzImage`], the guest decompresses the kernel, KASLR
//! included. Both methods use the 64-bit boot protocol: [`prepare()`] puts kernel, initrd, command
//! line, zero page, ACPI tables, page tables and GDT into guest memory, and [`boot_regs`] and
//! [`set_boot_sregs`] give the boot CPU the matching registers.
//!
//! The module does not touch KVM.

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
