//! hyprobe-vmm.
