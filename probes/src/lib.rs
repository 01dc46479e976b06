//! hyprobe-probes.
