//! The outer Linux: a stock kernel in which hyprobe, or a program of the rigs, runs a guest on an emulated KVM.
//!
//! - [`Qemu`]: the search for a QEMU suitable for the outer Linux.
//!
//! The crate knows nothing of its users: each user adds its own files, devices and kernel parameters.

mod qemu;

pub use qemu::{Qemu, QemuError, Version};
