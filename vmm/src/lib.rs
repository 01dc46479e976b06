//! hyprobe-vmm.

pub mod boot;
pub mod devices;
