//! The outer Linux: a stock kernel in which hyprobe, or a program of the rigs, runs a guest on an emulated KVM.
//!
//! - [`Qemu`]: the search for a QEMU suitable for the outer Linux.
//! - [`own_executable`], [`executable()`]: the program that becomes pid 1.
//! - [`IMAGE`], [`vmlinux`], [`initramfs()`], [`add_modules`]: the kernel and the initramfs.
//! - [`Machine`], [`memory_mib`], [`COMMAND_LINE`]: QEMU's options and the kernel's command line.
//! - [`init`]: inside, the steps of pid 1.
//!
//! The crate knows nothing of its users: each user adds its own files, devices and kernel parameters.

mod executable;
mod initramfs;
mod kernel;
mod machine;
mod qemu;

pub mod init;

pub use executable::{ExecutableError, executable, own_executable};
pub use initramfs::{add_modules, initramfs};
pub use kernel::{IMAGE, VmlinuxError, vmlinux};
pub use machine::{COMMAND_LINE, Machine, memory_mib};
pub use qemu::{Qemu, QemuError, Version};
